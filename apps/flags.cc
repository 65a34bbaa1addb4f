#include "flags.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cctype>
#include <limits>
#include <map>

#include "client_flags.h"
#include "config_args.h"
#include "engine/loaded_model.h"
#include "sched/simulator.h"
#include "validators.h"

namespace quire::apps {
namespace {

// `--max_model_len` is `--max-model-len`; values after '=' stay as they are.
std::vector<std::string> normalised(int argc, char** argv) {
  std::vector<std::string> args;
  for (int i = 1; i < argc; ++i) {
    std::string arg = argv[i];
    if (arg.starts_with("--"))
      std::replace(arg.begin(), arg.begin() + static_cast<long>(std::min(arg.find('='), arg.size())), '_', '-');
    args.push_back(std::move(arg));
  }
  std::ranges::reverse(args);  // as CLI11 wants them
  return args;
}

CLI::Validator within(engine::OptionRange range) { return integer(range.low, range.high); }

// Tokens/s that the simulator can count with.
constexpr double kFastest = 1e9;
constexpr double kSlowest = 1e9 / static_cast<double>(sched::kMostCostNs);

// What a command's flags say before it is checked and goes into its options.
struct FlagTexts {
  std::string dtype = "auto";
  std::string quantization = "none";
  std::string lm_head_quantization = "auto";
  std::string kv_cache_dtype = "auto";
  std::string max_model_len;
  std::string offload_experts = "auto";
  std::string policy = "fcfs";
  int64_t step_time_ms = 0;
  int64_t kv_cache_bytes = 0;
  int block_size = 0;
  bool no_prefix_caching = false;
  std::string config;                      // of serve and run
  std::string generation_config = "auto";  // of serve and run
  bool auto_tool_choice = true;            // of serve and run
};

void add_engine_flags(CLI::App& app, EngineOptions& o, FlagTexts& t) {
  app.add_option("MODEL,--model", o.model, "A folder in Hugging Face format, or a .gguf file");
  app.add_option("--hf-config-path", o.hf_config_path,
                 "A config.json, or a folder with one, instead of the model's own")
      ->check(not_empty());
  app.add_option("--hf-overrides", o.hf_overrides, "A JSON object that is merged into the model's configuration");
  app.add_option("--dtype", t.dtype, "Numeric profile: auto, float32, bfloat16 or q8 (quantised files)")
      ->check(CLI::IsMember({"auto", "float32", "bfloat16", "q8"}));
  app.add_option("--quantization", t.quantization,
                 "What matrices of floats are rounded to while loading: none, int8, int4")
      ->check(CLI::IsMember({"none", "int8", "int4"}));
  app.add_option("--lm-head-quantization", t.lm_head_quantization,
                 "The LM head: auto (int8 if --quantization is not none), none or int8")
      ->check(CLI::IsMember({"auto", "none", "int8"}));
  app.add_option("--max-model-len", t.max_model_len, "Tokens of the longest request; 'auto' or -1 for what fits");
  app.add_option("--offload-experts", t.offload_experts,
                 "Keep experts in a file instead of memory: auto (if they do not fit), never or always")
      ->check(CLI::IsMember({"auto", "never", "always"}));
  app.add_option("--offload-dir", o.offload_dir, "The folder for that file; default $TMPDIR, or /var/tmp");
  app.add_option("--kv-cache-memory-bytes", t.kv_cache_bytes, "Memory for the KV cache; default half of what is free")
      ->check(integer(1, std::numeric_limits<int64_t>::max()));
  app.add_option("--kv-cache-dtype", t.kv_cache_dtype, "Keys and values: auto (as the profile says), bfloat16 or int8")
      ->check(CLI::IsMember({"auto", "bfloat16", "int8"}));
  app.add_option("--block-size", t.block_size, "Tokens of a KV cache block, a multiple of 16; default 32")
      ->check(within(engine::kBlockSizes));
  app.add_option("--kv-cache-layout", o.kv_cache_layout,
                 "Physical order: BLHNC (default), LBHNC, LHBNC, BHLNC; with one kv head also LBNHC, BLNHC");
  CLI::Option* caching = app.add_flag("--enable-prefix-caching", o.prefix_caching, "Reuse cached prefixes; on");
  app.add_flag("--no-enable-prefix-caching", t.no_prefix_caching, "Do not reuse cached prefixes")->excludes(caching);
  app.add_flag("!--disable-hybrid-kv-cache-manager", o.hybrid_kv_cache, "Keep window layers like full ones");
  app.add_option("--max-num-seqs", o.max_num_seqs, "Requests that run together")
      ->capture_default_str()
      ->check(within(engine::kSequences));
  app.add_option("--max-num-batched-tokens", o.max_num_batched_tokens, "Most tokens of a step")
      ->capture_default_str()
      ->check(within(engine::kBatchedTokens));
  app.add_option("--max-waiting-requests", o.max_waiting_requests, "Most requests that wait")
      ->capture_default_str()
      ->check(within(engine::kWaitingRequests));
  app.add_option("--scheduling-policy", t.policy, "fcfs, or priority: requests with a lower priority value first")
      ->check(CLI::IsMember({"fcfs", "priority"}));
  app.add_option("--step-time-ms", t.step_time_ms, "Aim for a step while others decode; default 100")
      ->check(within(engine::kStepMilliseconds));
  app.add_option("--threads", o.threads, "Threads that compute; default, and 0: the physical cores allowed")
      ->check(within(engine::kThreads));
  app.add_option("--cpu-affinity", o.cpu_affinity,
                 "CPUs that the threads are pinned to: auto, or a list like 0-3,8; default: none");
  app.add_flag("--check-integrity", o.check_integrity, "Check the cache after every step (slow)");
}

void add_model_flags(CLI::App& app, ModelFlags& f, FlagTexts& t) {
  app.add_option("--config", t.config, "A YAML file of flags; those of the command line go before it")
      ->check(not_empty());
  add_engine_flags(app, f.engine, t);
  app.add_option("--chat-template", f.chat_template, "A Jinja file, or the template itself");
  app.add_option("--tool-call-parser", f.tool_call_parser,
                 "How the model writes calls of tools: auto (by its chat template), none, or a format of docs/api.md")
      ->capture_default_str();
  app.add_option("--reasoning-parser", f.reasoning_parser, "How the model writes its reasoning: auto, none or a format")
      ->capture_default_str();
  app.add_flag("--enable-auto-tool-choice", t.auto_tool_choice, "Look for calls where a request has tools; always on");
  app.add_option("--generation-config", t.generation_config,
                 "auto: the sampling defaults of generation_config.json; vllm: none of them")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "vllm"}));
}

