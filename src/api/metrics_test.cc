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

TEST(Histogram, ShowsWhatWasCountedElsewhere) {
  std::string out;
  Histogram({1, 8}, {2, 0, 3}, 40).append(out, "h", "a=\"b\"");
  EXPECT_EQ(out,
            "h_bucket{a=\"b\",le=\"1\"} 2\n"
            "h_bucket{a=\"b\",le=\"8\"} 2\n"
            "h_bucket{a=\"b\",le=\"+Inf\"} 5\n"
            "h_sum{a=\"b\"} 40\n"
            "h_count{a=\"b\"} 5\n");
}

TEST(Histogram, HasBoundsLikeVllm) {
  EXPECT_EQ(one_two_five(60), (std::vector<double>{1, 2, 5, 10, 20, 50}));
  EXPECT_EQ(one_two_five(1), (std::vector<double>{1}));
}

TEST(Metrics, DescribesEveryFamilyOnceAndEscapesTheModelsName) {
  Metrics metrics(100);
  metrics.asked(2);
  metrics.finished({.reason = "stop",
                    .seconds = 1,
                    .times = RequestTimes{.queue = 0.25, .prefill = 0.125, .decode = 0.5},
                    .prompt_tokens = 3,
                    .generation_tokens = 6,
                    .max_tokens = 7});
  metrics.finished({.reason = "abort", .seconds = 2, .prompt_tokens = 3, .max_tokens = 7});
  ModelInfo info{};
  info.block_size = 32;
  const std::string text = metrics.text(
      "a\"b\\c\nd", info,
      {.kv_cache_usage = 0.25,
       .cache_groups = {{.kind = "sliding window", .held_blocks = 4}, {.kind = "full", .retained_blocks = 5}}});
  EXPECT_NE(text.find("engine=\"0\",group=\"0\",kind=\"sliding window\"} 4\n"), std::string::npos);
  EXPECT_NE(text.find("engine=\"0\",group=\"1\",kind=\"full\"} 5\n"), std::string::npos);

  EXPECT_NE(text.find("vllm:kv_cache_usage_perc{model_name=\"a\\\"b\\\\c\\nd\",engine=\"0\"} 0.25\n"),
            std::string::npos);
  EXPECT_NE(text.find("finished_reason=\"stop\"} 1\n"), std::string::npos);
  EXPECT_NE(
      text.find("vllm:request_time_per_output_token_seconds_sum{model_name=\"a\\\"b\\\\c\\nd\",engine=\"0\"} 0.1\n"),
      std::string::npos);
  const auto value = [&](const std::string& name) {
    const size_t at = text.find("\n" + name + "{");
    EXPECT_NE(at, std::string::npos) << name;
    return std::stod(text.substr(text.find("} ", at) + 2));
  };
  EXPECT_EQ(value("vllm:request_queue_time_seconds_sum"), 0.25);
  EXPECT_EQ(value("vllm:request_prefill_time_seconds_sum"), 0.125);
  EXPECT_EQ(value("vllm:request_decode_time_seconds_sum"), 0.5);
  EXPECT_EQ(value("vllm:request_inference_time_seconds_sum"), 0.625);
  EXPECT_EQ(value("vllm:request_inference_time_seconds_count"), 1);  // the one without a token has none
  EXPECT_EQ(value("vllm:e2e_request_latency_seconds_count"), 2);
  EXPECT_EQ(value("vllm:request_params_n_sum"), 2);
  EXPECT_EQ(value("vllm:request_params_max_tokens_sum"), 14);
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
