// The typed requests of the HTTP API, and their strict parsing from a body.
//
// A parsed request is complete in itself: every number is in range, every list bounded, what this server cannot do has
// been refused by name. What still needs the model's text side (tokenising, rendering) is left to the caller. Names,
// defaults and meaning of what goes beyond OpenAI's are vLLM's. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "api/parsers/output_parser.h"
#include "quire/error.h"
#include "quire/request.h"
#include "text/grammar.h"

namespace quire::api {

// How tokens are chosen where somebody says so: a request, or the model's makers in generation_config.json, who are
// asked where the request is silent. What neither says is as SamplingParams has it.
struct SamplingDefaults {
  std::optional<float> temperature = {};
  std::optional<float> top_p = {};
  std::optional<int> top_k = {};
  std::optional<float> min_p = {};
  std::optional<float> repetition_penalty = {};
  std::optional<int> max_tokens = {};  // of a chat; max_new_tokens in the file
};

// Reads generation_config.json. kCorruptFile names the key whose value no request might have.
Result<SamplingDefaults> parse_generation_config(std::string_view json);
// "temperature 0.6, top_k 20"; empty if nothing is said.
std::string describe(const SamplingDefaults& defaults);

struct ParseLimits {
  int64_t vocab_size = 0;
  int64_t max_model_len = 0;  // tokens
  int64_t hidden_size = 0;    // numbers of an embedding
  int max_choices = 1024;     // prompts times n
  SamplingDefaults defaults = {};
};

inline constexpr int kDefaultMaxTokens = 16;  // of a completion; a chat goes on to the end of the context

using Prompt = std::variant<std::string, std::vector<TokenId>>;

// What both kinds of completion share.
struct GenerationOptions {
  std::optional<std::string> model = {};
  SamplingParams sampling = {};  // all but seed, choice and max_tokens
  std::optional<uint64_t> seed = {};
  std::optional<int> max_tokens = {};
  const char* max_tokens_field = "max_tokens";  // where the request said so, for errors
  int default_max_tokens = kDefaultMaxTokens;   // where max_tokens is not given; less if the model's length ends before
  int n = 1;
  bool stream = false;
  bool include_usage = false;           // a last chunk with usage
  bool continuous_usage_stats = false;  // usage in every chunk
  std::vector<std::string> stop = {};
  bool include_stop_str_in_output = false;
  bool skip_special_tokens = true;
  bool return_token_ids = false;
  bool return_tokens_as_token_ids = false;
  std::optional<int> truncate_prompt_tokens = {};  // keep this many last ones; -1: as many as the model takes
  int priority = 0;
  std::string cache_salt = {};
  std::optional<text::GrammarText> grammar = {};  // that the answers must follow
  bool explain = false;                           // tell what the cache did for it, and its times
};

struct CompletionRequest {
  GenerationOptions options;
  std::vector<Prompt> prompts;
  bool echo = false;
  bool add_special_tokens = true;
};

// What the chat template needs: JSON texts for its renderer.
struct ChatPrompt {
  const char* field = "messages";  // of the request, for errors
  std::string messages = {};       // a list
  std::string tools = {};          // a list, or empty
  std::string documents = {};      // a list, or empty
  std::string kwargs = {};         // an object, or empty
  std::string reasoning_effort = {};
  bool add_generation_prompt = true;
  bool continue_final_message = false;
  bool add_special_tokens = false;
  std::string final_content = {};  // the last message's, where it is to be continued
};

// Which tools a chat's answer may call.
struct ToolUse {
  enum class Choice : uint8_t { kNone, kAuto, kRequired, kNamed };

  std::vector<ToolSpec> tools = {};
  Choice choice = Choice::kAuto;
  std::string named = {};  // one of them, with kNamed
  bool parallel = true;    // more than one call in an answer
};

struct ChatRequest {
  GenerationOptions options;
  ChatPrompt prompt = {};
  ToolUse tool_use = {};
  bool include_reasoning = true;
};

// A chat in the shape of OpenAI's responses.
struct ResponsesRequest {
  ChatRequest chat;
  std::string echo = {};  // what the reply repeats of it: members, JSON
};

struct TokenizeRequest {
  std::optional<std::string> model = {};
  std::optional<std::string> text = {};  // or
  std::optional<ChatPrompt> chat = {};
  bool add_special_tokens = true;
  bool return_token_strs = false;
};

struct DetokenizeRequest {
  std::optional<std::string> model = {};
  std::vector<TokenId> tokens = {};
};

template <class T>
struct Parsed {
  T request;
  std::vector<std::string> ignored_fields;  // what the body held beyond the known
};

Result<Parsed<CompletionRequest>> parse_completion(std::string_view body, const ParseLimits& limits);
Result<Parsed<ChatRequest>> parse_chat(std::string_view body, const ParseLimits& limits);
Result<Parsed<ResponsesRequest>> parse_responses(std::string_view body, const ParseLimits& limits);
// A chat in Anthropic's shape; to count its tokens, it needs no max_tokens.
Result<Parsed<ChatRequest>> parse_messages(std::string_view body, const ParseLimits& limits);
Result<Parsed<ChatRequest>> parse_count_tokens(std::string_view body, const ParseLimits& limits);
Result<Parsed<TokenizeRequest>> parse_tokenize(std::string_view body);
Result<Parsed<DetokenizeRequest>> parse_detokenize(std::string_view body, const ParseLimits& limits);

}  // namespace quire::api
