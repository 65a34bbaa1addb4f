// /v1/messages: from an answer to blocks and events, and errors there. The shapes that are expected are those of
// Anthropic's API reference.
#include "api/test_service.h"

namespace quire::api {
namespace {

std::string with(const std::string& members) {
  return R"({"max_tokens":99,"messages":[{"role":"user","content":"x"}],)" + members + "}";
}

class MessagesService : public ServiceTest {
 protected:
  static constexpr const char* kPath = "/v1/messages";
  static constexpr OutputFormats kFormats{ToolFormat::kHermes, ReasoningFormat::kThink};
  static constexpr const char* kTools = R"("temperature":0,"tools":[{"name":"add","input_schema":{"type":"object"}}])";

  json whole(const std::string& members, const std::string& text, FinishReason reason = FinishReason::kStop) {
    return answered(kPath, with(members), text, reason);
  }
};

TEST_F(MessagesService, AnswersWithAMessage) {
  open();
  const auto exchange = submit(
      kPath,
      R"({"model":"alias","max_tokens":9,"system":"s","messages":[{"role":"user","content":"a"}],"temperature":0})");
  EXPECT_EQ(engine_.request(0).prompt, bytes_of("[system]s|[user]a|[assistant]"));
  EXPECT_EQ(engine_.request(0).sampling.max_tokens, 9);
  engine_.send(0, {.tokens = bytes_of("hi"), .cached_tokens = 4});
  engine_.send(0, {.tokens = {kEndToken}, .finish = FinishReason::kStop, .stop_token = kEndToken});
  json body = finish(*exchange);
  EXPECT_TRUE(body["system_fingerprint"].get<std::string>().starts_with("quire-"));
  body.erase("system_fingerprint");
  EXPECT_EQ(body, json::parse(R"({
    "id":"msg_000000000000002a000000000000002a","type":"message","role":"assistant","model":"alias",
    "content":[{"type":"text","text":"hi"}],"stop_reason":"end_turn","stop_sequence":null,
    "usage":{"input_tokens":25,"cache_creation_input_tokens":0,"cache_read_input_tokens":4,"output_tokens":3,
             "output_tokens_details":{"thinking_tokens":0}}})"));
}

TEST_F(MessagesService, HasBlocksForThoughtsTextAndCalls) {
  open(kFormats);
  const json body =
      whole(kTools, R"(<think>Add.</think>Well. <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>)");
  const json& content = body["content"];
  ASSERT_EQ(content.size(), 3U);
  EXPECT_EQ(content[0], json::parse(R"({"type":"thinking","thinking":"Add.","signature":""})"));
  EXPECT_EQ(content[1], json::parse(R"({"type":"text","text":"Well."})"));
  EXPECT_EQ(content[2]["type"], "tool_use");
  EXPECT_EQ(content[2]["id"].get<std::string>().size(), 9U);
  EXPECT_EQ(content[2]["name"], "add");
  EXPECT_EQ(content[2]["input"], json::parse(R"({"a":1})"));
  EXPECT_EQ(body["stop_reason"], "tool_use");
  EXPECT_EQ(body["usage"]["output_tokens_details"]["thinking_tokens"], 11);  // "<think>Add."
  EXPECT_EQ(whole(std::string(kTools) + R"(,"thinking":{"type":"disabled"})", "<think>a</think>b")["content"],
            json::parse(R"([{"type":"text","text":"b"}])"));
}

TEST_F(MessagesService, SaysHowAnAnswerEnded) {
  open(kFormats);
  const std::string call = R"(<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>)";
  EXPECT_EQ(whole(kTools, "a", FinishReason::kLength)["stop_reason"], "max_tokens");
  EXPECT_EQ(whole(kTools, call, FinishReason::kLength)["stop_reason"], "max_tokens");
  EXPECT_EQ(whole(kTools, call)["stop_reason"], "tool_use");
  EXPECT_EQ(whole(kTools, "a")["stop_reason"], "end_turn");
  const json stopped = whole(R"("stop_sequences":["END","xyz"])", "abxyzcd", FinishReason::kNone);
  EXPECT_EQ(stopped["stop_reason"], "stop_sequence");
  EXPECT_EQ(stopped["stop_sequence"], "xyz");
  EXPECT_EQ(stopped["content"], json::parse(R"([{"type":"text","text":"ab"}])"));
  // A call that was cut has no input that could be told.
  const json cut = whole(kTools, R"(<tool_call>{"name": "add", "arguments": {"a")", FinishReason::kLength);
  EXPECT_EQ(cut["content"][0]["input"], json::object());
}

TEST_F(MessagesService, ANamedToolIsAToolUseToo) {
  open(kFormats);
  const json body = whole(std::string(kTools) + R"(,"tool_choice":{"type":"tool","name":"add"})", R"({"a": 5})");
  EXPECT_EQ(body["stop_reason"], "tool_use");
  EXPECT_EQ(body["content"][0]["input"], json::parse(R"({"a":5})"));
  EXPECT_TRUE(engine_.request(0).constraint);
}

TEST_F(MessagesService, ALastMessageOfTheAssistantIsGoneOnWith) {
  open();
  submit(kPath,
         R"({"max_tokens":9,"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"It is "}]})");
  EXPECT_EQ(engine_.request(0).prompt, bytes_of("[user]q|[assistant]It is "));
}