void add_run_flags(CLI::App& app, RunFlags& f, FlagTexts& t) {
  add_model_flags(app, f.model, t);
  app.add_option("PROMPT,--prompt", f.prompt, "Answer this and end");
  app.add_option("--system", f.system, "The system message");
  app.add_option("--set", f.settings, "A parameter of the requests, like temperature=0; may stand several times")
      ->allow_extra_args(false);
  app.add_flag("--verbose", f.verbose, "Tokens and times behind each answer");
}

void add_serve_flags(CLI::App& app, ServeFlags& f, FlagTexts& t) {
  add_model_flags(app, f.model, t);

  app.add_option("--host", f.host, "Address to listen on")->capture_default_str();
  app.add_option("--port", f.port, "Port; 0 takes a free one")->capture_default_str()->check(integer(0, 65535));
  CLI::Option* certificate =
      app.add_option("--ssl-certfile", f.ssl_certfile, "A chain of certificates in PEM: clients must speak TLS")
          ->check(not_empty());
  app.add_option("--ssl-keyfile", f.ssl_keyfile, "Its key in PEM; default: it stands in the same file")
      ->check(not_empty())
      ->needs(certificate);
  app.add_option("--api-key", f.api_keys, "Keys that clients must send one of")->expected(1, 64);
  app.add_option("--served-model-name", f.served_model_names, "Names of the model in the API")->expected(1, 64);
  app.add_option("--log-format", f.log_format, "Lines of the log: text, or a JSON object each")
      ->capture_default_str()
      ->check(CLI::IsMember({"text", "json"}));
  app.add_option("--drain-timeout", f.drain_timeout_seconds, "Seconds to finish running requests in")
      ->capture_default_str()
      ->check(integer(0, 86400));
}

