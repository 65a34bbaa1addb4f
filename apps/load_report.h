// What a load on a server measured: figures under the names of vLLM's `bench serve`, and a table of them. Pure
// functions.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace quire::apps {

// One request as its client saw it. Times are in seconds; `start` counts from the load's beginning.
struct Sample {
  std::string error = {};  // empty: answered whole
  double start = 0;
  double ttft = 0;               // until the first piece of the answer
  double latency = 0;            // until the last one
  std::vector<double> itl = {};  // between one piece and the next
  int64_t input_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t output_tokens = 0;
};

// Of the requests that were answered, but for `failed` and `errors`. `goals` are in ms, by ttft, tpot and e2el.
nlohmann::json load_figures(const std::vector<Sample>& samples, double duration,
                            const std::map<std::string, double>& goals);
// Lists with an item a request, also of those that failed.
nlohmann::json load_details(const std::vector<Sample>& samples);
std::string load_table(const nlohmann::json& figures);

}  // namespace quire::apps
