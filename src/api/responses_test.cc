// /v1/responses: from items to the chat's messages, and from an answer to items and events. The shapes that are
// expected are those of OpenAI's API reference.
#include "api/request.h"
#include "api/test_service.h"

namespace quire::api {
namespace {

constexpr ParseLimits kLimits{.vocab_size = 1000, .max_model_len = 4096, .max_choices = 64};

std::string with(const std::string& members) { return R"({"input":"x",)" + members + "}"; }

TEST(ResponsesRequest, OfAStringIsAUsersMessage) {
  const auto parsed = parse_responses(R"({"input":"hi"})", kLimits);
  ASSERT_TRUE(parsed) << parsed.error().message;
  const ChatRequest& chat = parsed->request.chat;
  EXPECT_EQ(json::parse(chat.prompt.messages), json::parse(R"([{"role":"user","content":"hi"}])"));
  EXPECT_TRUE(chat.prompt.add_generation_prompt);
  EXPECT_FALSE(chat.options.max_tokens);
  EXPECT_FALSE(chat.options.stream);
  EXPECT_EQ(chat.options.default_max_tokens, std::numeric_limits<int>::max());
  EXPECT_TRUE(parsed->ignored_fields.empty());
}

TEST(ResponsesRequest, MakesMessagesOfItems) {
  const auto parsed = parse_responses(R"({
    "instructions":"Be brief.",
    "input":[
      {"role":"developer","content":"Be kind."},
      {"type":"message","role":"user","content":[{"type":"input_text","text":"a"},{"type":"input_text","text":"b"}]},
      {"type":"reasoning","id":"rs_1","summary":[],"content":[{"type":"reasoning_text","text":"hm"}]},
      {"type":"message","id":"msg_1","role":"assistant","status":"completed",
       "content":[{"type":"output_text","text":"Wait.","annotations":[],"logprobs":[]}]},
      {"type":"function_call","id":"fc_1","call_id":"c1","name":"add","arguments":"{\"a\":1}","status":"completed"},
      {"type":"function_call","call_id":"c2","name":"now","arguments":""},
      {"type":"function_call_output","call_id":"c1","output":"2"},
      {"type":"function_call_output","call_id":"c2","output":[{"type":"input_text","text":"noon"}]},
      {"type":"reasoning","summary":[{"type":"summary_text","text":"short"}]},
      {"role":"assistant","content":"2 at noon"},
      {"role":"user","content":"and?"},
      {"role":"user","content":"well?"}]})",
                                      kLimits);
  ASSERT_TRUE(parsed) << parsed.error().message;
  EXPECT_EQ(json::parse(parsed->request.chat.prompt.messages), json::parse(R"([
    {"role":"system","content":"Be brief.\nBe kind."},
    {"role":"user","content":"a\nb"},
    {"role":"assistant","content":"Wait.","reasoning_content":"hm","tool_calls":[
      {"id":"c1","type":"function","function":{"name":"add","arguments":{"a":1}}},
      {"id":"c2","type":"function","function":{"name":"now","arguments":{}}}]},
    {"role":"tool","tool_call_id":"c1","content":"2"},
    {"role":"tool","tool_call_id":"c2","content":"noon"},
    {"role":"assistant","content":"2 at noon","reasoning_content":"short"},
    {"role":"user","content":"and?"},
    {"role":"user","content":"well?"}])"));
}