void add_bench_flags(CLI::App& app, BenchFlags& f) {
  app.add_option("-p,--n-prompt", f.prompt_tokens, "Tokens to prefill; several values, several tests; 0 for none")
      ->capture_default_str()
      ->check(integer(0, 1 << 20));
  app.add_option("-n,--n-gen", f.generated_tokens, "Tokens to generate; 0 for none")
      ->capture_default_str()
      ->check(integer(0, 1 << 20));
  app.add_option("--batch", f.batch, "Requests that decode together; several values, several tests")
      ->capture_default_str()
      ->check(integer(1, 4096));
  app.add_option("--depth", f.depth,
                 "Also one request's decode behind prompts of so many tokens; several values, several tests")
      ->check(integer(1, 1 << 20));
  app.add_option("-r,--repetitions", f.repetitions, "Runs of each test")
      ->capture_default_str()
      ->check(integer(1, 1000));
  app.add_flag("--profile", f.profile, "Also the time of each operator, beside the machine's peaks");
  app.add_flag("--json", f.json, "Print JSON");
}

void add_simulate_flags(CLI::App& app, SimulateFlags& f) {
  app.add_option("TRACE,--trace", f.trace, "Requests, one JSON object a line")->required();
  app.add_option("--prefill-speed", f.prefill_speed, "Tokens/s of a prompt, as `quire bench` gives for pp512")
      ->capture_default_str()
      ->check(number(kSlowest, kFastest));
  app.add_option("--decode-speed", f.decode_speed, "Tokens/s of one request, as `quire bench` gives for tg128")
      ->capture_default_str()
      ->check(number(kSlowest, kFastest));
  app.add_option("--retention", f.retention, "What stays longest of windows: turn-ends as in serve, or every-boundary")
      ->capture_default_str()
      ->check(CLI::IsMember({"every-boundary", "turn-ends"}));
  app.add_option("--sweep", f.sweep, "Cache sizes in bytes: one run for each, side by side")
      ->expected(1, 16)
      ->check(integer(1, std::numeric_limits<int64_t>::max()));
  app.add_flag("--compare-hybrid", f.compare_hybrid, "Each run also with the hybrid cache off");
  app.add_flag("--json", f.json, "Print JSON");
}

Result<void> finish(EngineOptions& o, const FlagTexts& t) {
  if (t.dtype == "float32") o.profile = Profile::kF32;
  if (t.dtype == "bfloat16") o.profile = Profile::kBF16;
  if (t.dtype == "q8") o.profile = Profile::kQ8;
  if (t.quantization == "int8") o.quantization = Quantization::kInt8;
  if (t.quantization == "int4") o.quantization = Quantization::kInt4;
  if (t.lm_head_quantization == "none") o.lm_head_quantization = LmHeadQuantization::kNone;
  if (t.lm_head_quantization == "int8") o.lm_head_quantization = LmHeadQuantization::kInt8;
  if (t.offload_experts == "never") o.expert_offload = ExpertOffload::kNever;
  if (t.offload_experts == "always") o.expert_offload = ExpertOffload::kAlways;
  if (t.no_prefix_caching) o.prefix_caching = false;
  if (t.kv_cache_dtype == "bfloat16") o.kv_cache_dtype = KvCacheDtype::kBFloat16;
  if (t.kv_cache_dtype == "int8") o.kv_cache_dtype = KvCacheDtype::kInt8;
  o.priority_scheduling = t.policy == "priority";
  if (t.kv_cache_bytes > 0) o.kv_cache_bytes = static_cast<size_t>(t.kv_cache_bytes);
  if (t.block_size > 0) o.block_size = t.block_size;
  if (t.step_time_ms > 0) o.step_time = std::chrono::milliseconds(t.step_time_ms);
  if (t.max_model_len.empty() || t.max_model_len == "auto" || t.max_model_len == "-1") return {};
  const auto length = plain_integer(t.max_model_len);
  const auto [low, high] = engine::kModelLengths;
  if (!length || *length < low || *length > high)
    return fail(ErrorKind::kInvalidRequest,
                fmt::format("--max-model-len must be an integer from {} to {}, 'auto' or -1, not '{}'", low, high,
                            t.max_model_len),
                "--max-model-len");
  o.max_model_len = *length;
  return {};
}

