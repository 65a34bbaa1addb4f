#include "base/utf8.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace quire {
namespace {

std::string encode(uint32_t point) {  // without any check
  const auto tail = [&](int shift) { return static_cast<char>(0x80 | (point >> shift & 0x3f)); };
  if (point < 0x80) return {static_cast<char>(point)};
  if (point < 0x800) return {static_cast<char>(0xc0 | point >> 6), tail(0)};
  if (point < 0x10000) return {static_cast<char>(0xe0 | point >> 12), tail(6), tail(0)};
  return {static_cast<char>(0xf0 | point >> 18), tail(12), tail(6), tail(0)};
}

TEST(Utf8, AcceptsExactlyTheScalarValues) {
  for (uint32_t point = 0; point < 0x120000; ++point) {
    const bool scalar_value = point < 0x110000 && (point < 0xd800 || point > 0xdfff);
    const std::string text = encode(point);
    ASSERT_EQ(is_utf8(text), scalar_value) << point;
    ASSERT_EQ(is_utf8("a" + text + "b"), scalar_value) << point;
    for (size_t cut = 1; cut < text.size(); ++cut) ASSERT_FALSE(is_utf8(text.substr(0, cut))) << point;
  }
}

TEST(Utf8, RejectsLongFormsAndStrayBytes) {
  for (const char* bad :
       {"\xc0\x80", "\xc1\xbf", "\xe0\x9f\xbf", "\xf0\x8f\xbf\xbf", "\x80", "\xff", "\xf8\x88\x80\x80\x80"})
    EXPECT_FALSE(is_utf8(bad));
  EXPECT_TRUE(is_utf8(""));
}

TEST(Quoted, IsOneSafeLineOfBoundedLength) {
  EXPECT_EQ(in_quotes("token_embd.weight"), "\"token_embd.weight\"");
  EXPECT_EQ(in_quotes("a\n\"\\\xff\x7fü"), "\"a\\x0a\\x22\\x5c\\xff\\x7fü\"");
  EXPECT_LT(in_quotes(std::string(100000, '\n')).size(), 120U);
  EXPECT_TRUE(in_quotes(std::string(200, 'x')).ends_with("...\""));
}

TEST(OneLine, ShowsWhatCannotBeShownAndCutsTheMiddle) {
  EXPECT_EQ(one_line("key \"a\" ü must be \\ 3"), "key \"a\" ü must be \\ 3");
  EXPECT_EQ(one_line("a\nb\x1b[0m\xff"), "a\\x0ab\\x1b[0m\\xff");
  EXPECT_EQ(one_line(std::string_view("a\0b", 3)), "a\\x00b");
  EXPECT_EQ(one_line("\u202eabc"), "\\xe2\\x80\\xaeabc");
  for (const char* many : {"x", "\n", "ü"}) {
    std::string text = "begin ";
    for (int i = 0; i < 100000; ++i) text += many;
    const std::string line = one_line(text + " end");
    EXPECT_LT(line.size(), 4000U);
    EXPECT_TRUE(line.starts_with("begin ") && line.ends_with(" end") && is_utf8(line)) << many;
  }
}

}  // namespace
}  // namespace quire
