// quire bench serve: a load on a server of the OpenAI API, and what its clients see of it. Requests arrive at times
// fixed before; each is a stream on a connection of its own, and everything happens on this one thread.
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <deque>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <vector>

#include "base/utf8.h"
#include "commands.h"
#include "load_report.h"
#include "net/client.h"
#include "progress.h"
#include "server_access.h"

namespace quire::apps {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;

// What a prompt of a chat is made of, since a chat takes no ids: words that most vocabularies have as one token.
constexpr std::string_view kWords[] = {"time",  "people", "water", "day",   "house", "world", "school", "state",
                                       "night", "city",   "book",  "story", "money", "music", "family", "power"};

bool is_chat(const BenchServeFlags& flags) { return flags.endpoint == "/v1/chat/completions"; }

struct Prompt {
  json content;  // ids, or the text of a chat
  int64_t input_tokens;
  int64_t output_tokens;
};

// Each prompt by a source of its own, so that it depends on the seed and its number alone.
class Prompts {
 public:
  explicit Prompts(const BenchServeFlags& flags) : flags_(flags), prefix_(pieces(flags.random_prefix_len, source(0))) {}

  Prompt operator[](int index) const {
    std::mt19937_64 random = source(static_cast<uint64_t>(index) + 1);
    const int64_t input = varied(flags_.random_input_len, random);
    const int64_t output = varied(flags_.random_output_len, random);
    std::vector<int64_t> all = prefix_;
    const std::vector<int64_t> own = pieces(input, random);
    all.insert(all.end(), own.begin(), own.end());
    return {content_of(all), static_cast<int64_t>(all.size()), output};
  }
  // As long as the others without the prefix, and like none of them.
  Prompt first_try() const { return {content_of(pieces(flags_.random_input_len, source(~uint64_t{0}))), 0, 1}; }

 private:
  std::mt19937_64 source(uint64_t stream) const {
    std::seed_seq seeds{static_cast<uint32_t>(flags_.seed), static_cast<uint32_t>(flags_.seed >> 32),
                        static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)};
    return std::mt19937_64(seeds);
  }
  int64_t varied(int64_t length, std::mt19937_64& random) const {
    const auto spread = static_cast<int64_t>(std::floor(static_cast<double>(length) * flags_.random_range_ratio));
    return std::uniform_int_distribution<int64_t>(length - spread, length + spread)(random);
  }
  std::vector<int64_t> pieces(int64_t count, std::mt19937_64 random) const {
    const int64_t kinds = is_chat(flags_) ? static_cast<int64_t>(std::size(kWords)) : flags_.random_vocab_size;
    std::uniform_int_distribution<int64_t> any(0, kinds - 1);
    std::vector<int64_t> all(static_cast<size_t>(count));
    for (int64_t& one : all) one = any(random);
    return all;
  }
  json content_of(const std::vector<int64_t>& pieces) const {
    if (!is_chat(flags_)) return pieces;
    std::string text;
    for (const int64_t piece : pieces) text += (text.empty() ? "" : " ") + std::string(kWords[piece]);
    return text;
  }

  const BenchServeFlags& flags_;
  std::vector<int64_t> prefix_;
};

// Seconds from the beginning at which requests arrive: gaps of a gamma distribution, stretched so that all arrive
// within the time that the rate says, as vLLM does.
std::vector<double> arrivals(const BenchServeFlags& flags) {
  std::vector<double> times(static_cast<size_t>(flags.num_prompts), 0);
  if (std::isinf(flags.request_rate)) return times;
  std::mt19937_64 random(static_cast<uint64_t>(flags.seed));
  std::gamma_distribution<double> gap(flags.burstiness, 1);
  double time = 0;
  for (double& one : times) one = time += gap(random);
  if (time == 0) return times;
  const double stretch = static_cast<double>(flags.num_prompts) / flags.request_rate / time;
  for (double& one : times) one *= stretch;
  return times;
}

bool has_text(const json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && ((found->is_string() && !found->get_ref<const std::string&>().empty()) ||
                                   (found->is_array() && !found->empty()));
}