// Not CLI11's own check: `bench serve` stands below `bench` and takes no model.
Result<void> check_model(const EngineOptions& options) {
  if (!options.model.empty()) return {};
  return fail(ErrorKind::kInvalidRequest, "MODEL is missing: a folder in Hugging Face format, or a .gguf file",
              "MODEL");
}

Result<void> check(const BenchFlags& flags) {
  if (auto model = check_model(flags.engine); !model) return model;
  if (flags.generated_tokens == 1)
    return fail(ErrorKind::kInvalidRequest, "-n must be 0, or at least 2: the first token belongs to the prompt", "-n");
  if (std::ranges::all_of(flags.prompt_tokens, [](int tokens) { return tokens == 0; }) && flags.generated_tokens == 0)
    return fail(ErrorKind::kInvalidRequest, "-p and -n are both 0: there is nothing to measure", "-p");
  return {};
}

}  // namespace

Error in_flags(Error error, std::string_view size_flag) {
  constexpr std::string_view kOptions[] = {"hf_config_path",
                                           "hf_overrides",
                                           "dtype",
                                           "quantization",
                                           "lm_head_quantization",
                                           "offload_experts",
                                           "offload_dir",
                                           "max_model_len",
                                           "kv_cache_memory_bytes",
                                           "block_size",
                                           "kv_cache_layout",
                                           "enable_prefix_caching",
                                           "disable_hybrid_kv_cache_manager",
                                           "max_num_seqs",
                                           "max_num_batched_tokens",
                                           "cpu_affinity",
                                           "ssl_certfile",
                                           "ssl_keyfile"};
  if (std::ranges::find(kOptions, error.param) == std::end(kOptions)) return error;
  const auto flag_of = [&](std::string_view option) {
    if (option == "kv_cache_memory_bytes") return std::string(size_flag);
    std::string flag = "--" + std::string(option);
    std::ranges::replace(flag, '_', '-');
    return flag;
  };
  const auto is_word = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-'; };
  std::string text;
  for (size_t at = 0, end = 0; at < error.message.size(); at = end) {
    end = at + 1;
    while (end < error.message.size() && is_word(error.message[end]) == is_word(error.message[at])) ++end;
    const std::string word = error.message.substr(at, end - at);
    text += std::ranges::find(kOptions, word) == std::end(kOptions) ? word : flag_of(word);
  }
  const std::string flag = flag_of(error.param);
  if (text.find(flag) == std::string::npos) text = flag + ": " + text;
  return {error.kind, text, flag};
}