TEST(ResponsesRequest, ReadsAllItsFields) {
  const auto parsed = parse_responses(with(R"(
    "model":"m","max_output_tokens":7,"temperature":0.5,"top_p":0.25,"stream":true,"store":true,"metadata":{"k":"v"},
    "tools":[{"type":"function","name":"add","description":"Adds.","strict":true,
              "parameters":{"type":"object","properties":{"s":{"type":"string"}}}},{"type":"function","name":"now"}],
    "parallel_tool_calls":false,"reasoning":{"effort":"low","summary":"auto"},"text":{"verbosity":"medium",
    "format":{"type":"json_schema","name":"n","strict":true,"schema":{"type":"object"}}},"truncation":"disabled",
    "include":["reasoning.encrypted_content"],"background":false,"previous_response_id":null,"user":"u",
    "prompt_cache_key":"k","service_tier":"auto","stream_options":{"include_obfuscation":false},"instructions":"i",
    "seed":3,"top_k":4,"min_p":0.5,"cache_salt":"s","priority":-1,"quire":{"explain":true},"what":1)"),
                                      kLimits);
  ASSERT_TRUE(parsed) << parsed.error().message;
  const ChatRequest& chat = parsed->request.chat;
  EXPECT_EQ(chat.options.model, "m");
  EXPECT_EQ(chat.options.max_tokens, 7);
  EXPECT_EQ(chat.options.sampling.temperature, 0.5F);
  EXPECT_EQ(chat.options.sampling.top_p, 0.25F);
  EXPECT_EQ(chat.options.sampling.top_k, 4);
  EXPECT_EQ(chat.options.sampling.min_p, 0.5F);
  EXPECT_EQ(chat.options.seed, 3U);
  EXPECT_EQ(chat.options.cache_salt, "s");
  EXPECT_EQ(chat.options.priority, -1);
  EXPECT_TRUE(chat.options.stream);
  EXPECT_TRUE(chat.options.explain);
  ASSERT_TRUE(chat.options.grammar);
  EXPECT_EQ(chat.options.grammar->text, R"({"type":"object"})");
  EXPECT_EQ(chat.prompt.reasoning_effort, "low");
  EXPECT_EQ(json::parse(chat.prompt.tools), json::parse(R"([
    {"type":"function","function":{"name":"add","description":"Adds.",
     "parameters":{"type":"object","properties":{"s":{"type":"string"}}}}},
    {"type":"function","function":{"name":"now","parameters":{"type":"object"}}}])"));
  ASSERT_EQ(chat.tool_use.tools.size(), 2U);
  EXPECT_TRUE(chat.tool_use.tools[0].strings.contains("s"));
  EXPECT_FALSE(chat.tool_use.parallel);
  EXPECT_EQ(parsed->ignored_fields, std::vector<std::string>{"what"});
}