// Whether a choice of an event brings a piece of the answer, and not its end or a role alone.
bool brings_tokens(const json& choice) {
  if (!choice.is_object()) return false;
  const auto delta = choice.find("delta");
  const json& piece = delta != choice.end() && delta->is_object() ? *delta : choice;
  return has_text(choice, "token_ids") ||
         std::ranges::any_of(std::array{"text", "content", "reasoning", "reasoning_content", "tool_calls"},
                             [&](const char* name) { return has_text(piece, name); });
}

int64_t count_of(const json& usage, const char* name) {
  const auto found = usage.find(name);
  return found != usage.end() && found->is_number_unsigned() ? found->get<int64_t>() : 0;
}

class Load {
 public:
  Load(net::Client& client, const BenchServeFlags& flags, api::Headers headers, std::string model)
      : client_(client), flags_(flags), headers_(std::move(headers)), model_(std::move(model)), prompts_(flags) {}

  // One request alone that counts nowhere: what is wrong with all of them is wrong with it.
  Result<void> try_one() {
    samples_.resize(1);
    start(0, prompts_.first_try());
    client_.run();
    if (samples_[0].error.empty()) return {};
    return fail(ErrorKind::kInvalidRequest, fmt::format("a first request failed: {}", samples_[0].error));
  }

  // All requests; the seconds that they took together are in duration().
  const std::vector<Sample>& run() {
    const std::vector<double> times = arrivals(flags_);
    samples_.assign(times.size(), {});
    show_ = progress_bar("requests");
    begin_ = Clock::now();
    for (size_t i = 0; i < times.size(); ++i)
      client_.at(begin_ + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(times[i])),
                 [this, i] { arrive(i); });
    client_.run();
    duration_ = since(begin_);
    return samples_;
  }
  double duration() const { return duration_; }

 private:
  static double since(Clock::time_point time) { return std::chrono::duration<double>(Clock::now() - time).count(); }

  void arrive(size_t index) {
    waiting_.push_back(index);
    start_waiting();
  }
  void start_waiting() {
    while (!waiting_.empty() && (flags_.max_concurrency == 0 || running_ < flags_.max_concurrency)) {
      const size_t index = waiting_.front();
      waiting_.pop_front();
      start(index, prompts_[static_cast<int>(index)]);
    }
  }

  void start(size_t index, const Prompt& prompt) {
    ++running_;
    const json body = body_of(prompt);
    Sample& sample = samples_[index];
    sample.input_tokens = prompt.input_tokens;
    const auto asked = std::make_shared<Asked>();
    asked->start = Clock::now();
    sample.start = std::chrono::duration<double>(asked->start - begin_).count();
    client_.send({.method = "POST",
                  .target = flags_.endpoint,
                  .headers = headers_,
                  .body = body.dump(),
                  .on_event = [asked, &sample](std::string_view data) { take(data, *asked, sample); },
                  .done =
                      [this, asked, &sample](const Result<api::HttpResponse>& answer) {
                        end(answer, *asked, sample);
                        --running_;
                        if (show_) show_(static_cast<double>(++ended_) / static_cast<double>(samples_.size()));
                        start_waiting();
                      }});
  }

  json body_of(const Prompt& prompt) const {
    json body = {{"model", model_},
                 {"temperature", flags_.temperature},
                 {"stream", true},
                 {"stream_options", {{"include_usage", true}}}};
    if (is_chat(flags_)) {
      body["messages"] = {{{"role", "user"}, {"content", prompt.content}}};
      body["max_completion_tokens"] = prompt.output_tokens;
    } else {
      body["prompt"] = prompt.content;
      body["max_tokens"] = prompt.output_tokens;
    }
    if (flags_.ignore_eos) body["ignore_eos"] = true;
    return body;
  }

  // What is known of a request while its answer comes.
  struct Asked {
    Clock::time_point start;
    Clock::time_point latest = {};  // piece of the answer
    int64_t pieces = 0;
    bool done = false;
  };

  static void take(std::string_view data, Asked& asked, Sample& sample) {
    asked.done = data == "[DONE]";
    if (asked.done) return;
    const auto now = Clock::now();
    const json event = json::parse(data, nullptr, false);
    if (!event.is_object()) {
      sample.error = fmt::format("an event is no JSON object: {}", in_quotes(data));
      return;
    }
    if (event.contains("error")) sample.error = error_text(event);
    if (const auto usage = event.find("usage"); usage != event.end() && usage->is_object()) {
      sample.output_tokens = count_of(*usage, "completion_tokens");
      sample.input_tokens = count_of(*usage, "prompt_tokens");
      const auto details = usage->find("prompt_tokens_details");
      if (details != usage->end() && details->is_object()) sample.cached_tokens = count_of(*details, "cached_tokens");
    }
    const auto choices = event.find("choices");
    if (choices == event.end() || !choices->is_array() || choices->empty()) return;
    sample.latency = std::chrono::duration<double>(now - asked.start).count();
    if (!brings_tokens(choices->front())) return;
    if (asked.pieces++ == 0) {
      sample.ttft = sample.latency;
    } else {
      sample.itl.push_back(std::chrono::duration<double>(now - asked.latest).count());
    }
    asked.latest = now;
  }

  static void end(const Result<api::HttpResponse>& answer, const Asked& asked, Sample& sample) {
    if (!answer) {
      sample.error = answer.error().message;
    } else if (answer->status != 200) {
      sample.error = refusal_text(*answer);
    } else if (sample.error.empty() && !asked.done) {
      sample.error = "the answer is no stream of events that [DONE] ends";
    } else if (sample.error.empty() && sample.latency == 0) {
      sample.error = "the stream has no answer in it";
    }
    // Text that is all held back, or special tokens alone, shows at the end.
    if (asked.pieces == 0) sample.ttft = sample.latency;
    if (sample.output_tokens == 0) sample.output_tokens = asked.pieces;
  }

  net::Client& client_;
  const BenchServeFlags& flags_;
  const api::Headers headers_;
  const std::string model_;
  const Prompts prompts_;
  std::vector<Sample> samples_;
  std::deque<size_t> waiting_;
  int running_ = 0;
  size_t ended_ = 0;
  Clock::time_point begin_ = Clock::now();
  double duration_ = 0;
  std::function<void(double)> show_;
};

