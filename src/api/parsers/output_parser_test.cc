#include "api/parsers/output_parser.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "api/parsers/pending_text.h"

namespace quire::api {
namespace {

using Pieces = std::vector<OutputPiece>;
using Kind = OutputPiece::Kind;
using nlohmann::json;

const std::vector<ToolSpec> kTools = {{"get_weather", {"city", "unit"}}, {"calc", {"expr"}}, {"now", {}}};

struct Chat {
  OutputFormats formats;
  std::vector<ToolSpec> tools = kTools;
  std::string prompt_end = {};
};

Pieces joined(const Pieces& pieces) {
  Pieces all;
  for (const OutputPiece& piece : pieces) {
    if (piece.kind == Kind::kCall) {
      all.push_back(piece);
    } else {
      add_piece(all, piece.kind, piece.call, piece.text);
    }
  }
  return all;
}

// Cut behind each place that `cut` says.
Pieces parse(const Chat& chat, const std::string& text, const std::function<bool(size_t)>& cut) {
  const auto parser = make_output_parser(chat.formats, chat.tools, chat.prompt_end);
  Pieces pieces;
  size_t begin = 0;
  for (size_t end = 1; end <= text.size(); ++end) {
    if (end < text.size() && !cut(end)) continue;
    parser->feed(std::string_view(text).substr(begin, end - begin), pieces);
    begin = end;
  }
  parser->finish(pieces);
  return joined(pieces);
}

Pieces parse_whole(const Chat& chat, const std::string& text) {
  return parse(chat, text, [](size_t) { return false; });
}

// What people see of it: "reason:a content:b call:f args:{}".
std::string shown(const Pieces& pieces) {
  std::string all;
  for (const OutputPiece& piece : pieces) {
    const char* names[] = {"content", "reason", "call", "args"};
    all += fmt::format("{}{}:{}", all.empty() ? "" : "|", names[static_cast<size_t>(piece.kind)], piece.text);
  }
  return all;
}

const Chat kHermes{{.tools = ToolFormat::kHermes}};
const Chat kMistral{{.tools = ToolFormat::kMistral}};
const Chat kLlama{{.tools = ToolFormat::kLlama3Json}};
const Chat kGlm{{.tools = ToolFormat::kGlm45}};
const Chat kCoder{{.tools = ToolFormat::kQwen3Coder}};
const Chat kHarmony{{.tools = ToolFormat::kOpenAi, .reasoning = ReasoningFormat::kOpenAi}};
const Chat kThink{{.reasoning = ReasoningFormat::kThink}};
const Chat kThinkOpened{{.reasoning = ReasoningFormat::kThink}, kTools, "assistant\n<think>\n"};
const Chat kThinkHermes{{.tools = ToolFormat::kHermes, .reasoning = ReasoningFormat::kThink}};

struct Case {
  const Chat& chat;
  std::string text;
  std::string expected;
};

const std::vector<Case> kCases = {
    {kHermes, "just text <b> ", "content:just text <b> "},
    {kHermes, "Let me see.\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>",
     "content:Let me see.|call:now|args:{}"},
    {kHermes,
     "<tool_call>{\"name\":\"now\"}</tool_call>\n<tool_call>{\"arguments\":{\"a\":[1,{}]},\"name\":\"f\"}</tool_call>",
     "call:now|args:{}|call:f|args:{\"a\":[1,{}]}"},
    {kHermes, R"(<tool_call>{"name": "f", "arguments": "{\"a\": \"\\\"}\"}"}</tool_call> done)",
     R"(call:f|args:{"a": "\"}"}|content:done)"},
    {kHermes, R"(<tool_call>{"id": 3, "name": "f", "arguments": {"s": "}]\\"}, "more": [1]}</tool_call>)",
     R"(call:f|args:{"s": "}]\\"})"},
    {kHermes, "<tool_call>no JSON</tool_call>", "content:<tool_call>no JSON</tool_call>"},
    {kHermes, "<tool_call>{\"arguments\": {}}</tool_call>", "content:<tool_call>{\"arguments\": {}}</tool_call>"},
    {kHermes, "<tool_call>{\"name\": 5}", "content:<tool_call>{\"name\": 5}"},
    {kHermes, "<tool_call>{\"na", "content:<tool_call>{\"na"},
    {kHermes, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1", "call:f|args:{\"a\": 1"},
    {kHermes, "<tool_call>{\"name\": \"f\", \"arguments\": {}}} junk</tool_call>tail", "call:f|args:{}|content:tail"},
    {kHermes, "a <tool_ca", "content:a <tool_ca"},
    {kHermes, "{\"name\": \"now\"}", "content:{\"name\": \"now\"}"},
    {kMistral, R"([TOOL_CALLS][{"name": "now", "arguments": {}}, {"name": "f", "arguments": {"a": 1}}])",
     R"(call:now|args:{}|call:f|args:{"a": 1})"},
    {kMistral, R"(Sure. [TOOL_CALLS]now[ARGS]{}[TOOL_CALLS]f[CALL_ID]abc[ARGS]{"a": "]"})",
     R"(content:Sure.|call:now|args:{}|call:f|args:{"a": "]"})"},
    {kMistral, R"([TOOL_CALLS]f{"a": 1})", R"(call:f|args:{"a": 1})"},
    {kMistral, "[TOOL_CALLS][1, 2]", "content:[TOOL_CALLS][1, 2]"},
    {kMistral, "[TOOL_CALLS]nam", "content:[TOOL_CALLS]nam"},
    {kLlama, R"({"name": "calc", "parameters": {"expr": "1"}})", R"(call:calc|args:{"expr": "1"})"},
    {kLlama, R"(<|python_tag|>{"name": "now", "parameters": {}}; {"name": "calc", "parameters": {"expr": "1"}})",
     R"(call:now|args:{}|call:calc|args:{"expr": "1"})"},
    {kLlama, R"([{"name": "now"}, {"name": "now"}])", "call:now|args:{}|call:now|args:{}"},
    {kLlama, R"({"name": "unknown", "parameters": {}})", R"(content:{"name": "unknown", "parameters": {}})"},
    {kLlama, R"( {"a": 1} and text)", R"(content: {"a": 1} and text)"},
    {kLlama, "[1, 2, 3]", "content:[1, 2, 3]"},
    {kLlama, "<|python_tag|>print(1)", "content:<|python_tag|>print(1)"},
    {kLlama, "", ""},
    {kGlm, "Now.\n<tool_call>now\n</tool_call>", "content:Now.|call:now|args:{}"},
    {kGlm,
     "<tool_call>calc<arg_key>expr</arg_key><arg_value>1</arg_value><arg_key>digits</arg_key><arg_value>3</arg_value></"
     "tool_call>",
     R"(call:calc|args:{"expr": "1", "digits": 3})"},
    {kGlm,
     "<tool_call>calc\n<arg_key>o</arg_key>\n<arg_value>{\"deg\": "
     "tru}</arg_value>\n<arg_key>p</arg_key>\n<arg_value>a\n\"b\"</arg_value>",
     R"(call:calc|args:{"o": "{\"deg\": tru}", "p": "a\n\"b\"")"},
    {kGlm, "<tool_call></tool_call>", "content:<tool_call></tool_call>"},
    {kCoder,
     "<tool_call>\n<function=calc>\n<parameter=expr>\n1\n+2\n</parameter>\n<parameter=digits>\n[3]\n</parameter>\n</"
     "function>\n</tool_call>",
     R"(call:calc|args:{"expr": "1\n+2", "digits": [3]})"},
    {kCoder, "<tool_call>\n<function=now>\n</function>\n</tool_call>\n", "call:now|args:{}"},
    {kCoder, "<tool_call>\n{}", "content:<tool_call>\n{}"},
    {kCoder,
     "<tool_call>\n<function=now>\n</function>\n<function=calc>\n<parameter=expr>\n1\n</parameter>\n</function>\n"
     "</tool_call>\nDone.",
     R"(call:now|args:{}|call:calc|args:{"expr": "1"}|content:Done.)"},
    {kCoder, "<tool_call><function=calc><parameter=expr>1</parameter></function>", R"(call:calc|args:{"expr": "1"})"},
    {kHarmony, "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Hi <|b|>!",
     "reason:Hm.|content:Hi <|b|>!"},
    {kHarmony, "<|channel|>commentary to=functions.calc <|constrain|>json<|message|>{\"expr\": \"1\"}<|call|>",
     "call:calc|args:{\"expr\": \"1\"}"},
    {kHarmony,
     "<|channel|>commentary<|message|>I will look.<|end|><|start|>assistant "
     "to=functions.now<|channel|>commentary<|message|>{}",
     "content:I will look.|call:now|args:{}"},
    {kHarmony, "no channels at all", "content:no channels at all"},
    {kHarmony, "if a <|b|> c", "content:if a <|b|> c"},
    {kHarmony, "<|channel|>anal", ""},
    {kHarmony, "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>fin", "reason:Hm."},
    {kThink, "<think>\nA b.\n</think>\n\nAnswer.\n", "reason:A b.|content:Answer.\n"},
    {kThink, "No thoughts </think>", "content:No thoughts </think>"},
    {kThink, "<think>cut", "reason:cut"},
    {kThink, "\n<thin", "content:\n<thin"},
    {kThinkOpened, "A.\n</think>\n\nB", "reason:A.|content:B"},
    {kThinkOpened, "</think>B", "content:B"},
    {kThinkHermes, "<think>Shall I <tool_call>?</think>\n<tool_call>{\"name\": \"now\"}</tool_call>",
     "reason:Shall I <tool_call>?|call:now|args:{}"},
};

