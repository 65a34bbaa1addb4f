#include "base/strict_json.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

std::string error_of(std::string_view text) {
  const auto checked = check_strict_json(text, 3);
  return checked ? "accepted" : checked.error().message;
}

TEST(StrictJson, SaysWhatIsWrong) {
  EXPECT_EQ(error_of(""), "malformed JSON at byte 1");
  EXPECT_EQ(error_of("{\"a\":1} x"), "malformed JSON at byte 9");
  EXPECT_EQ(error_of(R"({"a": 1e999})"), "a number is out of range");
  EXPECT_EQ(error_of(R"({"a": 1, "b": 2, "a": 3})"), "the key \"a\" stands twice in one object");
  EXPECT_EQ(error_of(R"([{"a": 1}, {"b": {"c": 1, "c": 2}}])"), "the key \"c\" stands twice in one object");
  EXPECT_EQ(error_of("[[[1]]]"), "accepted");
  EXPECT_EQ(error_of(R"({"a": [1, {"a": "x"}], "b": {"a": 2}})"), "accepted");
  EXPECT_EQ(error_of("[[[[1]]]]"), "nested more than 3 levels deep");
  EXPECT_EQ(error_of(std::string(1 << 20, '[')), "nested more than 3 levels deep");
  EXPECT_EQ(error_of("\"\xff\""), "malformed JSON at byte 2");
}

TEST(StrictJson, EqualKeysOfDifferentObjectsAreFine) {
  EXPECT_EQ(error_of(R"([{"a": 1}, {"a": 2}])"), "accepted");
  EXPECT_EQ(error_of(R"({"a": {"a": {"a": 1}}, "b": {"a": 1}})"), "accepted");
}

}  // namespace
}  // namespace quire
