#include "api/parsers/output_parser.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <utility>

#include "api/parsers/pending_text.h"
#include "api/parsers/tool_parsers.h"
#include "base/utf8.h"

namespace quire::api {
namespace {

template <class Format>
struct Name {
  std::string_view name;
  Format format;
};
// The first name of a format is the one that is told.
constexpr std::array kToolNames = {Name<ToolFormat>{"hermes", ToolFormat::kHermes},
                                   Name<ToolFormat>{"llama3_json", ToolFormat::kLlama3Json},
                                   Name<ToolFormat>{"mistral", ToolFormat::kMistral},
                                   Name<ToolFormat>{"openai", ToolFormat::kOpenAi},
                                   Name<ToolFormat>{"glm45", ToolFormat::kGlm45},
                                   Name<ToolFormat>{"glm47", ToolFormat::kGlm45},
                                   Name<ToolFormat>{"qwen3_coder", ToolFormat::kQwen3Coder},
                                   Name<ToolFormat>{"qwen3_xml", ToolFormat::kQwen3Coder},
                                   Name<ToolFormat>{"json", ToolFormat::kJson}};
constexpr std::array kReasoningNames = {Name<ReasoningFormat>{"qwen3", ReasoningFormat::kThink},
                                        Name<ReasoningFormat>{"deepseek_r1", ReasoningFormat::kThink},
                                        Name<ReasoningFormat>{"glm45", ReasoningFormat::kThink},
                                        Name<ReasoningFormat>{"mistral", ReasoningFormat::kMistral},
                                        Name<ReasoningFormat>{"openai_gptoss", ReasoningFormat::kOpenAi}};

template <class Format, size_t N>
Result<std::optional<Format>> find_format(const std::array<Name<Format>, N>& names, std::string_view name) {
  if (name == "none") return std::optional<Format>();
  std::vector<std::string_view> all = {"none"};
  for (const Name<Format>& known : names) {
    if (known.name == name) return std::optional(known.format);
    all.push_back(known.name);
  }
  return fail(ErrorKind::kInvalidRequest, fmt::format("{} is none of {}", in_quotes(name), fmt::join(all, ", ")));
}

struct Markers {
  std::string_view begin, end;
};
Markers markers_of(ReasoningFormat format) {
  if (format == ReasoningFormat::kMistral) return {"[THINK]", "[/THINK]"};
  return {"<think>", "</think>"};
}

std::unique_ptr<OutputParser> make_tool_parser(ToolFormat format, std::vector<ToolSpec> tools) {
  switch (format) {
    case ToolFormat::kHermes:
      return make_hermes_parser();
    case ToolFormat::kMistral:
      return make_mistral_parser();
    case ToolFormat::kLlama3Json:
    case ToolFormat::kJson:
      return make_bare_json_parser(std::move(tools));
    case ToolFormat::kGlm45:
      return make_glm45_parser(std::move(tools));
    case ToolFormat::kQwen3Coder:
      return make_qwen3_coder_parser(std::move(tools));
    case ToolFormat::kOpenAi:
      return make_harmony_parser(true);
  }
  return make_plain_parser();
}

}  // namespace

Result<std::optional<ToolFormat>> tool_format(std::string_view name) { return find_format(kToolNames, name); }
Result<std::optional<ReasoningFormat>> reasoning_format(std::string_view name) {
  return find_format(kReasoningNames, name);
}

std::string_view name_of(ToolFormat format) {
  return std::ranges::find(kToolNames, format, &Name<ToolFormat>::format)->name;
}
std::string_view name_of(ReasoningFormat format) {
  return std::ranges::find(kReasoningNames, format, &Name<ReasoningFormat>::format)->name;
}

std::string describe(const OutputFormats& formats) {
  std::string text;
  if (formats.tools) text += fmt::format("tool calls: {}", name_of(*formats.tools));
  if (formats.reasoning) text += fmt::format("{}reasoning: {}", text.empty() ? "" : ", ", name_of(*formats.reasoning));
  return text;
}

OutputFormats formats_of(std::string_view chat_template) {
  const auto has = [&](std::string_view marker) { return chat_template.find(marker) != std::string_view::npos; };
  if (has("<|channel|>")) return {ToolFormat::kOpenAi, ReasoningFormat::kOpenAi};
  OutputFormats formats;
  if (has("<arg_key>")) {
    formats.tools = ToolFormat::kGlm45;
  } else if (has("<tool_call>")) {
    formats.tools = has("<function=") ? ToolFormat::kQwen3Coder : ToolFormat::kHermes;
  } else if (has("[TOOL_CALLS]")) {
    formats.tools = ToolFormat::kMistral;
  } else if (has("dictionary of argument name")) {
    formats.tools = ToolFormat::kLlama3Json;
  }
  if (has("</think>")) formats.reasoning = ReasoningFormat::kThink;
  if (has("[/THINK]")) formats.reasoning = ReasoningFormat::kMistral;
  return formats;
}

std::vector<std::string_view> markers_of(const OutputFormats& formats) {
  if (formats.tools == ToolFormat::kOpenAi || formats.reasoning == ReasoningFormat::kOpenAi)
    return {"<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>"};
  std::vector<std::string_view> markers;
  if (formats.reasoning) {
    const auto [begin, end] = markers_of(*formats.reasoning);
    markers = {begin, end};
  }
  if (formats.tools)
    markers.insert(markers.end(), {"<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>",
                                   "</arg_value>", "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]", "<|python_tag|>"});
  return markers;
}

std::unique_ptr<OutputParser> make_calls_parser(std::vector<ToolSpec> tools) {
  return make_bare_json_parser(std::move(tools));
}

std::unique_ptr<OutputParser> make_output_parser(const OutputFormats& formats, std::vector<ToolSpec> tools,
                                                 std::string_view prompt_end) {
  const bool calls = formats.tools && !tools.empty();
  const bool harmony = formats.reasoning == ReasoningFormat::kOpenAi || (calls && formats.tools == ToolFormat::kOpenAi);
  if (harmony) return make_harmony_parser(calls);
  if (!calls && !formats.reasoning) return nullptr;
  auto content = calls ? make_tool_parser(*formats.tools, std::move(tools)) : make_plain_parser();
  if (!formats.reasoning) return content;
  const auto [begin, end] = markers_of(*formats.reasoning);
  prompt_end = prompt_end.substr(0, prompt_end.find_last_not_of(kBlanks) + 1);
  return make_reasoning_parser(begin, end, prompt_end.ends_with(begin), std::move(content));
}

}  // namespace quire::api