TEST(OutputParser, ReadsEveryFormat) {
  for (const Case& c : kCases) EXPECT_EQ(shown(parse_whole(c.chat, c.text)), c.expected) << c.text;
}

TEST(OutputParser, MakesTheSameOfATextHoweverItIsCut) {
  std::mt19937 random(7);
  for (const Case& c : kCases) {
    const Pieces whole = parse_whole(c.chat, c.text);
    EXPECT_EQ(parse(c.chat, c.text, [](size_t) { return true; }), whole) << c.text;
    for (size_t one = 1; one < c.text.size(); ++one)
      EXPECT_EQ(parse(c.chat, c.text, [&](size_t at) { return at == one; }), whole) << c.text << " at " << one;
    for (int i = 0; i < 20; ++i)
      EXPECT_EQ(parse(c.chat, c.text, [&](size_t) { return random() % 4 == 0; }), whole) << c.text;
  }
}

// Texts of fragments in any order: no crash, no loss of what is not markup, and the same for every cut.
TEST(OutputParser, MakesTheSameOfAnyFragmentsHoweverTheyAreCut) {
  const std::vector<std::string> fragments = {"<tool_call>",
                                              "</tool_call>",
                                              "[TOOL_CALLS]",
                                              "[ARGS]",
                                              "[CALL_ID]",
                                              "<|python_tag|>",
                                              "{\"name\": \"now\"",
                                              ", \"arguments\": ",
                                              "\"parameters\":",
                                              "{",
                                              "}",
                                              "[",
                                              "]",
                                              ",",
                                              ";",
                                              ":",
                                              "\"",
                                              "\\",
                                              "{\"a\": 1}",
                                              "now",
                                              "\n",
                                              " ",
                                              "<arg_key>",
                                              "</arg_key>",
                                              "<arg_value>",
                                              "</arg_value>",
                                              "<function=",
                                              ">",
                                              "<parameter=",
                                              "</parameter>",
                                              "</function>",
                                              "<think>",
                                              "</think>",
                                              "<|channel|>",
                                              "<|message|>",
                                              "<|end|>",
                                              "<|start|>",
                                              "to=functions.now",
                                              "x",
                                              "<"};
  std::mt19937 random(11);
  const std::vector<const Chat*> chats = {&kHermes,  &kMistral, &kLlama,       &kGlm,        &kCoder,
                                          &kHarmony, &kThink,   &kThinkOpened, &kThinkHermes};
  for (int i = 0; i < 3000; ++i) {
    std::string text;
    const size_t count = random() % 14;
    for (size_t f = 0; f < count; ++f) text += fragments[random() % fragments.size()];
    for (const Chat* chat : chats) {
      const Pieces whole = parse_whole(*chat, text);
      EXPECT_EQ(parse(*chat, text, [](size_t) { return true; }), whole) << text;
      EXPECT_EQ(parse(*chat, text, [&](size_t) { return random() % 3 == 0; }), whole) << text;
      int calls = 0;
      for (const OutputPiece& piece : whole) {
        calls += piece.kind == Kind::kCall ? 1 : 0;
        if (piece.kind == Kind::kCall || piece.kind == Kind::kArguments) {
          EXPECT_EQ(piece.call, calls - 1) << text;
        }
      }
    }
  }
}

