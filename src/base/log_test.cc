#include "base/log.h"

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>

namespace quire::log {
namespace {

std::string written(Format format, const std::function<void()>& say) {
  testing::internal::CaptureStderr();
  set_format(format);
  say();
  set_format(Format::kText);
  return testing::internal::GetCapturedStderr();
}

const std::array kFields = {Field{"id", "a b"}, Field{"status", int64_t{200}}, Field{"total_ms", 1.25},
                            Field{"stream", true}};

TEST(Log, TextHasTimeLevelMessageAndFields) {
  const std::string line = written(Format::kText, [] { info("request", kFields); });
  const std::regex shape(
      R"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} info request id=a b status=200 total_ms=1\.[23] stream=true\n)");
  EXPECT_TRUE(std::regex_match(line, shape)) << line;
}

TEST(Log, JsonHasTheSame) {
  const std::string text = written(Format::kJson, [] { info("request", kFields); });
  const auto line = nlohmann::json::parse(text);
  EXPECT_TRUE(
      std::regex_match(line["time"].get<std::string>(), std::regex(R"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z)")));
  EXPECT_EQ(line["level"], "info");
  EXPECT_EQ(line["message"], "request");
  EXPECT_EQ(line["id"], "a b");
  EXPECT_EQ(line["status"], 200);
  EXPECT_EQ(line["total_ms"], 1.25);
  EXPECT_EQ(line["stream"], true);
  EXPECT_EQ(line.size(), 7U);
}

TEST(Log, JsonIsOneLineWhateverIsSaid) {
  const std::string text = written(Format::kJson, [] {
    warn("\"two\nlines\" \x01 {} \xff");
    error("");
  });
  const size_t end = text.find('\n');
  const auto first = nlohmann::json::parse(text.substr(0, end));
  EXPECT_EQ(first["level"], "warning");
  EXPECT_EQ(first["message"], "\"two\nlines\" \x01 {} \xEF\xBF\xBD");
  EXPECT_EQ(nlohmann::json::parse(text.substr(end + 1))["level"], "error");
}

}  // namespace
}  // namespace quire::log
