// Tools of a chat: from the body to the engine's request, and from its tokens to calls.
#include <gtest/gtest.h>

#include <set>

#include "api/request.h"
#include "api/test_service.h"

namespace quire::api {
namespace {

const std::string kTools =
    R"("tools":[{"type":"function","function":{"name":"add","parameters":{"type":"object","properties":{"a":{"type":"integer"},"s":{"type":"string"}},"required":["a"],"additionalProperties":false}}},{"type":"function","function":{"name":"now"}}])";

std::string chat_with(const std::string& fields) {
  return R"({"messages":[{"role":"user","content":"x"}],)" + fields + "}";
}

TEST(Tools, AreReadWithTheirParameters) {
  const auto parsed =
      parse_chat(chat_with(kTools + R"(,"parallel_tool_calls":false)"), {.vocab_size = 9, .max_model_len = 9});
  ASSERT_TRUE(parsed) << parsed.error().message;
  const ToolUse& use = parsed->request.tool_use;
  ASSERT_EQ(use.tools.size(), 2U);
  EXPECT_EQ(use.tools[0].name, "add");
  EXPECT_EQ(use.tools[0].strings, (std::set<std::string, std::less<>>{"s"}));
  EXPECT_EQ(use.tools[1].parameters, R"({"type":"object"})");
  EXPECT_EQ(use.choice, ToolUse::Choice::kAuto);
  EXPECT_FALSE(use.parallel);
  EXPECT_FALSE(parsed->request.options.grammar);
  EXPECT_TRUE(parsed->ignored_fields.empty());
}

TEST(Tools, WhatIsWrongIsRefusedByName) {
  const struct {
    std::string fields, param, says;
  } all[] = {
      {R"("tools":{})", "tools", "list"},
      {R"("tools":[7])", "tools", "tools[0]"},
      {R"("tools":[{"type":"retrieval"}])", "tools", "\"retrieval\""},
      {R"("tools":[{"type":"function"}])", "tools", "tools[0].function is missing"},
      {R"("tools":[{"function":{}}])", "tools", "tools[0].function.name must have 1 to"},
      {R"("tools":[{"function":{"name":7}}])", "tools", "tools[0].function.name must be a string"},
      {R"("tools":[{"function":{"name":"f","parameters":[]}}])", "tools", "parameters must be an object"},
      {R"("tools":[{"function":{"name":"f"}},{"function":{"name":"f"}}])", "tools", "twice"},
      {R"("tool_choice":"required")", "tool_choice", "no tools"},
      {R"("tool_choice":"sometimes")", "tool_choice", "\"sometimes\""},
      {R"("tool_choice":{"type":"function"})", "tool_choice", "may be"},
      {R"("tool_choice":{"type":"function","function":{"name":"f"}})", "tool_choice", "not among tools"},
      {kTools + R"(,"tool_choice":"required","response_format":{"type":"json_object"})", "tool_choice",
       "response_format"},
      {R"("parallel_tool_calls":1)", "parallel_tool_calls", "true or false"},
      {R"("reasoning_effort":"huge")", "reasoning_effort", "\"huge\""},
      {R"("functions":[{"name":"f"}])", "functions", "not supported"},
  };
  for (const auto& bad : all) {
    const auto parsed = parse_chat(chat_with(bad.fields), {.vocab_size = 9, .max_model_len = 9});
    ASSERT_FALSE(parsed) << bad.fields;
    EXPECT_EQ(parsed.error().param, bad.param) << bad.fields;
    EXPECT_NE(parsed.error().message.find(bad.says), std::string::npos) << bad.fields << "\n" << parsed.error().message;
  }
}

class ToolsService : public ServiceTest {
 protected:
  static constexpr const char* kPath = "/v1/chat/completions";
  static constexpr OutputFormats kFormats{ToolFormat::kHermes, ReasoningFormat::kThink};

