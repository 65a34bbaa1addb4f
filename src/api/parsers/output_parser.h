// Takes a chat's answer apart while it comes: what is said, what is reasoned, and the calls of tools.
//
// Every model family has its own way to write these. What an OutputParser makes of a text depends on the text alone,
// not on how it was cut: pieces of one kind that follow each other may be joined. Text that begins like a call and
// turns out to be none comes out as content; a call whose name has come stays one, whatever follows, with the arguments
// as they were written. One thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quire/error.h"

namespace quire::api {

struct OutputPiece {
  enum class Kind : uint8_t { kContent, kReasoning, kCall, kArguments };

  Kind kind = Kind::kContent;
  int call = 0;      // of kCall and kArguments: which, from 0 on
  std::string text;  // of kCall: the tool's name

  bool operator==(const OutputPiece&) const = default;
};

// The tools of a request, as far as reading calls needs them.
struct ToolSpec {
  std::string name;
  std::set<std::string, std::less<>> strings = {};  // parameters that are strings by their schema
  std::string parameters = R"({"type":"object"})";  // the schema, JSON
};

class OutputParser {
 public:
  virtual ~OutputParser() = default;
  // Pieces are appended to `out`.
  virtual void feed(std::string_view text, std::vector<OutputPiece>& out) = 0;
  // The end of the answer.
  virtual void finish(std::vector<OutputPiece>& out) = 0;
};

// How a model writes calls and reasoning; named as vLLM names its parsers.
enum class ToolFormat : uint8_t { kHermes, kLlama3Json, kMistral, kGlm45, kQwen3Coder, kOpenAi, kJson };
enum class ReasoningFormat : uint8_t { kThink, kMistral, kOpenAi };

struct OutputFormats {
  std::optional<ToolFormat> tools = {};
  std::optional<ReasoningFormat> reasoning = {};
};

// kInvalidRequest lists the names. "none" is no format.
Result<std::optional<ToolFormat>> tool_format(std::string_view name);
Result<std::optional<ReasoningFormat>> reasoning_format(std::string_view name);
std::string_view name_of(ToolFormat format);
std::string_view name_of(ReasoningFormat format);

// "tool calls: hermes, reasoning: qwen3"; empty if there is neither.
std::string describe(const OutputFormats& formats);

// What a chat template asks its model to write, by the markers that it holds.
OutputFormats formats_of(std::string_view chat_template);

// Special tokens, by name, that the formats' parsers must see in the text.
std::vector<std::string_view> markers_of(const OutputFormats& formats);

// `tools` empty: calls are not looked for. `prompt_end` is the end of the rendered chat: it may have opened the
// reasoning. Null if there is nothing to look for.
std::unique_ptr<OutputParser> make_output_parser(const OutputFormats& formats, std::vector<ToolSpec> tools,
                                                 std::string_view prompt_end);

// An answer that can be nothing but calls: the arguments of one tool, or objects and lists of {"name", "parameters"}.
std::unique_ptr<OutputParser> make_arguments_parser(std::string tool);
std::unique_ptr<OutputParser> make_calls_parser(std::vector<ToolSpec> tools);

}  // namespace quire::api
