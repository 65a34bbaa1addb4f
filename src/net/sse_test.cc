#include "net/sse.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace quire::net {
namespace {

using Events = std::vector<std::string>;

Events events_of(std::string_view stream, size_t piece) {
  Events events;
  SseParser parser(1 << 20);
  for (size_t at = 0; at < stream.size(); at += piece)
    EXPECT_TRUE(parser.feed(stream.substr(at, piece), [&](std::string_view data) { events.emplace_back(data); }));
  return events;
}

// What the specification says of each stream, cut in pieces of any size.
void expect_events(std::string_view stream, const Events& expected) {
  for (size_t piece = 1; piece <= stream.size(); ++piece) EXPECT_EQ(events_of(stream, piece), expected) << piece;
}

TEST(Sse, EventsComeOutWhereverBytesAreCut) {
  expect_events("data: {\"a\":1}\n\ndata: [DONE]\n\n", {"{\"a\":1}", "[DONE]"});
  expect_events("data: a\r\n\r\ndata: b\r\n\r\n", {"a", "b"});
  expect_events("data: a\r\rdata: b\r\r", {"a", "b"});
}

TEST(Sse, LinesAreReadAsTheSpecificationSays) {
  // The examples of WHATWG HTML, 9.2.6.
  expect_events("data: YHOO\ndata: +2\ndata: 10\n\n", {"YHOO\n+2\n10"});
  expect_events(": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event\n\n",
                {"first event", "second event", " third event"});
  expect_events("data\n\ndata\ndata\n\ndata:", {"", "\n"});
  expect_events("data:test\n\ndata: test\n\n", {"test", "test"});
  expect_events(
      "\xEF\xBB\xBF"
      "data: a\n\n\xEF\xBB\xBF"
      "data: b\n\n",
      {"a"});
  expect_events("database: a\nDATA: b\nevent: c\nretry: 5\n\n", {});
}

TEST(Sse, AnEventThatIsCutDoesNotComeOut) { expect_events("data: a\n\ndata: b\n", {"a"}); }

TEST(Sse, NoMoreThanOneEventIsHeld) {
  int count = 0;
  const auto add = [&](std::string_view) { ++count; };
  SseParser parser(16);
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(parser.feed("data: 123456\n\n", add));
  EXPECT_EQ(count, 100);
  for (const std::string_view endless : {"data: 1234567890", "data:\n", ": comment"}) {
    SseParser other(16);
    bool ok = true;
    for (int i = 0; i < 100; ++i) ok = other.feed(endless, add);
    EXPECT_FALSE(ok) << endless;
    EXPECT_FALSE(other.feed("\n\n", add));
  }
  EXPECT_EQ(count, 100);
}

}  // namespace
}  // namespace quire::net