std::string between(const std::string& text, const std::string& begin, const std::string& end) {
  const size_t at = text.rfind(begin);
  if (at == std::string::npos) return {};
  return text.substr(at + begin.size(), text.find(end, at + begin.size()) - at - begin.size());
}

// Published templates write calls into a chat's history as their models write them. transformers rendered these.
TEST(OutputParser, ReadsTheCallsThatPublishedTemplatesWrite) {
  struct Published {
    std::string name, begin, end;
    OutputFormats formats;
    std::string prompt_end = {};
  };
  const std::vector<Published> all = {
      {"qwen3", "<|im_start|>assistant\n", "<|im_end|>", kThinkHermes.formats},
      {"llama-3.1", "assistant<|end_header_id|>\n\n", "<|eot_id|>", {.tools = ToolFormat::kLlama3Json}},
      {"gpt-oss", "<|start|>assistant", "<|call|>", kHarmony.formats},
      {"glm-4.6", "<|assistant|>", "<|observation|>", {ToolFormat::kGlm45, ReasoningFormat::kThink}},
      {"glm-4.7-flash", "<|assistant|>", "<|observation|>", {ToolFormat::kGlm45, ReasoningFormat::kThink}, "<think>"},
      {"qwen3.5", "<|im_start|>assistant\n", "<|im_end|>", {ToolFormat::kQwen3Coder, ReasoningFormat::kThink}},
  };
  std::ifstream in(std::string(QUIRE_TEST_DATA) + "/text/chat.json");
  const json golden = json::parse(in);
  for (const Published& published : all) {
    bool seen = false;
    for (const json& render : golden["renders"]) {
      if (render["template"] != published.name || render["conversation"] != "tool_roundtrip") continue;
      if (render["add_generation_prompt"] == true) continue;
      seen = true;
      const std::string answer = between(render["text"], published.begin, published.end);
      const Pieces pieces = parse_whole({published.formats, kTools, published.prompt_end}, answer);
      ASSERT_EQ(pieces.size(), 2U) << published.name << ": " << shown(pieces);
      EXPECT_EQ(pieces[0].text, "get_weather");
      EXPECT_EQ(json::parse(pieces[1].text), json::parse(R"({"city": "Oslo", "unit": "celsius"})")) << published.name;
    }
    EXPECT_TRUE(seen) << published.name;
  }
}