Result<Command> parse(int argc, char** argv) {
  Command command;
  FlagTexts serve_texts, run_texts, inspect_texts, bench_texts, simulate_texts;
  CLI::App app("Quire serves language models on CPUs; equal requests get equal answers, bit for bit.", "quire");
  app.set_version_flag("--version", "quire 0.1.0");
  app.require_subcommand(1);

  CLI::App* serve = app.add_subcommand("serve", "Serve a model through the OpenAI API");
  add_serve_flags(*serve, command.serve, serve_texts);

  CLI::App* run = app.add_subcommand("run", "Chat with a model in the terminal");
  add_run_flags(*run, command.run, run_texts);

  CLI::App* inspect = app.add_subcommand("inspect", "Show a model's architecture and KV cache plan, loading nothing");
  add_engine_flags(*inspect, command.inspect.engine, inspect_texts);

  CLI::App* bench = app.add_subcommand("bench", "Measure prefill and decode speed");
  add_engine_flags(*bench, command.bench.engine, bench_texts);
  add_bench_flags(*bench, command.bench);
  CLI::App* bench_serve = bench->add_subcommand("serve", "Measure a server under load, as its clients see it");
  add_bench_serve_flags(*bench_serve, command.bench_serve);

  CLI::App* simulate = app.add_subcommand("simulate", "Replay a trace of requests against cache and scheduler alone");
  add_engine_flags(*simulate, command.simulate.engine, simulate_texts);
  add_simulate_flags(*simulate, command.simulate);

  CLI::App* verify = app.add_subcommand("verify", "Ask a server again for a saved answer, and compare");
  add_verify_flags(*verify, command.verify);

  const std::array commands = {serve, run, inspect, bench, simulate, verify};
  const auto no_command =
      fail(ErrorKind::kInvalidRequest,
           fmt::format("the first argument must be serve, run, inspect, bench, simulate or verify{}",
                       argc > 1 ? fmt::format(", not '{}'", argv[1]) : ""));
  if (argc > 1 && argv[1][0] != '-' &&
      std::ranges::none_of(commands, [&](CLI::App* command) { return command->check_name(argv[1]); }))
    return no_command;
  std::vector<std::string> args = normalised(argc, argv);
  const auto parse_args = [&]() -> Result<bool> {
    try {
      app.parse(std::vector<std::string>(args));
    } catch (const CLI::Success& e) {
      app.exit(e);
      return false;
    } catch (const CLI::ParseError& e) {
      return app.get_subcommands().empty() ? no_command : fail(ErrorKind::kInvalidRequest, e.what());
    }
    return true;
  };
  auto parsed = parse_args();
  if (!parsed) return std::unexpected(parsed.error());
  if (!*parsed) return command;
  const std::string config = serve->parsed() ? serve_texts.config : run_texts.config;
  if (!config.empty()) {
    auto added = config_args(serve->parsed() ? *serve : *run, config);
    if (!added) return std::unexpected(added.error());
    args.insert(args.begin(), added->rbegin(), added->rend());
    parsed = parse_args();
    if (!parsed)
      return fail(ErrorKind::kInvalidRequest, fmt::format("--config: {}: {}", config, parsed.error().message));
  }
  command.serve.model.generation_config = serve_texts.generation_config == "auto";
  command.run.model.generation_config = run_texts.generation_config == "auto";
  Result<void> checked;
  if (serve->parsed()) {
    command.kind = Command::Kind::kServe;
    checked = check_model(command.serve.model.engine);
  } else if (run->parsed()) {
    command.kind = Command::Kind::kRun;
    checked = check_model(command.run.model.engine);
  } else if (inspect->parsed()) {
    command.kind = Command::Kind::kInspect;
    checked = check_model(command.inspect.engine);
  } else if (bench_serve->parsed()) {
    command.kind = Command::Kind::kBenchServe;
    checked = finish(command.bench_serve);
  } else if (bench->parsed()) {
    command.kind = Command::Kind::kBench;
    checked = check(command.bench);
  } else if (verify->parsed()) {
    command.kind = Command::Kind::kVerify;
  } else {
    command.kind = Command::Kind::kSimulate;
    checked = check_model(command.simulate.engine);
  }
  if (!checked) return std::unexpected(checked.error());
  for (auto& [engine, texts] :
       {std::pair{&command.serve.model.engine, &serve_texts}, std::pair{&command.run.model.engine, &run_texts},
        std::pair{&command.inspect.engine, &inspect_texts}, std::pair{&command.bench.engine, &bench_texts},
        std::pair{&command.simulate.engine, &simulate_texts}})
    if (auto finished = finish(*engine, *texts); !finished) return std::unexpected(finished.error());
  return command;
}

}  // namespace quire::apps