TEST_F(MessagesService, StreamsEvents) {
  open(kFormats);
  const auto exchange = submit(kPath, with(std::string(kTools) + R"(,"stream":true)"));
  answer_in_parts(*exchange, 0, R"(<think>so</think>well<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>)",
                  {}, FinishReason::kStop);
  std::vector<json> all = named_events(exchange->stream);
  ASSERT_EQ(all.size(), 12U);
  EXPECT_EQ(all[0]["message"]["content"], json::array());
  EXPECT_TRUE(all[0]["message"]["stop_reason"].is_null());
  EXPECT_EQ(all[0]["message"]["usage"]["input_tokens"], 21);  // "[user]x|[assistant]" and "T1"
  EXPECT_EQ(all[0]["message"]["usage"]["output_tokens"], 0);
  const json id = all[7]["content_block"]["id"];
  const json expected = json::parse(R"([
    {"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}},
    {"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"so"}},
    {"type":"content_block_stop","index":0},
    {"type":"content_block_start","index":1,"content_block":{"type":"text","text":""}},
    {"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"well"}},
    {"type":"content_block_stop","index":1},
    {"type":"content_block_start","index":2,"content_block":{"type":"tool_use","id":"","name":"add","input":{}}},
    {"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":"{\"a\": 1}"}},
    {"type":"content_block_stop","index":2},
    {"type":"message_delta","delta":{"stop_reason":"tool_use","stop_sequence":null},
     "usage":{"input_tokens":21,"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":82,
              "output_tokens_details":{"thinking_tokens":9}}},
    {"type":"message_stop"}])");
  EXPECT_EQ(id.get<std::string>().size(), 9U);
  all[7]["content_block"]["id"] = "";
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(all[i + 1], expected[i]) << i;
}

// What a client makes of the events.
json added_up(const std::vector<json>& events) {
  json message;
  std::vector<std::string> inputs;
  for (const json& event : events) {
    const std::string type = event["type"];
    if (type == "message_start") message = event["message"];
    if (type == "content_block_start") {
      EXPECT_EQ(event["index"], message["content"].size());
      message["content"].push_back(event["content_block"]);
      inputs.emplace_back();
    }
    if (type == "content_block_delta") {
      const size_t index = event["index"];
      const json& delta = event["delta"];
      json& block = message["content"].at(index);
      if (delta["type"] == "input_json_delta") {
        inputs.at(index) += delta["partial_json"].get<std::string>();
        if (json::accept(inputs[index])) block["input"] = json::parse(inputs[index]);
      } else {
        const char* key = delta["type"] == "text_delta" ? "text" : "thinking";
        block[key] = block[key].get<std::string>() + delta[key].get<std::string>();
      }
    }
    if (type == "message_delta") {
      message.update(event["delta"]);
      message["usage"] = event["usage"];
    }
  }
  return message;
}

TEST_F(MessagesService, AStreamAddsUpToTheWholeAnswer) {
  open(kFormats);
  std::mt19937 random(6);
  for (
      const std::string text : {
          "just text \xC3\xA9",
          "<think>\nthought\n</think>\n\nsaid",
          "<think>never ends",
          R"(One <tool_call>{"name": "add", "arguments": {"a": "é"}}</tool_call><tool_call>{"name": "add"}</tool_call> and)",
          R"(<tool_call>{"name": "add", "arguments": {"a": "b)",
          R"(<tool_call>{"nope)",
          "a STOP b",
          "",
      }) {
    for (const FinishReason reason : {FinishReason::kStop, FinishReason::kLength}) {
      const std::string members = std::string(kTools) + R"(,"stop_sequences":["STOP"])";
      const json expected = whole(members, text, reason);
      for (int round = 0; round < 5; ++round) {
        const size_t id = engine_.asked();
        const auto exchange = submit(kPath, with(members + R"(,"stream":true)"));
        answer_in_parts(*exchange, id, text, random_cuts(random, text.size()), reason);
        const std::vector<json> all = named_events(exchange->stream);
        EXPECT_EQ(added_up(all), expected) << text;
        EXPECT_EQ(all.back()["type"], "message_stop");
      }
    }
  }
}