TEST(ResponsesRequest, RefusesByName) {
  const std::string tool = R"("tools":[{"type":"function","name":"f"}],)";
  const struct {
    std::string body, param, says;
  } all[] = {
      {"{}", "input", "missing"},
      {R"({"input":[]})", "input", "empty"},
      {R"({"input":7})", "input", "not 7"},
      {R"({"input":["a"]})", "input", "input[0] must be a JSON object"},
      {R"({"input":[{"role":"user"}]})", "input", "input[0].content is missing"},
      {R"({"input":[{"role":"tool","content":"a"}]})", "input", "input[0].role may be"},
      {R"({"input":[{"content":"a"}]})", "input", "input[0].role may be"},
      {R"({"input":[{"role":"user","content":7}]})", "input", "input[0].content must be"},
      {R"({"input":[{"role":"user","content":[{"type":"input_image","image_url":"u"}]}]})", "input",
       "input[0].content[0].type is \"input_image\""},
      {R"({"input":[{"role":"user","content":[{"type":"input_text"}]}]})", "input",
       "input[0].content[0].text is missing"},
      {R"({"input":[{"type":"item_reference","id":"msg_1"}]})", "input", "item_reference"},
      {R"({"input":[{"type":"function_call","name":"f","arguments":"{}"}]})", "input", "call_id is missing"},
      {R"({"input":[{"type":"function_call","call_id":"c","arguments":"{}"}]})", "input", "name is missing"},
      {R"({"input":[{"type":"function_call","call_id":"c","name":"f","arguments":"{"}]})", "input",
       "input[0].arguments"},
      {R"({"input":[{"type":"function_call_output","call_id":"c"}]})", "input", "output is missing"},
      {R"({"input":[{"type":"function_call_output","output":"c"}]})", "input", "call_id is missing"},
      {R"({"input":[{"type":"reasoning","summary":[{"type":"text"}]}]})", "input", "summary[0].text is missing"},
      {with(R"("instructions":["a"])"), "instructions", "string"},
      {with(R"("max_output_tokens":0)"), "max_output_tokens", "from 1"},
      {with(R"("max_output_tokens":true)"), "max_output_tokens", "true"},
      {with(R"("max_output_tokens":3,"min_tokens":4)"), "min_tokens", "max_output_tokens"},
      {with(R"("temperature":-1)"), "temperature", "-1"},
      {with(R"("top_p":0)"), "top_p", "greater than 0"},
      {with(R"("stream":"yes")"), "stream", "true or false"},
      {with(R"("tools":{})"), "tools", "list"},
      {with(R"("tools":[{"type":"web_search"}])"), "tools", "tools[0].type may be \"function\", not \"web_search\""},
      {with(R"("tools":[{"type":"function"}])"), "tools", "tools[0].name must have"},
      {with(R"("tools":[{"type":"function","name":"f","parameters":[]}])"), "tools", "parameters must be an object"},
      {with(R"("tools":[{"type":"function","name":"f","description":7}])"), "tools", "tools[0].description"},
      {with(R"("tools":[{"name":"f"},{"name":"f"}])"), "tools", "twice"},
      {with(R"("tool_choice":"required")"), "tool_choice", "no tools"},
      {with(tool + R"("tool_choice":"sometimes")"), "tool_choice", "\"sometimes\""},
      {with(tool + R"("tool_choice":"function")"), "tool_choice", "\"function\""},
      {with(tool + R"("tool_choice":{"type":"allowed_tools"})"), "tool_choice", "may be"},
      {with(tool + R"("tool_choice":{"type":"function","name":"g"})"), "tool_choice", "not among tools"},
      {with(tool + R"("tool_choice":"required","text":{"format":{"type":"json_object"}})"), "tool_choice",
       "text.format for something else"},
      {with(R"("text":[])"), "text", "object"},
      {with(R"("text":{"format":{"type":"xml"}})"), "text.format.type", "\"xml\""},
      {with(R"("text":{"format":{}})"), "text.format.type", "missing"},
      {with(R"("text":{"format":{"type":"json_schema","name":"n"}})"), "text.format.schema", "missing"},
      {with(R"("text":{"format":{"type":"json_schema","schema":7}})"), "text.format.schema", "not 7"},
      {with(R"("structured_outputs":{"regex":"a"},"text":{"format":{"type":"json_object"}})"), "structured_outputs",
       "text.format"},
      {with(R"("text":{"verbosity":"low"})"), "text.verbosity", "not supported"},
      {with(R"("reasoning":{"effort":"huge"})"), "reasoning.effort", "\"huge\""},
      {with(R"("reasoning":{"effort":3})"), "reasoning.effort", "string"},
      {with(R"("reasoning":"low")"), "reasoning", "object"},
      {with(R"("previous_response_id":"resp_1")"), "previous_response_id", "keeps no responses"},
      {with(R"("conversation":"conv_1")"), "conversation", "keeps no responses"},
      {with(R"("background":true)"), "background", "not supported"},
      {with(R"("prompt":{"id":"p"})"), "prompt", "not supported"},
      {with(R"("max_tool_calls":3)"), "max_tool_calls", "not supported"},
      {with(R"("top_logprobs":3)"), "top_logprobs", "not supported"},
      {with(R"("include":["message.output_text.logprobs"])"), "include", "not supported"},
      {with(R"("truncation":"auto")"), "truncation", "disabled"},
      {with(R"("metadata":"a")"), "metadata", "object"},
      {with(R"("store":1)"), "store", "true or false"},
      {with(R"("quire":{"a":1})"), "quire", "explain"},
  };
  for (const auto& bad : all) {
    const auto parsed = parse_responses(bad.body, kLimits);
    ASSERT_FALSE(parsed) << bad.body;
    EXPECT_EQ(parsed.error().param, bad.param) << bad.body;
    EXPECT_NE(parsed.error().message.find(bad.says), std::string::npos) << bad.body << "\n" << parsed.error().message;
  }
}

class ResponsesService : public ServiceTest {
 protected:
  static constexpr const char* kPath = "/v1/responses";
  static constexpr OutputFormats kFormats{ToolFormat::kHermes, ReasoningFormat::kThink};
  static constexpr const char* kTools = R"("temperature":0,"tools":[{"type":"function","name":"add"}])";

  json whole(const std::string& members, const std::string& text, FinishReason reason = FinishReason::kStop) {
    return answered(kPath, with(members), text, reason);
  }
};

TEST_F(ResponsesService, AnswersWithAnObject) {
  open();
  const auto exchange = submit(
      kPath,
      R"({"model":"alias","input":"a","instructions":"s","temperature":0,"max_output_tokens":9,"metadata":{"k":"v"}})");
  EXPECT_EQ(engine_.request(0).prompt, bytes_of("[system]s|[user]a|[assistant]"));
  EXPECT_EQ(engine_.request(0).sampling.max_tokens, 9);
  engine_.send(0, {.tokens = bytes_of("hi"), .cached_tokens = 4});
  engine_.send(0, {.tokens = {kEndToken}, .finish = FinishReason::kStop, .stop_token = kEndToken});
  json body = finish(*exchange);
  EXPECT_GT(body["created_at"].get<int64_t>(), 0);
  body.erase("created_at");
  EXPECT_TRUE(body["system_fingerprint"].get<std::string>().starts_with("quire-"));
  body.erase("system_fingerprint");
  EXPECT_EQ(body, json::parse(R"({
    "id":"resp_000000000000002a000000000000002a","object":"response","status":"completed","model":"alias",
    "error":null,"incomplete_details":null,"instructions":"s","max_output_tokens":9,"metadata":{"k":"v"},
    "output":[{"id":"msg_000000000000002a000000000000002a_0","type":"message","role":"assistant","status":"completed",
      "content":[{"type":"output_text","text":"hi","annotations":[],"logprobs":[]}]}],
    "parallel_tool_calls":true,"previous_response_id":null,"background":false,"reasoning":{"effort":null,"summary":null},
    "store":false,"temperature":0.0,"text":{"format":{"type":"text"}},"tool_choice":"auto","tools":[],"top_p":1.0,
    "truncation":"disabled",
    "usage":{"input_tokens":29,"input_tokens_details":{"cached_tokens":4,"cache_write_tokens":0},"output_tokens":3,
             "output_tokens_details":{"reasoning_tokens":0},"total_tokens":32}})"));
}

TEST_F(ResponsesService, HasItemsForReasoningTextAndCalls) {
  open(kFormats);
  const json body =
      whole(kTools, R"(<think>Add.</think>Well. <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>)");
  const json& output = body["output"];
  ASSERT_EQ(output.size(), 3U);
  EXPECT_EQ(output[0]["type"], "reasoning");
  EXPECT_EQ(output[0]["content"], json::parse(R"([{"type":"reasoning_text","text":"Add."}])"));
  EXPECT_EQ(output[0]["summary"], json::array());
  EXPECT_EQ(output[1]["content"][0]["text"], "Well.");
  EXPECT_EQ(output[2]["type"], "function_call");
  EXPECT_EQ(output[2]["name"], "add");
  EXPECT_EQ(output[2]["arguments"], R"({"a": 1})");
  EXPECT_EQ(output[2]["call_id"].get<std::string>().size(), 9U);
  EXPECT_EQ(body["status"], "completed");
  // "<think>Add.": a token a byte; the end of it counts for the text.
  EXPECT_EQ(body["usage"]["output_tokens_details"]["reasoning_tokens"], 11);
}

TEST_F(ResponsesService, SaysThatAnAnswerWasCut) {
  open(kFormats);
  const json body = whole(kTools, R"(a<tool_call>{"name": "add", "arguments": {"a")", FinishReason::kLength);
  EXPECT_EQ(body["status"], "incomplete");
  EXPECT_EQ(body["incomplete_details"], json::parse(R"({"reason":"max_output_tokens"})"));
  EXPECT_EQ(body["output"][0]["status"], "completed");
  EXPECT_EQ(body["output"][1]["status"], "incomplete");
  EXPECT_EQ(body["output"][1]["arguments"], R"({"a")");
}

TEST_F(ResponsesService, AnEmptyAnswerHasAnEmptyMessage) {
  open();
  const auto exchange = submit(kPath, with(R"("stream":false)"));
  engine_.send(0, {.tokens = {kEndToken}, .finish = FinishReason::kStop, .stop_token = kEndToken});
  EXPECT_EQ(finish(*exchange)["output"][0]["content"][0]["text"], "");
}

TEST_F(ResponsesService, AFunctionIsForced) {
  open(kFormats);
  const std::string tools = R"("tools":[{"type":"function","name":"f","parameters":{"type":"object"}}],)";
  for (const char* choice : {R"("required")", R"({"type":"function","name":"f"})"}) {
    const json body =
        whole(tools + R"("tool_choice":)" + choice, choice[0] == '"' ? R"([{"name": "f", "parameters": {}}])" : "{}");
    ASSERT_EQ(body["output"].size(), 1U);
    EXPECT_EQ(body["output"][0]["name"], "f");
    EXPECT_EQ(body["output"][0]["arguments"], "{}");
    EXPECT_TRUE(engine_.request(engine_.asked() - 1).constraint);
  }
}

TEST_F(ResponsesService, StreamsTypedEvents) {
  open(kFormats);
  const auto exchange = submit(kPath, with(std::string(kTools) + R"(,"stream":true)"));
  const std::string text = R"(<think>so</think>well<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>)";
  answer_in_parts(*exchange, 0, text, {}, FinishReason::kStop);
  const std::vector<json> all = named_events(exchange->stream);
  std::vector<std::string> types;
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i]["sequence_number"], i);
    types.push_back(all[i]["type"].get<std::string>().substr(9));
  }
  EXPECT_EQ(types, (std::vector<std::string>{"created", "in_progress", "output_item.added", "content_part.added",
                                             "reasoning_text.delta", "reasoning_text.done", "content_part.done",
                                             "output_item.done", "output_item.added", "content_part.added",
                                             "output_text.delta", "output_text.done", "content_part.done",
                                             "output_item.done", "output_item.added", "function_call_arguments.delta",
                                             "function_call_arguments.done", "output_item.done", "completed"}));
  EXPECT_EQ(all[0]["response"]["status"], "in_progress");
  EXPECT_EQ(all[0]["response"]["output"], json::array());
  EXPECT_TRUE(all[0]["response"]["usage"].is_null());
  EXPECT_EQ(all[8]["item"]["content"], json::array());
  EXPECT_EQ(all[8]["item"]["status"], "in_progress");
  EXPECT_EQ(all[10]["item_id"], all[8]["item"]["id"]);
  EXPECT_EQ(all[10]["output_index"], 1);
  EXPECT_EQ(all[10]["content_index"], 0);
  EXPECT_EQ(all[14]["item"]["arguments"], "");
  EXPECT_EQ(all[16]["arguments"], R"({"a": 1})");
}

