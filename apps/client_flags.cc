#include "client_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <string_view>

#include "validators.h"

namespace quire::apps {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kSlowest = 1e-6;
constexpr int kMostTokens = 1 << 24;

void add_server_flags(CLI::App& app, ServerAddress& server) {
  CLI::Option* url = app.add_option("--base-url", server.base_url, "The server, as http://HOST[:PORT][/PATH]");
  app.add_option("--host", server.host, "Instead of --base-url: the server's host")
      ->capture_default_str()
      ->check(not_empty())
      ->excludes(url);
  app.add_option("--port", server.port, "Instead of --base-url: its port")
      ->capture_default_str()
      ->check(integer(1, 65535))
      ->excludes(url);
}

Result<std::pair<std::string, double>> goal_of(const std::string& text) {
  constexpr std::array<std::string_view, 3> kNames = {"ttft", "tpot", "e2el"};
  const size_t colon = text.find(':');
  const std::string name = text.substr(0, colon);
  const auto value = plain_number(colon == std::string::npos ? "" : std::string_view(text).substr(colon + 1));
  if (std::ranges::find(kNames, name) == kNames.end() || !value || *value < 0)
    return fail(ErrorKind::kInvalidRequest,
                fmt::format("--goodput: must be ttft, tpot or e2el with a time in ms, like ttft:500, not '{}'", text),
                "--goodput");
  return std::pair{name, *value};
}

}  // namespace

void add_bench_serve_flags(CLI::App& app, BenchServeFlags& f) {
  add_server_flags(app, f.server);
  app.add_option("--model", f.model, "The model's name; default: the first that the server lists")->check(not_empty());
  app.add_option("--endpoint", f.endpoint, "/v1/completions, or /v1/chat/completions")
      ->capture_default_str()
      ->check(CLI::IsMember({"/v1/completions", "/v1/chat/completions"}));
  app.add_option("--num-prompts", f.num_prompts, "Requests")->capture_default_str()->check(integer(1, 1'000'000));
  app.add_option("--request-rate", f.request_rate, "Requests that arrive in a second; inf: all at the beginning")
      ->capture_default_str()
      ->check(number(kSlowest, kInfinity));
  app.add_option("--burstiness", f.burstiness,
                 "1: a Poisson process; between 0 and 1 in bursts, above more evenly (gamma distribution)")
      ->capture_default_str()
      ->check(number(kSlowest, 1e6));
  app.add_option("--max-concurrency", f.max_concurrency, "Most requests that run together; default: no bound")
      ->check(integer(1, 1'000'000));
  app.add_option("--random-input-len", f.random_input_len, "Tokens of a prompt, without the shared prefix")
      ->capture_default_str()
      ->check(integer(1, kMostTokens));
  app.add_option("--random-output-len", f.random_output_len, "Tokens of an answer at most")
      ->capture_default_str()
      ->check(integer(1, kMostTokens));
  app.add_option("--random-prefix-len", f.random_prefix_len, "Tokens at the beginning that all prompts share")
      ->capture_default_str()
      ->check(integer(0, kMostTokens));
  app.add_option("--random-range-ratio", f.random_range_ratio,
                 "Both lengths vary by this part up and down, evenly; 0: not at all")
      ->capture_default_str()
      ->check(number(0, 0.999));
  app.add_option("--random-vocab-size", f.random_vocab_size, "Prompts are made of ids below this")
      ->capture_default_str()
      ->check(integer(1, std::numeric_limits<int32_t>::max()));
  app.add_option("--seed", f.seed, "Of prompts and arrivals")
      ->capture_default_str()
      ->check(integer(0, std::numeric_limits<int64_t>::max()));
  app.add_option("--temperature", f.temperature, "Of the requests; 0 is greedy")
      ->capture_default_str()
      ->check(number(0, 100));
  app.add_flag("--ignore-eos", f.ignore_eos, "Answers do not end before their length (not an OpenAI field)");
  app.add_option("--goodput", f.goodput, "Also requests a second that meet all of these goals, in ms: ttft:500 tpot:50")
      ->expected(1, 3);
  app.add_option("--save-result", f.save_result, "A JSON file for the figures and those of each request")
      ->check(not_empty());
  app.add_flag("--json", f.json, "Print the figures as JSON");
}

void add_verify_flags(CLI::App& app, VerifyFlags& f) {
  app.add_option("REQUEST", f.request, "A file with the request's body, as it was sent")->required();
  app.add_option("RESPONSE", f.response, "A file with the answer's body, as it came")->required();
  add_server_flags(app, f.server);
  app.add_option("--seed", f.seed, "The seed that the server chose: the answer's header X-Quire-Seed");
}

Result<void> finish(BenchServeFlags& f) {
  for (const std::string& text : f.goodput) {
    auto goal = goal_of(text);
    if (!goal) return std::unexpected(goal.error());
    f.goals[goal->first] = goal->second;
  }
  return {};
}

}  // namespace quire::apps