// What each model writes, its makers say; templates of formats that are not read must not pass for others.
TEST(OutputParser, TellsFormatsByPublishedTemplates) {
  const char* folder = std::getenv("QUIRE_TEMPLATE_DIR");
  if (folder == nullptr) GTEST_SKIP() << "QUIRE_TEMPLATE_DIR is not set";
  const std::pair<const char*, OutputFormats> all[] = {
      {"Qwen-Qwen2.5-7B-Instruct", {.tools = ToolFormat::kHermes}},
      {"NousResearch-Hermes-3-Llama-3.1-8B-tool_use", {.tools = ToolFormat::kHermes}},
      {"Qwen-QwQ-32B", kThinkHermes.formats},
      {"Qwen3-Coder", {.tools = ToolFormat::kQwen3Coder}},
      {"Qwen3.5-4B", {ToolFormat::kQwen3Coder, ReasoningFormat::kThink}},
      {"NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", {ToolFormat::kQwen3Coder, ReasoningFormat::kThink}},
      {"GLM-4.7-Flash", {ToolFormat::kGlm45, ReasoningFormat::kThink}},
      {"mistralai-Mistral-Nemo-Instruct-2407", {.tools = ToolFormat::kMistral}},
      {"mistralai-Ministral-3-14B-Reasoning-2512", {ToolFormat::kMistral, ReasoningFormat::kMistral}},
      {"meta-llama-Llama-3.1-8B-Instruct", {.tools = ToolFormat::kLlama3Json}},
      {"meta-llama-Llama-3.2-3B-Instruct", {.tools = ToolFormat::kLlama3Json}},
      {"meta-llama-Llama-3.3-70B-Instruct", {.tools = ToolFormat::kLlama3Json}},
      {"openai-gpt-oss-120b", kHarmony.formats},
      {"deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", {.reasoning = ReasoningFormat::kThink}},
      {"ByteDance-Seed-OSS", {}},
      {"meetkai-functionary-medium-v3.1", {}},
      {"google-gemma-2-2b-it", {}},
      {"moonshotai-Kimi-K2", {}},
  };
  for (const auto& [name, formats] : all) {
    std::ifstream in(std::string(folder) + "/" + name + ".jinja");
    ASSERT_TRUE(in) << name;
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    EXPECT_EQ(describe(formats_of(text)), describe(formats)) << name;
  }
}

TEST(OutputParser, LooksForNothingThatIsNotAskedFor) {
  EXPECT_EQ(make_output_parser({}, kTools, ""), nullptr);
  EXPECT_EQ(make_output_parser(kHermes.formats, {}, ""), nullptr);
  const Chat no_tools{kThinkHermes.formats, {}};
  EXPECT_EQ(shown(parse_whole(no_tools, "<think>a</think><tool_call>{\"name\": \"now\"}")),
            "reason:a|content:<tool_call>{\"name\": \"now\"}");
  const Chat harmony{kHarmony.formats, {}};
  EXPECT_EQ(shown(parse_whole(harmony, "<|channel|>commentary to=functions.now<|message|>{}<|call|>")), "content:{}");
}

TEST(OutputParser, NamesItsFormats) {
  EXPECT_EQ(tool_format("hermes"), ToolFormat::kHermes);
  EXPECT_EQ(tool_format("none"), std::nullopt);
  EXPECT_EQ(reasoning_format("deepseek_r1"), ReasoningFormat::kThink);
  EXPECT_EQ(name_of(ToolFormat::kQwen3Coder), "qwen3_coder");
  const auto wrong = tool_format("hermit");
  ASSERT_FALSE(wrong.has_value());
  EXPECT_NE(wrong.error().message.find("\"hermit\" is none of none, hermes, llama3_json"), std::string::npos)
      << wrong.error().message;
}

}  // namespace
}  // namespace quire::api
