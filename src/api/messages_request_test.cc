// What a request to /v1/messages means: the chat that its template is given, and what is refused.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "api/request.h"

namespace quire::api {
namespace {

using nlohmann::json;

constexpr ParseLimits kLimits{.vocab_size = 1000, .max_model_len = 4096, .max_choices = 64};

Result<Parsed<ChatRequest>> parse(const std::string& body) { return parse_messages(body, kLimits); }
std::string with(const std::string& members) {
  return R"({"max_tokens":9,"messages":[{"role":"user","content":"x"}],)" + members + "}";
}
std::string of(const std::string& messages) { return R"({"max_tokens":9,"messages":)" + messages + "}"; }
// Of one message of this role and content.
std::string of(const std::string& role, const std::string& content) {
  return of(R"([{"role":")" + role + R"(","content":)" + content + "}]");
}

TEST(MessagesRequest, OfTextIsAUsersMessage) {
  const auto parsed = parse(with(R"("model":"m")"));
  ASSERT_TRUE(parsed) << parsed.error().message;
  EXPECT_EQ(json::parse(parsed->request.prompt.messages), json::parse(R"([{"role":"user","content":"x"}])"));
  EXPECT_EQ(parsed->request.options.max_tokens, 9);
  EXPECT_TRUE(parsed->request.prompt.add_generation_prompt);
  EXPECT_TRUE(parsed->request.include_reasoning);
  EXPECT_TRUE(parsed->request.prompt.kwargs.empty());
  EXPECT_TRUE(parsed->ignored_fields.empty());
}

TEST(MessagesRequest, MakesMessagesOfBlocks) {
  const auto parsed = parse(R"({"max_tokens":9,
    "system":[{"type":"text","text":"Be brief.","cache_control":{"type":"ephemeral"}},{"type":"text","text":"Be kind."}],
    "messages":[
      {"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
      {"role":"user","content":"c"},
      {"role":"assistant","content":[
        {"type":"thinking","thinking":"hm","signature":"s"},{"type":"text","text":"Wait."},
        {"type":"tool_use","id":"c1","name":"add","input":{"a":1}},{"type":"tool_use","id":"c2","name":"now"}]},
      {"role":"user","content":[
        {"type":"tool_result","tool_use_id":"c1","content":"2"},
        {"type":"tool_result","tool_use_id":"c2","content":[{"type":"text","text":"no"},{"type":"text","text":"clock"}],
         "is_error":true},
        {"type":"text","text":"and?"}]},
      {"role":"assistant","content":"2"},
      {"role":"system","content":"Be clear."},
      {"role":"user","content":[{"type":"tool_result","tool_use_id":"c3"}]}]})");
  ASSERT_TRUE(parsed) << parsed.error().message;
  EXPECT_EQ(json::parse(parsed->request.prompt.messages), json::parse(R"([
    {"role":"system","content":"Be brief.\nBe kind."},
    {"role":"user","content":"a\nb\nc"},
    {"role":"assistant","content":"Wait.","reasoning_content":"hm","tool_calls":[
      {"id":"c1","type":"function","function":{"name":"add","arguments":{"a":1}}},
      {"id":"c2","type":"function","function":{"name":"now","arguments":{}}}]},
    {"role":"tool","tool_call_id":"c1","content":"2"},
    {"role":"tool","tool_call_id":"c2","content":"no\nclock"},
    {"role":"user","content":"and?"},
    {"role":"assistant","content":"2"},
    {"role":"system","content":"Be clear."},
    {"role":"tool","tool_call_id":"c3","content":""}])"));
  EXPECT_FALSE(parsed->request.prompt.continue_final_message);
}

TEST(MessagesRequest, ALastMessageOfTheAssistantIsGoneOnWith) {
  const auto parsed = parse(of(R"([{"role":"user","content":"q"},{"role":"assistant","content":"The answer is ("}])"));
  ASSERT_TRUE(parsed) << parsed.error().message;
  EXPECT_TRUE(parsed->request.prompt.continue_final_message);
  EXPECT_FALSE(parsed->request.prompt.add_generation_prompt);
  EXPECT_EQ(parsed->request.prompt.final_content, "The answer is (");
}

TEST(MessagesRequest, ReadsAllItsFields) {
  const auto parsed = parse(with(R"(
    "model":"m","temperature":0.5,"top_p":0.25,"top_k":7,"stream":true,"stop_sequences":["a","b"],
    "metadata":{"user_id":"u"},"service_tier":"auto","cache_control":{"type":"ephemeral"},
    "tools":[{"name":"add","description":"Adds.","input_schema":{"type":"object","properties":{"s":{"type":"string"}}},
              "cache_control":{"type":"ephemeral"}},{"type":"custom","name":"now","input_schema":{"type":"object"}}],
    "tool_choice":{"type":"auto","disable_parallel_tool_use":true},
    "thinking":{"type":"enabled","budget_tokens":1024,"display":"summarized"},
    "output_config":{"effort":"max","format":{"type":"json_schema","schema":{"type":"object"}}},
    "seed":3,"cache_salt":"s","quire":{"explain":true},"what":1)"));
  ASSERT_TRUE(parsed) << parsed.error().message;
  const ChatRequest& chat = parsed->request;
  EXPECT_EQ(chat.options.model, "m");
  EXPECT_EQ(chat.options.sampling.temperature, 0.5F);
  EXPECT_EQ(chat.options.sampling.top_p, 0.25F);
  EXPECT_EQ(chat.options.sampling.top_k, 7);
  EXPECT_EQ(chat.options.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(chat.options.seed, 3U);
  EXPECT_EQ(chat.options.cache_salt, "s");
  EXPECT_TRUE(chat.options.stream);
  EXPECT_TRUE(chat.options.explain);
  ASSERT_TRUE(chat.options.grammar);
  EXPECT_EQ(chat.options.grammar->text, R"({"type":"object"})");
  EXPECT_EQ(chat.prompt.reasoning_effort, "max");
  EXPECT_EQ(json::parse(chat.prompt.kwargs), json::parse(R"({"enable_thinking":true,"thinking":true})"));
  EXPECT_TRUE(chat.include_reasoning);
  EXPECT_EQ(json::parse(chat.prompt.tools), json::parse(R"([
    {"type":"function","function":{"name":"add","description":"Adds.",
     "parameters":{"type":"object","properties":{"s":{"type":"string"}}}}},
    {"type":"function","function":{"name":"now","parameters":{"type":"object"}}}])"));
  EXPECT_TRUE(chat.tool_use.tools.at(0).strings.contains("s"));
  EXPECT_FALSE(chat.tool_use.parallel);
  EXPECT_EQ(parsed->ignored_fields, std::vector<std::string>{"what"});
}

TEST(MessagesRequest, KnowsFourChoicesOfTools) {
  using Choice = ToolUse::Choice;
  for (const auto& [choice, means] :
       std::vector<std::pair<std::string, Choice>>{{R"({"type":"auto"})", Choice::kAuto},
                                                   {R"({"type":"any"})", Choice::kRequired},
                                                   {R"({"type":"none"})", Choice::kNone},
                                                   {R"({"type":"tool","name":"f"})", Choice::kNamed}}) {
    const auto parsed =
        parse(with(R"("tools":[{"name":"f","input_schema":{"type":"object"}}],"tool_choice":)" + choice));
    ASSERT_TRUE(parsed) << choice << parsed.error().message;
    EXPECT_EQ(parsed->request.tool_use.choice, means) << choice;
    EXPECT_EQ(parsed->request.prompt.tools.empty(), means == Choice::kNone);
    EXPECT_EQ(parsed->request.options.grammar.has_value(), means == Choice::kRequired || means == Choice::kNamed);
  }
}

TEST(MessagesRequest, ThinksAsItIsTold) {
  const std::string off = R"({"enable_thinking":false,"thinking":false})";
  const std::string on = R"({"enable_thinking":true,"thinking":true})";
  const struct {
    const char* thinking;
    std::string kwargs;
    bool shown;
  } all[] = {{R"({"type":"disabled"})", off, false},
             {R"({"type":"adaptive"})", on, true},
             {R"({"type":"enabled","budget_tokens":2000})", on, true},
             {R"({"type":"adaptive","display":"omitted"})", on, false}};
  for (const auto& [thinking, kwargs, shown] : all) {
    const auto parsed = parse(with(std::string(R"("thinking":)") + thinking));
    ASSERT_TRUE(parsed) << parsed.error().message;
    EXPECT_EQ(parsed->request.prompt.kwargs, kwargs) << thinking;
    EXPECT_EQ(parsed->request.include_reasoning, shown) << thinking;
  }
}

TEST(MessagesRequest, OfTokensToCountNeedsNoLength) {
  const std::string body = R"({"messages":[{"role":"user","content":"x"}]})";
  EXPECT_TRUE(parse_count_tokens(body, kLimits));
  EXPECT_EQ(parse(body).error().param, "max_tokens");
}

TEST(MessagesRequest, RefusesByName) {
  const std::string tool = R"("tools":[{"name":"f","input_schema":{"type":"object"}}],)";
  const struct {
    std::string body, param, says;
  } all[] = {
      {"[]", "", "object"},
      {R"({"max_tokens":1})", "messages", "missing"},
      {of("[]"), "messages", "empty"},
      {of("{}"), "messages", "list"},
      {of("[7]"), "messages", "messages[0] must be a JSON object"},
      {of(R"([{"content":"a"}])"), "messages", "messages[0].role is missing"},
      {of("tool", R"("a")"), "messages", "messages[0].role may be"},
      {of(R"([{"role":"user"}])"), "messages", "messages[0].content is missing"},
      {of("user", "7"), "messages", "messages[0].content must be"},
      {of("user", "[7]"), "messages", "messages[0].content[0] must be a JSON object"},
      {of("user", R"([{"type":"text"}])"), "messages", "messages[0].content[0].text is missing"},
      {of("user", R"([{"type":"image","source":{}}])"), "messages", "may be text or tool_result here, not \"image\""},
      {of("user", R"([{"type":"tool_use","id":"i","name":"n"}])"), "messages", "tool_use"},
      {of("user", R"([{"type":"tool_result"}])"), "messages", "tool_use_id is missing"},
      {of("user", R"([{"type":"tool_result","tool_use_id":"i","content":[{"type":"image"}]}])"), "messages",
       "messages[0].content[0].content[0].type may be text here"},
      {of("user", R"([{"type":"tool_result","tool_use_id":"i","is_error":1}])"), "messages", "is_error"},
      {of("assistant", R"([{"type":"redacted_thinking","data":"d"}])"), "messages", "redacted_thinking"},
      {of("assistant", R"([{"type":"tool_use","name":"n"}])"), "messages", "id is missing"},
      {of("assistant", R"([{"type":"tool_use","id":"i"}])"), "messages", "name is missing"},
      {of("assistant", R"([{"type":"tool_use","id":"i","name":"n","input":7}])"), "messages",
       "input must be an object"},
      {of("assistant", R"([{"type":"tool_use","id":"i","name":"n"}])"), "messages", "may hold text alone"},
      {of("system", R"([{"type":"image"}])"), "messages", "may be text here"},
      {with(R"("system":7)"), "system", "system must be a string"},
      {with(R"("system":[{"type":"image"}])"), "system[0].type", "may be text here"},
      {R"({"max_tokens":0,"messages":[{"role":"user","content":"x"}]})", "max_tokens", "from 1"},
      {with(R"("temperature":1.5)"), "temperature", "from 0 to 1"},
      {with(R"("top_p":2)"), "top_p", "2"},
      {with(R"("stop_sequences":[""])"), "stop_sequences", "empty"},
      {with(R"("stop_sequences":[7])"), "stop_sequences", "stop_sequences[0]"},
      {with(R"("min_tokens":10)"), "min_tokens", "max_tokens"},
      {with(R"("tools":7)"), "tools", "list"},
      {with(R"("tools":[{"type":"web_search_20250305","name":"w"}])"), "tools", "tools[0].type may be \"custom\""},
      {with(R"("tools":[{"input_schema":{}}])"), "tools", "tools[0].name"},
      {with(R"("tools":[{"name":"f","input_schema":7}])"), "tools", "input_schema must be an object"},
      {with(R"("tool_choice":{"type":"any"})"), "tool_choice", "\"any\", but there are no tools"},
      {with(tool + R"("tool_choice":"any")"), "tool_choice", "object"},
      {with(tool + R"("tool_choice":{})"), "tool_choice.type", "missing"},
      {with(tool + R"("tool_choice":{"type":"function"})"), "tool_choice.type", "\"function\""},
      {with(tool + R"("tool_choice":{"type":"tool"})"), "tool_choice.name", "missing"},
      {with(tool + R"("tool_choice":{"type":"tool","name":"g"})"), "tool_choice", "not among tools"},
      {with(tool + R"("tool_choice":{"type":"any","disable_parallel_tool_use":1})"),
       "tool_choice.disable_parallel_tool_use", "true or false"},
      {with(tool + R"("tool_choice":{"type":"any"},"output_config":{"format":{"type":"json_schema","schema":{}}})"),
       "tool_choice", "output_config.format"},
      {with(R"("thinking":{"type":"enabled"})"), "thinking.budget_tokens", "missing"},
      {with(R"("thinking":{"type":"deep"})"), "thinking.type", "\"deep\""},
      {with(R"("thinking":{"type":"adaptive","display":"all"})"), "thinking.display", "\"all\""},
      {with(R"("thinking":true)"), "thinking", "object"},
      {with(R"("output_config":{"effort":"huge"})"), "output_config.effort", "\"huge\""},
      {with(R"("output_config":{"format":{"type":"xml"}})"), "output_config.format.type", "\"xml\""},
      {with(R"("output_config":{"format":{"type":"json_schema"}})"), "output_config.format.schema", "missing"},
      {with(R"("metadata":7)"), "metadata", "object"},
      {with(R"("container":"c")"), "container", "not supported"},
      {with(R"("mcp_servers":[{"url":"u"}])"), "mcp_servers", "not supported"},
      {with(R"("context_management":{"edits":[1]})"), "context_management", "not supported"},
  };
  for (const auto& bad : all) {
    const auto parsed = parse(bad.body);
    ASSERT_FALSE(parsed) << bad.body;
    EXPECT_EQ(parsed.error().param, bad.param) << bad.body;
    EXPECT_NE(parsed.error().message.find(bad.says), std::string::npos) << bad.body << "\n" << parsed.error().message;
  }
}

}  // namespace
}  // namespace quire::api
