// The command line: one struct a command, filled by parse(). Names are those that vLLM's users know; `_` equals `-`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "quire/engine.h"
#include "quire/error.h"

namespace quire::apps {

// A model behind the API.
struct ModelFlags {
  EngineOptions engine;
  std::string chat_template;  // a file, or the template itself
  std::string tool_call_parser = "auto";
  std::string reasoning_parser = "auto";
  bool generation_config = true;  // its sampling defaults count
};

struct ServeFlags {
  ModelFlags model;
  std::string host = "127.0.0.1";
  uint16_t port = 8000;
  std::string ssl_certfile;  // empty: plain HTTP
  std::string ssl_keyfile;
  std::vector<std::string> api_keys;
  std::vector<std::string> served_model_names;
  int drain_timeout_seconds = 30;
  std::string log_format = "text";  // or json
};

struct RunFlags {
  ModelFlags model;
  std::string prompt;  // empty: asked for, or read from standard input
  std::string system;
  std::vector<std::string> settings;  // NAME=VALUE
  bool verbose = false;
};

struct InspectFlags {
  EngineOptions engine;
};

struct BenchFlags {
  EngineOptions engine;
  std::vector<int> prompt_tokens = {512};  // 0: no prefill test
  int generated_tokens = 128;              // 0: no decode test
  std::vector<int> batch = {1};
  std::vector<int> depth;  // one request's decode behind prompts of these lengths, too
  int repetitions = 3;
  bool profile = false;  // each test once more with the time of its operators
  bool json = false;
};

// Where a server of the OpenAI API is.
struct ServerAddress {
  std::string base_url;  // goes before host and port
  std::string host = "127.0.0.1";
  uint16_t port = 8000;
};

struct BenchServeFlags {
  ServerAddress server;
  std::string model;  // empty: the first that the server lists
  std::string endpoint = "/v1/completions";
  int num_prompts = 1000;
  double request_rate = std::numeric_limits<double>::infinity();
  double burstiness = 1;
  int max_concurrency = 0;  // 0: no bound
  int random_input_len = 1024;
  int random_output_len = 128;
  int random_prefix_len = 0;
  double random_range_ratio = 0;
  int random_vocab_size = 32000;
  int64_t seed = 0;
  double temperature = 0;
  bool ignore_eos = false;
  std::vector<std::string> goodput;
  std::map<std::string, double> goals;  // those of `goodput`, in ms
  std::filesystem::path save_result;
  bool json = false;
};

struct VerifyFlags {
  ServerAddress server;
  std::filesystem::path request;   // JSON, as it was sent
  std::filesystem::path response;  // JSON, as it came
  std::optional<uint64_t> seed;    // that the server chose
};

struct SimulateFlags {
  EngineOptions engine;         // `model` may be a layer file, too
  std::filesystem::path trace;  // JSON lines
  double prefill_speed = 1000;  // tokens/s of a prompt, as `quire bench` measures it
  double decode_speed = 100;    // tokens/s of one request
  std::string retention = "turn-ends";
  std::vector<int64_t> sweep = {};  // a run for each of these cache sizes, in bytes
  bool compare_hybrid = false;      // each run also with one group for all layers
  bool json = false;
};

struct Command {
  enum class Kind {
    kServe,
    kRun,
    kInspect,
    kBench,
    kBenchServe,
    kSimulate,
    kVerify,
    kShown
  };  // kShown: help or version was printed
  Kind kind = Kind::kShown;
  ServeFlags serve;
  RunFlags run;
  InspectFlags inspect;
  BenchFlags bench;
  BenchServeFlags bench_serve;
  SimulateFlags simulate;
  VerifyFlags verify;
};

// An error of the engine as one of the command line: options that it names, and the one that is at fault, are called by
// their flags. `size_flag` is the one that gave the cache's size. Other errors stay as they are.
Error in_flags(Error error, std::string_view size_flag = "--kv-cache-memory-bytes");

// kInvalidRequest with one clear line for anything that is not understood.
Result<Command> parse(int argc, char** argv);

}  // namespace quire::apps