TEST_F(MessagesService, AFaultInAStreamIsAnEvent) {
  open();
  const auto exchange = submit(kPath, with(R"("stream":true)"));
  engine_.send(0, {.finish = FinishReason::kError, .error = Error{ErrorKind::kInternal, "broken"}});
  EXPECT_TRUE(exchange->run_until([&] { return exchange->done; }));
  EXPECT_EQ(named_events(exchange->stream).back(),
            json::parse(R"({"type":"error","error":{"type":"api_error","message":"broken"}})"));
}

TEST_F(MessagesService, CountsTokens) {
  open();
  const std::string path = "/v1/messages/count_tokens";
  const HttpResponse counted = post(path, R"({"model":"m","system":"s","messages":[{"role":"user","content":"a"}]})");
  EXPECT_EQ(counted.status, 200);
  EXPECT_EQ(counted.body, R"({"input_tokens":29})");  // "[system]s|[user]a|[assistant]"
  EXPECT_EQ(get(path).status, 405);
  EXPECT_EQ(json::parse(post(path, R"({"messages":[]})").body)["error"]["type"], "invalid_request_error");
  EXPECT_EQ(post(path, R"({"model":"other","messages":[{"role":"user","content":"a"}]})").status, 404);
}

TEST_F(MessagesService, ErrorsHaveTheShapeOfThePath) {
  const auto type_of = [](const HttpResponse& response) {
    const json body = json::parse(response.body);
    EXPECT_EQ(body["type"], "error") << response.body;
    EXPECT_FALSE(body["error"]["message"].get<std::string>().empty());
    return body["error"]["type"].get<std::string>();
  };
  EXPECT_EQ(type_of(post(kPath, "{}")), "overloaded_error");  // the model loads
  open();
  EXPECT_EQ(type_of(post(kPath, "{}")), "invalid_request_error");
  EXPECT_EQ(type_of(get(kPath)), "invalid_request_error");
  EXPECT_EQ(type_of(get("/v1/messages/batches")), "not_found_error");
  EXPECT_EQ(type_of(post(kPath, with(R"("model":"other")"))), "not_found_error");
  HttpRequest form = request_of("POST", kPath, "{}");
  form.headers = {{"content-type", "text/plain"}};
  EXPECT_EQ(type_of(ask(form)), "invalid_request_error");
  engine_.fail_next({ErrorKind::kExhausted, "the queue is full"});
  const HttpResponse full = post(kPath, with(R"("temperature":0)"));
  EXPECT_EQ(full.status, 429);
  EXPECT_EQ(type_of(full), "rate_limit_error");
  EXPECT_EQ(header(full, "Retry-After"), "1");
}

class MessagesWithKey : public ServiceTest {
 protected:
  MessagesWithKey() : ServiceTest(ServiceOptions{.served_model_names = {"m"}, .api_keys = {"sesame"}}) {}
};

TEST_F(MessagesWithKey, AKeyMayComeInEitherHeader) {
  open();
  const auto status = [&](const Headers& headers) {
    return ask(request_of("POST", "/v1/messages", "{}", headers)).status;
  };
  EXPECT_EQ(status({}), 401);
  EXPECT_EQ(status({{"x-api-key", "sesam"}}), 401);
  EXPECT_EQ(status({{"x-api-key", ""}}), 401);
  EXPECT_EQ(status({{"x-api-key", "Bearer sesame"}}), 401);
  EXPECT_EQ(status({{"x-api-key", "sesame"}}), 400);
  EXPECT_EQ(status({{"authorization", "Bearer sesame"}}), 400);
  EXPECT_EQ(status({{"authorization", "Bearer no"}, {"x-api-key", "sesame"}}), 400);
  EXPECT_EQ(json::parse(ask(request_of("POST", "/v1/messages", "{}")).body)["error"]["type"], "authentication_error");
}

}  // namespace
}  // namespace quire::api
