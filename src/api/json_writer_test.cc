#include "api/json_writer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "api/error_reply.h"
#include "api/json.h"

namespace quire::api {
namespace {

std::string written(const std::function<void(JsonWriter&)>& write) {
  std::string out;
  JsonWriter json(out);
  write(json);
  return out;
}

TEST(JsonWriter, PlacesCommasByItself) {
  const std::string out = written([](JsonWriter& json) {
    json.begin_object()
        .key("a")
        .value(1)
        .key("b")
        .begin_array()
        .value("x")
        .null()
        .value(true)
        .begin_object()
        .end_object();
    json.end_array().key("c").begin_array().end_array().key("d").value(-2.5).end_object();
  });
  EXPECT_EQ(out, R"({"a":1,"b":["x",null,true,{}],"c":[],"d":-2.5})");
}

TEST(JsonWriter, WritesTheWholeRangeOfIntegers) {
  EXPECT_EQ(written([](JsonWriter& j) { j.value(std::numeric_limits<int64_t>::min()); }), "-9223372036854775808");
  EXPECT_EQ(written([](JsonWriter& j) { j.value(std::numeric_limits<uint64_t>::max()); }), "18446744073709551615");
}

TEST(JsonWriter, MakesNullOfNumbersThatJsonCannotSay) {
  EXPECT_EQ(written([](JsonWriter& j) { j.value(std::nan("")); }), "null");
  EXPECT_EQ(written([](JsonWriter& j) { j.value(-std::numeric_limits<float>::infinity()); }), "null");
}

TEST(JsonWriter, EscapesStrings) {
  const auto quoted = [](std::string_view text) {
    std::string out;
    append_json_string(out, text);
    return out;
  };
  EXPECT_EQ(quoted("a\"b\\c\n\r\t\x01\x1f"), R"("a\"b\\c\n\r\t\u0001\u001f")");
  EXPECT_EQ(quoted("é€😀\x7f"), "\"é€😀\\u007f\"");
  EXPECT_EQ(quoted(std::string_view("\0", 1)), R"("\u0000")");
  EXPECT_EQ(quoted("\xff"
                   "a\xc3"),
            "\"\xef\xbf\xbd"
            "a\xef\xbf\xbd\"");
  EXPECT_EQ(quoted("\xed\xa0\x80"), "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\"");  // a surrogate
  EXPECT_EQ(quoted("\xc0\x80"), "\"\xef\xbf\xbd\xef\xbf\xbd\"");                  // overlong
}

TEST(JsonWriter, WritesWhatTheStrictReaderTakes) {
  std::string everything;
  for (int c = 0; c < 256; ++c) everything += static_cast<char>(c);
  std::string out;
  append_json_string(out, everything);
  EXPECT_TRUE(JsonDocument::parse(out).has_value());
}

TEST(ErrorReply, HasTheShapeOfOpenAi) {
  const auto response = error_response(api_error({ErrorKind::kInvalidRequest, "no \"x\"", "n"}), "/v1/messagess");
  EXPECT_EQ(response.status, 400);
  EXPECT_EQ(response.body,
            R"({"error":{"message":"no \"x\"","type":"invalid_request_error","param":"n","code":null}})");
}

TEST(ErrorReply, HasTheShapeOfAnthropicUnderItsPath) {
  for (const char* path : {"/v1/messages", "/v1/messages/count_tokens", "/v1/messages/nothing"}) {
    EXPECT_EQ(error_response({.status = 400, .message = "no", .param = "n"}, path).body,
              R"({"type":"error","error":{"type":"invalid_request_error","message":"no"}})");
  }
  const std::pair<int, std::string> types[] = {{401, "authentication_error"},
                                               {404, "not_found_error"},
                                               {405, "invalid_request_error"},
                                               {413, "request_too_large"},
                                               {415, "invalid_request_error"},
                                               {429, "rate_limit_error"},
                                               {500, "api_error"},
                                               {503, "overloaded_error"}};
  for (const auto& [status, type] : types) {
    const auto response = error_response({.status = status, .message = "m"}, "/v1/messages");
    EXPECT_EQ(response.status, status);
    EXPECT_NE(response.body.find('"' + type + '"'), std::string::npos) << response.body;
  }
}

TEST(ErrorReply, MapsKindsToStatuses) {
  EXPECT_EQ(api_error({ErrorKind::kNotFound, ""}).status, 404);
  EXPECT_EQ(api_error({ErrorKind::kUnsupported, ""}).status, 400);
  EXPECT_EQ(api_error({ErrorKind::kInternal, ""}).status, 500);
  const auto full = error_response(api_error({ErrorKind::kExhausted, "full"}), "");
  EXPECT_EQ(full.status, 429);
  ASSERT_EQ(full.headers.size(), 1U);
  EXPECT_EQ(full.headers[0].first, "Retry-After");
}

}  // namespace
}  // namespace quire::api
