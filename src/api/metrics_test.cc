#include "api/metrics.h"

#include <gtest/gtest.h>

namespace quire::api {
namespace {

TEST(Histogram, CountsUpToAndWithEachBound) {
  Histogram histogram({1, 2});
  for (const double value : {0.5, 1.0, 1.5, 3.0}) histogram.observe(value);
  std::string out;
  histogram.append(out, "h", "a=\"b\"");
  EXPECT_EQ(out,
            "h_bucket{a=\"b\",le=\"1\"} 2\n"
            "h_bucket{a=\"b\",le=\"2\"} 3\n"
            "h_bucket{a=\"b\",le=\"+Inf\"} 4\n"
            "h_sum{a=\"b\"} 6\n"
            "h_count{a=\"b\"} 4\n");
}

TEST(Histogram, HasBoundsLikeVllm) {
  EXPECT_EQ(one_two_five(60), (std::vector<double>{1, 2, 5, 10, 20, 50}));
  EXPECT_EQ(one_two_five(1), (std::vector<double>{1}));
}

TEST(Metrics, DescribesEveryFamilyOnceAndEscapesTheModelsName) {
  Metrics metrics(100);
  metrics.finished({.reason = "stop", .seconds = 1, .decode_seconds = 0.5, .prompt_tokens = 3, .generation_tokens = 6});
  ModelInfo info{};
  info.block_size = 32;
  const std::string text = metrics.text("a\"b\\c\nd", info, {.kv_cache_usage = 0.25});
  EXPECT_NE(text.find("vllm:kv_cache_usage_perc{model_name=\"a\\\"b\\\\c\\nd\",engine=\"0\"} 0.25\n"),
            std::string::npos);
  EXPECT_NE(text.find("finished_reason=\"stop\"} 1\n"), std::string::npos);
  EXPECT_NE(
      text.find("vllm:request_time_per_output_token_seconds_sum{model_name=\"a\\\"b\\\\c\\nd\",engine=\"0\"} 0.1\n"),
      std::string::npos);
  size_t families = 0;
  for (size_t at = text.find("# TYPE "); at != std::string::npos; at = text.find("# TYPE ", at + 1)) {
    const std::string line = text.substr(at, text.find(' ', at + 7) - at + 1);
    EXPECT_EQ(text.find(line, at + 1), std::string::npos) << line;
    ++families;
  }
  EXPECT_GT(families, 20U);
}

}  // namespace
}  // namespace quire::api