// What a client makes of the events alone.
json added_up(const std::vector<json>& events) {
  json output = json::array();
  for (const json& event : events) {
    const std::string type = event["type"];
    if (type == "response.output_item.added") output.push_back(event["item"]);
    if (!event.contains("output_index")) continue;
    json& item = output.at(event["output_index"].get<size_t>());
    if (type == "response.content_part.added") item["content"].push_back(event["part"]);
    if (!type.ends_with(".delta")) continue;
    json& text = item["type"] == "function_call" ? item["arguments"] : item["content"][0]["text"];
    text = text.get<std::string>() + event["delta"].get<std::string>();
  }
  for (json& item : output) item.erase("status");
  return output;
}

TEST_F(ResponsesService, AStreamAddsUpToTheWholeAnswer) {
  open(kFormats);
  std::mt19937 random(5);
  for (
      const std::string text : {
          "just text \xC3\xA9",
          "<think>\nthought\n</think>\n\nsaid",
          "<think>never ends",
          R"(One <tool_call>{"name": "add", "arguments": {"a": "é"}}</tool_call><tool_call>{"name": "add"}</tool_call> and)",
          R"(<tool_call>{"nope)",
          "",
      }) {
    for (const FinishReason reason : {FinishReason::kStop, FinishReason::kLength}) {
      json expected = whole(kTools, text, reason);
      expected.erase("created_at");
      for (int round = 0; round < 5; ++round) {
        const size_t id = engine_.asked();
        const auto exchange = submit(kPath, with(std::string(kTools) + R"(,"stream":true)"));
        answer_in_parts(*exchange, id, text, random_cuts(random, text.size()), reason);
        const std::vector<json> all = named_events(exchange->stream);
        json last = all.back()["response"];
        last.erase("created_at");
        EXPECT_EQ(last, expected) << text;
        EXPECT_EQ(all.back()["type"], reason == FinishReason::kStop ? "response.completed" : "response.incomplete");
        for (json& item : expected["output"]) item.erase("status");
        EXPECT_EQ(added_up(all), expected["output"]) << text;
        expected["output"] = last["output"];
      }
    }
  }
}