json settings_of(const BenchServeFlags& flags, const std::string& model) {
  json settings = {{"date", fmt::format("{:%Y%m%d-%H%M%S}", fmt::localtime(std::time(nullptr)))},
                   {"model_id", model},
                   {"endpoint", flags.endpoint},
                   {"num_prompts", flags.num_prompts},
                   {"request_rate", "inf"},
                   {"burstiness", flags.burstiness},
                   {"max_concurrency", nullptr},
                   {"random_input_len", flags.random_input_len},
                   {"random_output_len", flags.random_output_len},
                   {"random_prefix_len", flags.random_prefix_len},
                   {"random_range_ratio", flags.random_range_ratio},
                   {"seed", flags.seed},
                   {"ignore_eos", flags.ignore_eos}};
  if (!std::isinf(flags.request_rate)) settings["request_rate"] = flags.request_rate;
  if (flags.max_concurrency > 0) settings["max_concurrency"] = flags.max_concurrency;
  return settings;
}

Result<void> save(const std::filesystem::path& path, const json& result) {
  std::ofstream file(path);
  file << result.dump(2, ' ', false, json::error_handler_t::replace) << '\n';
  file.close();
  if (file) return {};
  return fail(ErrorKind::kInvalidRequest, fmt::format("--save-result: {} cannot be written", path.string()),
              "--save-result");
}

// A connection a request: as many descriptors as this process may have.
void allow_descriptors() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

int bench_serve(const BenchServeFlags& flags) {
  allow_descriptors();
  auto client = client_of(flags.server);
  if (!client) return report(client.error());
  auto headers = key_header();
  if (!headers) return report(headers.error());
  auto model = flags.model.empty() ? first_model(**client, *headers) : flags.model;
  if (!model) return report(model.error());
  Load load(**client, flags, std::move(*headers), *model);
  if (auto tried = load.try_one(); !tried) return report(tried.error());
  const std::vector<Sample>& samples = load.run();
  const json figures = load_figures(samples, load.duration(), flags.goals);
  json result = settings_of(flags, *model);
  result.update(figures);
  fmt::print("{}",
             flags.json ? result.dump(2, ' ', false, json::error_handler_t::replace) + "\n" : load_table(figures));
  if (!flags.save_result.empty()) {
    result.update(load_details(samples));
    if (auto saved = save(flags.save_result, result); !saved) return report(saved.error());
  }
  return figures.at("completed") > 0 ? 0 : 1;
}

}  // namespace quire::apps