  // The same request whole and streamed, with the engine's text in pieces of `size` tokens.
  json whole(const std::string& fields, const std::string& text, FinishReason finish = FinishReason::kStop) {
    const size_t id = engine_.asked();
    const auto exchange = submit(kPath, chat_with(fields));
    engine_.send_text(id, text, finish);
    return finish_body(*exchange);
  }
  // The characters that the request's constraint lets follow `text`.
  static void expect_next(const Request& request, std::string_view text, std::string_view next) {
    ASSERT_TRUE(request.constraint);
    const auto matcher = request.constraint->start();
    ASSERT_TRUE(matcher);
    std::vector<uint32_t> mask(mask_words(kTestVocab));
    for (const TokenId token : bytes_of(text)) {
      ASSERT_TRUE((*matcher)->fill(mask));
      ASSERT_TRUE((*matcher)->accept(token)) << text;
    }
    ASSERT_TRUE((*matcher)->fill(mask));
    for (TokenId id = 0; id < 128; ++id) {
      const bool allowed = (mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0;
      EXPECT_EQ(allowed, next.find(static_cast<char>(id)) != std::string_view::npos) << text << " then " << id;
    }
  }
  json finish_body(FakeExchange& exchange) { return finish(exchange)["choices"][0]; }

  // The message that a stream's deltas add up to, as OpenAI's clients add them.
  json streamed(const std::string& fields, const std::string& text, size_t size,
                FinishReason reason = FinishReason::kStop) {
    const size_t id = engine_.asked();
    const auto exchange = submit(kPath, chat_with(fields + R"(,"stream":true)"));
    for (size_t at = 0; at < text.size(); at += size) {
      const bool last = at + size >= text.size();
      engine_.send_text(id, text.substr(at, size), last ? reason : FinishReason::kNone);
      exchange->run_ready();
    }
    json message = {{"role", ""}}, finished;
    for (const json& chunk : finish_stream(*exchange)) {
      const json& choice = chunk["choices"][0];
      for (const auto& [key, value] : choice["delta"].items()) {
        if (key == "tool_calls") {
          add_calls(message["tool_calls"], value);
        } else {
          message[key] = message.value(key, "") + value.get<std::string>();
        }
      }
      if (!choice["finish_reason"].is_null()) finished = choice["finish_reason"];
    }
    return {{"message", message}, {"finish_reason", finished}};
  }
  static void drop_empty_content(json& message) {
    if (message.value("content", json()).empty() || message["content"] == "") message.erase("content");
  }
  static void add_calls(json& calls, const json& deltas) {
    for (const json& delta : deltas) {
      const auto index = delta["index"].get<size_t>();
      if (index == calls.size()) {
        calls.push_back(delta);
        calls.back().erase("index");
      } else {
        auto& arguments = calls.at(index)["function"]["arguments"];
        arguments = arguments.get<std::string>() + delta["function"]["arguments"].get<std::string>();
      }
    }
  }
};

TEST_F(ToolsService, CallsComeOutOfAnAnswer) {
  open(kFormats);
  const json choice =
      whole(kTools, R"(<think>Add.</think>Well. <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>)");
  const json& message = choice["message"];
  EXPECT_EQ(message["content"], "Well.");
  EXPECT_EQ(message["reasoning"], "Add.");
  EXPECT_EQ(message["reasoning_content"], "Add.");
  ASSERT_EQ(message["tool_calls"].size(), 1U);
  EXPECT_EQ(message["tool_calls"][0]["type"], "function");
  EXPECT_EQ(message["tool_calls"][0]["id"].get<std::string>().size(), 9U);
  EXPECT_EQ(message["tool_calls"][0]["function"], json::parse(R"({"name":"add","arguments":"{\"a\": 1}"})"));
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_TRUE(choice["stop_reason"].is_null());
}

TEST_F(ToolsService, AStreamAddsUpToTheWholeAnswer) {
  open(kFormats);
  const std::string texts[] = {
      "just text \xC3\xA9",
      "<think>\nthought\n</think>\n\nsaid",
      "<think>never ends",
      R"(One <tool_call>{"name": "add", "arguments": {"a": 1, "s": "é}"}}</tool_call><tool_call>{"name": "now"}</tool_call> and)",
      R"(<tool_call>{"arguments": {}, "name": "now"}</tool_call>)",
      R"(<tool_call>{"nope)"};
  for (const std::string& text : texts) {
    for (const char* more :
         {"", R"(,"parallel_tool_calls":false)", R"(,"include_reasoning":false)", R"(,"tool_choice":"none")"}) {
      for (const FinishReason reason : {FinishReason::kStop, FinishReason::kLength}) {
        json expected = whole(kTools + more, text, reason);
        json& message = expected["message"];
        message.erase("refusal");
        drop_empty_content(message);
        for (const size_t size : {size_t{1}, size_t{3}, size_t{1000}}) {
          json got = streamed(kTools + more, text, size, reason);
          drop_empty_content(got["message"]);
          EXPECT_EQ(got["message"], message) << text << more << size;
          EXPECT_EQ(got["finish_reason"], expected["finish_reason"]) << text;
        }
      }
    }
  }
}

TEST_F(ToolsService, IdsAreOfTheRequestAlone) {
  open(kFormats);
  const std::string text = R"(<tool_call>{"name": "now"}</tool_call><tool_call>{"name": "now"}</tool_call>)";
  const json first = whole(kTools, text)["message"]["tool_calls"], again = whole(kTools, text)["message"]["tool_calls"];
  EXPECT_EQ(first, again);
  EXPECT_NE(first[0]["id"], first[1]["id"]);
  EXPECT_NE(whole(kTools + R"(,"seed":5)", text)["message"]["tool_calls"][0]["id"], first[0]["id"]);
}

TEST_F(ToolsService, SpecialTokensThatMarkAreSeen) {
  open({ToolFormat::kHermes, std::nullopt});
  // The test's tokenizer has no such markers; its other special tokens stay hidden.
  const size_t id = engine_.asked();
  const auto exchange = submit(kPath, chat_with(kTools));
  std::vector<TokenId> tokens = bytes_of("a");
  tokens.push_back(kOtherStop);
  tokens.push_back('b');
  engine_.send(id, {.tokens = tokens, .finish = FinishReason::kLength});
  EXPECT_EQ(finish_body(*exchange)["message"]["content"], "ab");
}

class OpenedReasoning : public ToolsService {
 protected:
  // A template that begins the answer's reasoning, as those of thinking models do.
  void SetUp() override {
    auto compiled = text::ChatTemplate::compile({.text = "{{ messages[0].content }}<think>\n"});
    ASSERT_TRUE(compiled);
    template_ = std::move(*compiled);
    open(kFormats);
  }
};

TEST_F(OpenedReasoning, ComesBeforeTheAnswer) {
  const json message = whole(kTools, "so</think>yes")["message"];
  EXPECT_EQ(message["reasoning"], "so");
  EXPECT_EQ(message["content"], "yes");
}

TEST_F(OpenedReasoning, IsNoneOfAnAnswerThatMustFollowSomething) {
  const json message = whole(R"("structured_outputs":{"choice":["yes"]})", "yes")["message"];
  EXPECT_EQ(message["content"], "yes");
  EXPECT_FALSE(message.contains("reasoning"));
}

TEST_F(ToolsService, ANamedToolIsForced) {
  open(kFormats);
  const std::string named = R"(,"tool_choice":{"type":"function","function":{"name":"add"}})";
  const json choice = whole(kTools + named, R"({"a": 5})");
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"], json::parse(R"({"name":"add","arguments":"{\"a\": 5}"})"));
  EXPECT_TRUE(choice["message"]["content"].is_null());
  EXPECT_EQ(choice["finish_reason"], "stop");
  expect_next(engine_.request(0), R"({"a":)", " \n\t\r0123456789-");
}

TEST_F(ToolsService, ACallIsForced) {
  open(kFormats);
  const json choice = whole(kTools + R"(,"tool_choice":"required")",
                            R"([{"name": "add", "parameters": {"a": 5}}, {"name": "now", "parameters": {}}])");
  ASSERT_EQ(choice["message"]["tool_calls"].size(), 2U);
  EXPECT_EQ(choice["message"]["tool_calls"][1]["function"], json::parse(R"({"name":"now","arguments":"{}"})"));
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  expect_next(engine_.request(0), R"([{"name": ")", "an");
  expect_next(engine_.request(0), R"([{"name": "now", "parameters": {}})", ",]");
  whole(kTools + R"(,"tool_choice":"required","parallel_tool_calls":false)", R"([{"name": "now", "parameters": {}}])");
  expect_next(engine_.request(1), R"([{"name": "now", "parameters": {}})", "]");
}

}  // namespace
}  // namespace quire::api