TEST_F(ResponsesService, AFaultInAStreamIsAFailedResponse) {
  open();
  const auto exchange = submit(kPath, with(R"("stream":true)"));
  engine_.send_text(0, "a");
  exchange->run_ready();
  engine_.send(0, {.finish = FinishReason::kError, .error = Error{ErrorKind::kInternal, "broken"}});
  EXPECT_TRUE(exchange->run_until([&] { return exchange->done; }));
  const json last = named_events(exchange->stream).back();
  EXPECT_EQ(last["type"], "response.failed");
  EXPECT_EQ(last["response"]["status"], "failed");
  EXPECT_EQ(last["response"]["error"], json::parse(R"({"code":"server_error","message":"broken"})"));
}

TEST_F(ResponsesService, NamesItsFieldsWhereAPromptIsTooLong) {
  open();
  const std::string text(kTestLength, 'a');
  EXPECT_EQ(json::parse(post(kPath, R"({"input":")" + text + "\"}").body)["error"]["param"], "input");
  const json error = json::parse(post(kPath, with(R"("max_output_tokens":250)")).body)["error"];
  EXPECT_EQ(error["param"], "max_output_tokens");
  EXPECT_TRUE(error["message"].get<std::string>().starts_with("max_output_tokens is 250"));
}

}  // namespace
}  // namespace quire::api
