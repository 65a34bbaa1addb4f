#include "net/wire.h"

#include <gtest/gtest.h>

namespace quire::net {
namespace {

TEST(Wire, SaysDatesInTheFormOfTheStandard) {
  EXPECT_EQ(http_date(784111777), "Sun, 06 Nov 1994 08:49:37 GMT");
  EXPECT_EQ(http_date(951782400), "Tue, 29 Feb 2000 00:00:00 GMT");
}

TEST(Wire, LetsNoHeaderValueBreakTheHead) {
  std::string out;
  append_head(out, {.headers = {{"X-Id", "a\r\nSet-Cookie: b"}}}, {});
  EXPECT_EQ(out.find("\r\nSet-Cookie"), std::string::npos);
  EXPECT_NE(out.find("X-Id: a  Set-Cookie: b\r\n"), std::string::npos);
}

TEST(Wire, NeverWritesTheEmptyChunkThatWouldEndTheBody) {
  std::string out;
  append_chunk(out, "");
  EXPECT_EQ(out, "");
  append_chunk(out, "0123456789abcdef");
  EXPECT_EQ(out, "10\r\n0123456789abcdef\r\n");
}

}  // namespace
}  // namespace quire::net
