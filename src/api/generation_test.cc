// What answers look like: text, tokens, log-probabilities, streams.
#include "api/test_service.h"

namespace quire::api {
namespace {

TEST_F(ServiceTest, CompletesAPromptOfText) {
  open();
  const auto exchange = submit("/v1/completions", R"({"model":"alias","prompt":"ab","temperature":0})");
  const Request asked = engine_.request(0);
  EXPECT_EQ(asked.prompt, bytes_of("ab"));
  EXPECT_EQ(asked.sampling.max_tokens, 16);
  EXPECT_EQ(asked.sampling.temperature, 0.0F);
  EXPECT_FALSE(asked.sampling.logprobs.has_value());
  engine_.send(0, {.tokens = bytes_of("xy"), .cached_tokens = 1});
  engine_.send_text(0, "z", FinishReason::kLength);
  const json body = finish(*exchange);
  EXPECT_EQ(body["object"], "text_completion");
  EXPECT_EQ(body["model"], "alias");
  EXPECT_EQ(body["choices"][0]["text"], "xyz");
  EXPECT_EQ(body["choices"][0]["finish_reason"], "length");
  EXPECT_TRUE(body["choices"][0]["stop_reason"].is_null());
  EXPECT_TRUE(body["choices"][0]["logprobs"].is_null());
  EXPECT_FALSE(body["choices"][0].contains("token_ids"));
  EXPECT_EQ(
      body["usage"],
      json::parse(
          R"({"prompt_tokens":2,"completion_tokens":3,"total_tokens":5,"prompt_tokens_details":{"cached_tokens":1}})"));
  EXPECT_EQ(body["system_fingerprint"].get<std::string>().size(), 6U + 32U);
  EXPECT_EQ(header(exchange->answer, "X-Quire-Seed"), "");  // greedy
}

TEST_F(ServiceTest, ChoosesASeedOnlyForARequestThatSamplesWithoutOne) {
  open();
  const auto without = submit("/v1/completions", R"({"prompt":"a"})");
  EXPECT_EQ(engine_.request(0).sampling.seed, 42U);
  engine_.send_text(0, "b", FinishReason::kLength);
  finish(*without);
  EXPECT_EQ(header(without->answer, "X-Quire-Seed"), "42");
  const auto with = submit("/v1/completions", R"({"prompt":"a","seed":7})");
  EXPECT_EQ(engine_.request(1).sampling.seed, 7U);
  engine_.send_text(1, "b", FinishReason::kLength);
  finish(*with);
  EXPECT_EQ(header(with->answer, "X-Quire-Seed"), "");
}

TEST_F(ServiceTest, KeepsPromptsAndAnswersApart) {
  open();
  const auto exchange = submit("/v1/completions", R"({"prompt":[[97],[98,99]],"n":2,"temperature":0})", 4);
  EXPECT_EQ(engine_.request(1).prompt, bytes_of("a"));
  EXPECT_EQ(engine_.request(2).prompt, bytes_of("bc"));
  EXPECT_EQ(engine_.request(2).sampling.choice, 0);
  EXPECT_EQ(engine_.request(3).sampling.choice, 1);
  for (const size_t i : {3U, 1U, 0U, 2U}) engine_.send_text(i, std::to_string(i), FinishReason::kStop);
  const json body = finish(*exchange);
  ASSERT_EQ(body["choices"].size(), 4U);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(body["choices"][i]["index"], i);
    EXPECT_EQ(body["choices"][i]["text"], std::to_string(i));
  }
  EXPECT_EQ(body["usage"]["prompt_tokens"], 3);
  EXPECT_EQ(body["usage"]["completion_tokens"], 4);
}

TEST_F(ServiceTest, ShowsLogprobsAsVllmDoes) {
  open();
  const auto exchange =
      submit("/v1/completions",
             R"({"prompt":[97,98],"logprobs":2,"prompt_logprobs":1,"return_token_ids":true,"temperature":0})");
  EXPECT_EQ(engine_.request(0).sampling.logprobs, 2);
  EXPECT_EQ(engine_.request(0).sampling.prompt_logprobs, 1);
  engine_.send(0, {.tokens = {'x'},
                   .logprobs = {position('x', -0.5F, {{'x', -0.5F, 1}, {'y', -1.0F, 2}})},
                   .prompt_logprobs = {position('b', -3.0F, {{'c', -0.25F, 1}}, 4)}});
  engine_.send(0, {.tokens = {0xe2},
                   .logprobs = {position(0xe2, -INFINITY, {{'z', -0.5F, 1}, {0xe3, -2.0F, 2}})},
                   .finish = FinishReason::kLength});
  const json choice = finish(*exchange)["choices"][0];
  EXPECT_EQ(choice["text"], "x\xef\xbf\xbd");
  EXPECT_EQ(
      choice["logprobs"],
      json::parse(
          "{\"tokens\":[\"x\",\"\xef\xbf\xbd\"],\"token_logprobs\":[-0.5,-9999.0],"
          "\"top_logprobs\":[{\"x\":-0.5,\"y\":-1.0},{\"\xef\xbf\xbd\":-9999.0,\"z\":-0.5}],\"text_offset\":[0,1]}"));
  EXPECT_EQ(
      choice["prompt_logprobs"],
      json::parse(
          R"([null,{"98":{"logprob":-3.0,"rank":4,"decoded_token":"b"},"99":{"logprob":-0.25,"rank":1,"decoded_token":"c"}}])"));
  EXPECT_EQ(choice["token_ids"], json::parse("[120,226]"));
  EXPECT_EQ(choice["prompt_token_ids"], json::parse("[97,98]"));
}

TEST_F(ServiceTest, NamesTokensByIdsWhereAsked) {
  open();
  const auto exchange = submit("/v1/completions", R"({"prompt":[97],"logprobs":1,"return_tokens_as_token_ids":true})");
  engine_.send(
      0, {.tokens = {'x'}, .logprobs = {position('x', -0.5F, {{'y', -0.25F, 1}}, 2)}, .finish = FinishReason::kLength});
  const json logprobs = finish(*exchange)["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs["tokens"], json::parse(R"(["token_id:120"])"));
  EXPECT_EQ(logprobs["top_logprobs"], json::parse(R"([{"token_id:120":-0.5,"token_id:121":-0.25}])"));
}

TEST_F(ServiceTest, EchoesThePrompt) {
  open();
  const auto exchange = submit("/v1/completions", R"({"prompt":"ab","echo":true,"logprobs":1,"max_tokens":0})");
  EXPECT_EQ(engine_.request(0).sampling.max_tokens, 1);
  EXPECT_EQ(engine_.request(0).sampling.prompt_logprobs, 1);
  engine_.send(0, {.tokens = {'x'},
                   .logprobs = {position('x', -0.5F, {})},
                   .prompt_logprobs = {position('b', -1.0F, {{'b', -1.0F, 1}})},
                   .finish = FinishReason::kLength});
  const json body = finish(*exchange);
  EXPECT_EQ(body["choices"][0]["text"], "ab");
  EXPECT_EQ(
      body["choices"][0]["logprobs"],
      json::parse(
          R"({"tokens":["a","b"],"token_logprobs":[null,-1.0],"top_logprobs":[null,{"b":-1.0}],"text_offset":[0,1]})"));
  EXPECT_EQ(body["usage"]["completion_tokens"], 0);
}

// Each logprobs list of all chunks of an answer, put together.
json joined_logprobs(const std::vector<json>& chunks, int index) {
  json all = json::object();
  for (const json& chunk : chunks) {
    const json& choice = chunk["choices"][0];
    if (choice["index"] != index) continue;
    for (const auto& [name, list] : choice["logprobs"].items()) {
      for (const json& item : list) all[name].push_back(item);
    }
  }
  return all;
}

TEST_F(ServiceTest, StreamsAnEchoedPromptWithItsLogprobs) {
  open();
  const auto exchange =
      submit("/v1/completions", R"({"prompt":"ab","echo":true,"logprobs":1,"stream":true,"temperature":0})");
  EXPECT_EQ(engine_.request(0).sampling.prompt_logprobs, 1);
  engine_.send(0, {.tokens = {'x'},
                   .logprobs = {position('x', -0.5F, {{'y', -0.25F, 1}}, 2)},
                   .prompt_logprobs = {position('b', -1.0F, {{'c', -0.5F, 1}}, 2)}});
  exchange->run_ready();
  engine_.send(0, {.tokens = {'y'}, .logprobs = {position('y', -2.0F, {})}, .finish = FinishReason::kLength});
  const auto chunks = finish_stream(*exchange);
  ASSERT_EQ(chunks.size(), 2U);
  // vLLM's first chunk: the prompt and the first token together.
  EXPECT_EQ(chunks[0]["choices"][0]["text"], "abx");
  EXPECT_EQ(
      chunks[0]["choices"][0]["logprobs"],
      json::parse(
          R"({"tokens":["a","b","x"],"token_logprobs":[null,-1.0,-0.5],"top_logprobs":[null,{"b":-1.0,"c":-0.5},{"x":-0.5,"y":-0.25}],"text_offset":[0,1,2]})"));
  EXPECT_EQ(chunks[1]["choices"][0]["text"], "y");
  EXPECT_EQ(chunks[1]["choices"][0]["logprobs"],
            json::parse(R"({"tokens":["y"],"token_logprobs":[-2.0],"top_logprobs":[{"y":-2.0}],"text_offset":[3]})"));
  EXPECT_FALSE(chunks[0]["choices"][0].contains("prompt_logprobs"));
}

TEST_F(ServiceTest, StreamsAnEchoAlone) {
  open();
  for (const char* logprobs : {"", R"(,"logprobs":0)"}) {
    const size_t id = engine_.asked();
    const auto exchange = submit(
        "/v1/completions", R"({"prompt":"ab","echo":true,"stream":true,"max_tokens":0)" + std::string(logprobs) + "}");
    engine_.send(id, {.tokens = {'x'},
                      .logprobs = {position('x', -0.5F, {})},
                      .prompt_logprobs = {position('b', -1.0F, {})},
                      .finish = FinishReason::kLength});
    const auto chunks = finish_stream(*exchange);
    ASSERT_EQ(chunks.size(), 1U);
    EXPECT_EQ(chunks[0]["choices"][0]["text"], "ab");
    EXPECT_EQ(chunks[0]["choices"][0]["finish_reason"], "length");
    if (*logprobs != 0) {
      EXPECT_EQ(chunks[0]["choices"][0]["logprobs"]["tokens"], json::parse(R"(["a","b"])"));
    }
  }
}

// With n answers only the first request brings the prompt's log-probabilities: the others wait, whoever comes first.
TEST_F(ServiceTest, StreamsTheEchoOfAllAnswersInAnyOrder) {
  open();
  const std::vector<std::vector<size_t>> orders = {
      {0, 1, 2, 0, 1, 2}, {2, 1, 0, 2, 1, 0}, {1, 1, 2, 2, 0, 0}, {1, 0, 0, 1, 2, 2}};
  for (const auto& order : orders) {
    const size_t base = engine_.asked();
    const auto exchange =
        submit("/v1/completions", R"({"prompt":"ab","n":3,"echo":true,"logprobs":0,"stream":true,"temperature":0})", 3);
    std::vector<int> sent(3, 0);
    for (const size_t answer : order) {
      const auto token = static_cast<TokenId>('p' + answer);
      Update update{.tokens = {token}, .logprobs = {position(token, -0.5F, {})}};
      if (sent[answer]++ == 0 && answer == 0) update.prompt_logprobs = {position('b', -1.0F, {})};
      if (sent[answer] == 2) update.finish = FinishReason::kLength;
      engine_.send(base + answer, std::move(update));
    }
    const auto chunks = finish_stream(*exchange);
    for (int answer = 0; answer < 3; ++answer) {
      std::string text;
      int endings = 0;
      for (const json& chunk : chunks) {
        if (chunk["choices"][0]["index"] != answer) continue;
        text += chunk["choices"][0]["text"].get<std::string>();
        endings += chunk["choices"][0]["finish_reason"].is_null() ? 0 : 1;
      }
      const std::string name(1, static_cast<char>('p' + answer));
      EXPECT_EQ(text, "ab" + name + name);
      EXPECT_EQ(endings, 1);
      const json logprobs = joined_logprobs(chunks, answer);
      EXPECT_EQ(logprobs["tokens"], json::array({"a", "b", name, name}));
      EXPECT_EQ(logprobs["token_logprobs"], json::parse("[null,-1.0,-0.5,-0.5]"));
      EXPECT_EQ(logprobs["text_offset"], json::parse("[0,1,2,3]"));
    }
  }
}

TEST_F(ServiceTest, CountsTheTokensOfReasoning) {
  open({.reasoning = ReasoningFormat::kThink});
  const std::string messages = R"({"messages":[{"role":"user","content":"a"}],"stream":)";
  for (const std::string& answer : {std::string("<think>Add.</think>Well."), std::string("Well.")}) {
    const size_t id = engine_.asked();
    const auto whole = submit("/v1/chat/completions", messages + "false}");
    engine_.send_text(id, answer, FinishReason::kStop);
    const auto stream = submit("/v1/chat/completions", messages + R"(true,"stream_options":{"include_usage":true}})");
    engine_.send_text(id + 1, answer, FinishReason::kStop);
    const json usage = finish(*whole)["usage"];
    EXPECT_EQ(usage.contains("completion_tokens_details"), answer.starts_with("<think>"));
    // "<think>Add.": a token a byte; the end of it counts for the text.
    if (answer.starts_with("<think>")) {
      EXPECT_EQ(usage["completion_tokens_details"]["reasoning_tokens"], 11);
    }
    EXPECT_EQ(finish_stream(*stream).back()["usage"], usage);
  }
}

TEST_F(ServiceTest, EndsAtAStopStringAndCancelsTheRest) {
  open();
  const auto exchange = submit("/v1/completions", R"({"prompt":"a","stop":["END","\n"],"return_token_ids":true})");
  engine_.send_text(0, "one E");
  engine_.send_text(0, "ND two");
  const json body = finish(*exchange);
  EXPECT_EQ(body["choices"][0]["text"], "one ");
  EXPECT_EQ(body["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(body["choices"][0]["stop_reason"], "END");
  EXPECT_EQ(body["choices"][0]["token_ids"].size(), 7U);  // to the one that completed the stop string
  EXPECT_EQ(body["usage"]["completion_tokens"], 7);
  EXPECT_EQ(engine_.cancelled(), (std::vector<uint64_t>{0}));
  engine_.send(0, {.finish = FinishReason::kAborted});
  exchange->run_ready();
  EXPECT_EQ(metric("vllm:request_success_total{model_name=\"m\",engine=\"0\",finished_reason=\"stop\""), "1");
  EXPECT_EQ(metric("vllm:request_success_total{model_name=\"m\",engine=\"0\",finished_reason=\"abort\""), "0");
}

TEST_F(ServiceTest, DoesNotDependOnHowUpdatesCutTheTokens) {
  open();
  const std::string text = "häuser → ENEND tail";
  json whole;
  for (const size_t step : {text.size(), size_t{1}, size_t{2}, size_t{3}}) {
    const size_t id = engine_.asked();
    const auto exchange =
        submit("/v1/completions", R"({"prompt":"a","stop":"END","include_stop_str_in_output":true,"max_tokens":100})");
    for (size_t at = 0; at < text.size(); at += step) engine_.send_text(id, text.substr(at, step));
    const json choice = finish(*exchange)["choices"][0];
    EXPECT_EQ(choice["text"], "häuser → ENEND");
    if (whole.is_null()) whole = choice;
    EXPECT_EQ(choice, whole) << step;
  }
}

TEST_F(ServiceTest, LooksForStopStringsOnlyAfterMinTokens) {
  open();
  const auto exchange = submit("/v1/completions", R"({"prompt":"a","stop":".","min_tokens":3})");
  engine_.send_text(0, "a..b.c");
  EXPECT_EQ(finish(*exchange)["choices"][0]["text"], "a..b");
}

TEST_F(ServiceTest, LeavesTheEndTokenOutOfTheText) {
  open();
  const auto end = submit("/v1/completions", R"({"prompt":"a","skip_special_tokens":false,"return_token_ids":true})");
  engine_.send(0, {.tokens = {'x', kEndToken}, .finish = FinishReason::kStop, .stop_token = kEndToken});
  const json ended = finish(*end)["choices"][0];
  EXPECT_EQ(ended["text"], "x");
  EXPECT_TRUE(ended["stop_reason"].is_null());
  EXPECT_EQ(ended["token_ids"], json::parse("[120,257]"));
  const auto stop =
      submit("/v1/completions",
             R"({"prompt":"a","stop_token_ids":[258],"include_stop_str_in_output":true,"skip_special_tokens":false})");
  EXPECT_EQ(engine_.request(1).sampling.stop_token_ids, (std::vector<TokenId>{258}));
  engine_.send(1, {.tokens = {'x', kOtherStop}, .finish = FinishReason::kStop, .stop_token = kOtherStop});
  const json stopped = finish(*stop)["choices"][0];
  EXPECT_EQ(stopped["text"], "x<|stop|>");
  EXPECT_EQ(stopped["stop_reason"], 258);
}

// What the io thread has not taken yet grows into one update, and one event.
TEST_F(ServiceTest, StreamsWhatCameTogetherAsOneEvent) {
  open();
  const auto exchange = submit("/v1/completions", R"({"prompt":"a","stream":true,"logprobs":0,"n":2})", 2);
  engine_.send(0, {.tokens = {'x'}, .logprobs = {position('x', -0.5F, {})}, .cached_tokens = 1});
  engine_.send(1, {.tokens = {'u'}, .logprobs = {position('u', -0.5F, {})}});
  engine_.send(0, {.tokens = {'y'}, .logprobs = {position('y', -1.5F, {})}, .cached_tokens = 1});
  exchange->run_ready();
  engine_.send(0, {.tokens = {'z'}, .logprobs = {position('z', -2.5F, {})}});
  engine_.send(0, {.finish = FinishReason::kLength});
  engine_.send(1, {.tokens = {kEndToken}, .finish = FinishReason::kStop, .stop_token = kEndToken});
  const auto chunks = finish_stream(*exchange);
  ASSERT_EQ(chunks.size(), 4U);
  EXPECT_EQ(chunks[0]["choices"][0]["text"], "xy");
  EXPECT_EQ(chunks[0]["choices"][0]["logprobs"]["token_logprobs"], json::parse("[-0.5,-1.5]"));
  EXPECT_EQ(chunks[1]["choices"][0]["text"], "u");
  EXPECT_EQ(chunks[2]["choices"][0]["text"], "z");
  EXPECT_EQ(chunks[2]["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(chunks[3]["choices"][0]["text"], "");
  EXPECT_EQ(chunks[3]["choices"][0]["finish_reason"], "stop");
}

TEST_F(ServiceTest, StreamsWholeCharactersAndUsage) {
  open();
  const auto exchange =
      submit("/v1/completions", R"({"prompt":"a","stream":true,"stream_options":{"include_usage":true}})");
  engine_.send_text(0, "h\xc3");
  exchange->run_ready();
  engine_.send_text(0, "\xa9!", FinishReason::kLength);
  const auto chunks = finish_stream(*exchange);
  EXPECT_EQ(exchange->answer.content_type, "text/event-stream; charset=utf-8");
  EXPECT_EQ(header(exchange->answer, "X-Quire-Seed"), "42");
  ASSERT_EQ(chunks.size(), 3U);
  EXPECT_EQ(chunks[0]["choices"][0]["text"], "h");
  EXPECT_TRUE(chunks[0]["choices"][0]["finish_reason"].is_null());
  EXPECT_TRUE(chunks[0]["usage"].is_null());
  EXPECT_EQ(chunks[1]["choices"][0]["text"], "é!");
  EXPECT_EQ(chunks[1]["choices"][0]["finish_reason"], "length");
  EXPECT_TRUE(chunks[2]["choices"].empty());
  EXPECT_EQ(chunks[2]["usage"]["completion_tokens"], 4);
  EXPECT_EQ(chunks[0]["id"], chunks[2]["id"]);
}

TEST_F(ServiceTest, NeverLeaksAStopStringIntoAStream) {
  open();
  const auto exchange =
      submit("/v1/chat/completions", R"({"messages":[{"role":"user","content":"hi"}],"stream":true,"stop":["<end>"]})");
  for (const char* piece : {"a <", "en", "x <e", "nd", "> b"}) engine_.send_text(0, piece);
  std::string text;
  for (const json& chunk : finish_stream(*exchange)) text += chunk["choices"][0]["delta"]["content"].get<std::string>();
  EXPECT_EQ(text, "a <enx ");
  EXPECT_EQ(engine_.cancelled().size(), 1U);
}

TEST_F(ServiceTest, Chats) {
  open();
  const auto exchange =
      submit("/v1/chat/completions", R"({"messages":[{"role":"system","content":"S"},{"role":"user","content":"hi"}],
      "logprobs":true,"top_logprobs":1,"chat_template_kwargs":{"mood":"glad"},"tools":[{"type":"function","function":{"name":"f"}}]})");
  EXPECT_EQ(engine_.request(0).prompt, bytes_of("[system]S|[user]hiT1(glad)|[assistant]"));
  EXPECT_EQ(engine_.request(0).sampling.max_tokens, INT32_MAX);  // to the end of the context
  engine_.send(0, {.tokens = {'o', 'k'},
                   .logprobs = {position('o', -0.5F, {{'o', -0.5F, 1}}), position('k', -1.5F, {{'x', -0.5F, 1}}, 2)},
                   .finish = FinishReason::kStop,
                   .stop_token = std::nullopt});
  const json body = finish(*exchange);
  EXPECT_EQ(body["object"], "chat.completion");
  EXPECT_EQ(body["choices"][0]["message"], json::parse(R"({"role":"assistant","content":"ok","refusal":null})"));
  EXPECT_EQ(
      body["choices"][0]["logprobs"]["content"][1],
      json::parse(
          R"({"token":"k","logprob":-1.5,"bytes":[107],"top_logprobs":[{"token":"x","logprob":-0.5,"bytes":[120]}]})"));
}

TEST_F(ServiceTest, StreamsChats) {
  open();
  const auto exchange =
      submit("/v1/chat/completions", R"({"messages":[{"role":"user","content":"hi"}],"stream":true,"n":2})", 2);
  engine_.send_text(1, "B");
  exchange->run_ready();
  engine_.send_text(0, "A", FinishReason::kStop);
  exchange->run_ready();
  engine_.send_text(1, "b", FinishReason::kLength);
  const auto chunks = finish_stream(*exchange);
  ASSERT_EQ(chunks.size(), 3U);
  EXPECT_EQ(chunks[0]["object"], "chat.completion.chunk");
  EXPECT_EQ(chunks[0]["choices"][0]["index"], 1);
  EXPECT_EQ(chunks[0]["choices"][0]["delta"], json::parse(R"({"role":"assistant","content":"B"})"));
  EXPECT_EQ(chunks[2]["choices"][0]["delta"], json::parse(R"({"content":"b"})"));
  EXPECT_EQ(chunks[2]["choices"][0]["finish_reason"], "length");
}

TEST_F(ServiceTest, ContinuesAFinalMessage) {
  open();
  submit("/v1/chat/completions",
         R"({"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"Once upon "}],
      "continue_final_message":true,"chat_template_kwargs":{"mood":"glad"}})");
  EXPECT_EQ(engine_.request(0).prompt, bytes_of("[user]hi|[assistant]Once upon "));
}

}  // namespace
}  // namespace quire::api
