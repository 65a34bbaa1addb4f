// What /metrics shows: Prometheus text under vLLM's names, which dashboards and routers know.
//
// Engine figures are read when they are shown; latencies and reasons of ending are counted here as the updates pass.
// One thread at a time.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "quire/engine.h"

namespace quire::api {

class Histogram {
 public:
  explicit Histogram(std::vector<double> bounds) : bounds_(std::move(bounds)), counts_(bounds_.size() + 1, 0) {}
  // As counted elsewhere: values up to each bound and above the one before, then those beyond; and their sum.
  Histogram(std::vector<double> bounds, std::vector<uint64_t> counts, double sum);
  void observe(double value);
  // Appends its samples; `labels` is "a=\"b\",c=\"d\"".
  void append(std::string& out, std::string_view name, std::string_view labels) const;

 private:
  std::vector<double> bounds_;
  std::vector<uint64_t> counts_;  // one a bound, and one beyond
  double sum_ = 0;
  uint64_t count_ = 0;
};

// 1, 2, 5, 10, ... up to `most`.
std::vector<double> one_two_five(int64_t most);

// Times in seconds, and counts, of one answer that has ended.
struct FinishedAnswer {
  std::string_view reason;                 // stop, length, abort, error
  double seconds = 0;                      // from the request's arrival
  std::optional<RequestTimes> times = {};  // in the engine; absent: it had no token
  int64_t prompt_tokens = 0;
  int64_t generation_tokens = 0;
  int64_t max_tokens = 0;  // that it could have had; 0: numbers were asked for, not an answer
};

class Metrics {
 public:
  explicit Metrics(int64_t max_model_len);

  void first_token(double seconds_since_arrival) { time_to_first_token_.observe(seconds_since_arrival); }
  void next_tokens(double seconds_since_last) { inter_token_.observe(seconds_since_last); }
  void finished(const FinishedAnswer& answer);
  // A prompt for which `n` answers are wanted goes to the engine.
  void asked(int n) { params_n_.observe(n); }
  void replied(int status) { ++replies_[status]; }

  std::string text(const std::string& model_name, const ModelInfo& info, const EngineStats& stats) const;

 private:
  Histogram time_to_first_token_;
  Histogram inter_token_;
  Histogram time_per_output_token_;
  Histogram latency_;
  Histogram queue_time_;
  Histogram prefill_time_;
  Histogram decode_time_;
  Histogram inference_time_;
  Histogram prompt_tokens_;
  Histogram generation_tokens_;
  Histogram params_n_;
  Histogram params_max_tokens_;
  std::map<std::string, uint64_t, std::less<>> finished_;
  std::map<int, uint64_t> replies_;
};

}  // namespace quire::api
