// What the service answers: routes, keys, statuses, what a client's leaving does.
#include "api/test_service.h"

namespace quire::api {
namespace {

TEST_F(ServiceTest, AnswersNothingBeforeTheModelIsThere) {
  EXPECT_EQ(get("/health").status, 503);
  EXPECT_EQ(post("/v1/completions", "{}").status, 503);
  EXPECT_EQ(get("/version").status, 200);
  open();
  EXPECT_EQ(get("/health").status, 200);
  EXPECT_EQ(get("/ready").status, 200);
}

TEST_F(ServiceTest, RefusesUnknownPathsMethodsAndTypes) {
  open();
  EXPECT_EQ(get("/nowhere").status, 404);
  EXPECT_EQ(get("/v1/completions").status, 405);
  EXPECT_EQ(post("/health", "").status, 405);
  HttpRequest form = request_of("POST", "/v1/completions", "{}");
  form.headers = {{"content-type", "text/plain"}};
  EXPECT_EQ(ask(form).status, 415);
  form.headers = {{"content-type", "application/json; charset=utf-8"}};
  EXPECT_EQ(ask(form).status, 400);
}

TEST_F(ServiceTest, TakesNoBodyThatIsCompressed) {
  open();
  for (const char* path : {"/v1/completions", "/v1/chat/completions", "/v1/responses", "/tokenize", "/detokenize"}) {
    for (const char* coding : {"gzip", "GZIP", "deflate", "br", "zstd", "identity, gzip", "x"}) {
      const HttpResponse refusal = ask(request_of("POST", path, "{}", {{"content-encoding", coding}}));
      EXPECT_EQ(refusal.status, 415) << path << " " << coding;
      EXPECT_EQ(json::parse(refusal.body)["error"]["code"], "unsupported_media_type");
    }
    const Headers two = {{"content-encoding", "identity"}, {"content-encoding", "gzip"}};
    EXPECT_EQ(ask(request_of("POST", path, "{}", two)).status, 415);
    for (const char* coding : {"identity", "Identity", ""})
      EXPECT_EQ(ask(request_of("POST", path, "{}", {{"content-encoding", coding}})).status, 400) << coding;
  }
}

TEST_F(ServiceTest, KnowsNoModelWithoutAName) {
  open();
  EXPECT_EQ(get("/v1/models/").status, 404);
  for (const auto& [path, body] : std::vector<std::pair<std::string, std::string>>{
           {"/v1/completions", R"("prompt":"a")"},
           {"/v1/chat/completions", R"("messages":[{"role":"user","content":"hi"}])"},
           {"/v1/responses", R"("input":"hi")"},
           {"/tokenize", R"("prompt":"a")"},
           {"/detokenize", R"("tokens":[97])"}}) {
    for (const char* name : {"", "other", " m", "M"}) {
      const HttpResponse refusal = post(path, R"({"model":")" + std::string(name) + "\"," + body + "}");
      EXPECT_EQ(refusal.status, 404) << path << " '" << name << "'";
      EXPECT_EQ(json::parse(refusal.body)["error"]["param"], "model");
    }
  }
  EXPECT_EQ(post("/tokenize", R"({"model":null,"prompt":"a"})").status, 200);
}

TEST_F(ServiceTest, ListsModels) {
  open();
  const json list = json::parse(get("/v1/models").body);
  ASSERT_EQ(list["data"].size(), 2U);
  EXPECT_EQ(list["data"][0]["id"], "m");
  EXPECT_EQ(list["data"][0]["max_model_len"], kTestLength);
  EXPECT_EQ(json::parse(get("/v1/models/alias").body)["id"], "alias");
  EXPECT_EQ(get("/v1/models/other").status, 404);
}

TEST_F(ServiceTest, ServesThePageAndItsParts) {
  open();
  EXPECT_NE(get("/").body.find("<title>Quire</title>"), std::string::npos);
  EXPECT_EQ(get("/app.js").content_type, "text/javascript; charset=utf-8");
  EXPECT_EQ(get("/style.css").status, 200);
  EXPECT_EQ(get("/icon.svg").content_type, "image/svg+xml; charset=utf-8");
  EXPECT_NE(header(get("/"), "Content-Security-Policy"), "");
}

TEST_F(ServiceTest, ServesTokenIdsAloneWithoutATokenizer) {
  open_without_text();
  const auto exchange = submit("/v1/completions", R"({"prompt":[1,2],"logprobs":1})");
  engine_.send(0, {.tokens = {7}, .logprobs = {position(7, -0.5F, {})}, .finish = FinishReason::kLength});
  const json choice = finish(*exchange)["choices"][0];
  EXPECT_EQ(choice["text"], "");
  EXPECT_EQ(choice["token_ids"], json::parse("[7]"));
  EXPECT_EQ(choice["logprobs"]["tokens"], json::parse(R"(["token_id:7"])"));
  for (const auto& [path, body] : std::vector<std::pair<std::string, std::string>>{
           {"/v1/completions", R"({"prompt":"text"})"},
           {"/v1/completions", R"({"prompt":[1],"stop":"x"})"},
           {"/v1/chat/completions", R"({"messages":[{"role":"user","content":"hi"}]})"},
           {"/tokenize", R"({"prompt":"text"})"},
           {"/detokenize", R"({"tokens":[1]})"}}) {
    const HttpResponse refusal = post(path, body);
    EXPECT_EQ(refusal.status, 400) << body;
    EXPECT_NE(refusal.body.find("tokenizer"), std::string::npos) << refusal.body;
  }
}

TEST_F(ServiceTest, SaysBothNumbersOfAPromptThatIsTooLong) {
  open();
  const json error =
      json::parse(post("/v1/completions", "{\"prompt\":\"" + std::string(300, 'a') + "\"}").body)["error"];
  EXPECT_NE(error["message"].get<std::string>().find("300"), std::string::npos);
  EXPECT_NE(error["message"].get<std::string>().find("256"), std::string::npos);
  EXPECT_EQ(error["param"], "prompt");
  const json most = json::parse(post("/v1/completions", R"({"prompt":"ab","max_tokens":255})").body)["error"];
  EXPECT_EQ(most["param"], "max_tokens");
  EXPECT_NE(most["message"].get<std::string>().find("254"), std::string::npos);
  const auto fits =
      submit("/v1/completions", "{\"prompt\":\"" + std::string(300, 'a') + "b\",\"truncate_prompt_tokens\":2}");
  EXPECT_EQ(engine_.request(0).prompt, bytes_of("ab"));
}

TEST_F(ServiceTest, RefusesTextThatIsFarTooLongUnread) {
  open();
  const HttpResponse refusal = post("/v1/completions", "{\"prompt\":\"" + std::string(2 << 20, 'a') + "\"}");
  EXPECT_EQ(refusal.status, 400);
  EXPECT_NE(refusal.body.find("2097152 bytes"), std::string::npos) << refusal.body;
  const std::string long_text(2 << 20, 'a');
  for (const std::string& body :
       {"{\"prompt\":\"" + long_text + "\"}", R"({"messages":[{"role":"user","content":")" + long_text + "\"}]}"}) {
    const HttpResponse tokens = post("/tokenize", body);
    EXPECT_EQ(tokens.status, 400);
    EXPECT_NE(tokens.body.find("bytes"), std::string::npos) << tokens.body;
  }
  // Text beyond the model's length is counted all the same.
  EXPECT_EQ(json::parse(post("/tokenize", "{\"prompt\":\"" + std::string(5000, 'a') + "\"}").body)["count"], 5000);
}

TEST_F(ServiceTest, BoundsTheIdsThatBecomeText) {
  open();
  const auto ids = [](size_t count) {
    std::string list = "97";
    for (size_t i = 1; i < count; ++i) list += ",97";
    return "{\"tokens\":[" + list + "]}";
  };
  EXPECT_EQ(post("/detokenize", ids(1 << 16)).status, 200);
  const HttpResponse refusal = post("/detokenize", ids((1 << 16) + 1));
  EXPECT_EQ(refusal.status, 400);
  const json error = json::parse(refusal.body)["error"];
  EXPECT_EQ(error["param"], "tokens");
  EXPECT_NE(error["message"].get<std::string>().find("65536"), std::string::npos);
}

TEST_F(ServiceTest, MapsFailuresToStatuses) {
  open();
  const HttpResponse unknown = post("/v1/completions", R"({"prompt":"a","model":"other"})");
  EXPECT_EQ(unknown.status, 404);
  EXPECT_EQ(json::parse(unknown.body)["error"]["param"], "model");
  engine_.fail_next({ErrorKind::kExhausted, "the queue is full"});
  const HttpResponse full = post("/v1/completions", R"({"prompt":"a"})");
  EXPECT_EQ(full.status, 429);
  EXPECT_EQ(header(full, "Retry-After"), "1");
  engine_.fail_next({ErrorKind::kInvalidRequest, "no", "seed"});
  EXPECT_EQ(json::parse(post("/v1/completions", R"({"prompt":"a"})").body)["error"]["param"], "seed");
  EXPECT_EQ(post("/v1/completions", "{").status, 400);
}

TEST_F(ServiceTest, AFaultInTheEngineEndsTheRequestAlone) {
  open();
  const auto whole = submit("/v1/completions", R"({"prompt":"a","n":2})", 2);
  engine_.send(0, {.finish = FinishReason::kError, .error = Error{ErrorKind::kInternal, "a fault"}});
  EXPECT_TRUE(whole->run_until([&] { return whole->done; }));
  EXPECT_EQ(whole->answer.status, 500);
  EXPECT_NE(whole->answer.body.find("a fault"), std::string::npos);
  EXPECT_EQ(engine_.cancelled(), (std::vector<uint64_t>{1}));
  const auto stream = submit("/v1/completions", R"({"prompt":"a","stream":true})");
  engine_.send_text(2, "x");
  engine_.send(2, {.finish = FinishReason::kError, .error = Error{ErrorKind::kInternal, "a fault"}});
  const auto chunks = finish_stream(*stream);
  EXPECT_EQ(chunks.back()["error"]["message"], "a fault");
}

TEST_F(ServiceTest, CancelsWhenTheClientLeaves) {
  open();
  const auto exchange = submit("/v1/completions", R"({"prompt":"a","stream":true,"n":2})", 2);
  engine_.send_text(0, "x", FinishReason::kStop);
  exchange->run_ready();
  exchange->leave();
  EXPECT_EQ(engine_.cancelled(), (std::vector<uint64_t>{1}));
  engine_.send(1, {.finish = FinishReason::kAborted});
  exchange->run_ready();
  EXPECT_EQ(metric("vllm:request_success_total{model_name=\"m\",engine=\"0\",finished_reason=\"abort\""), "1");
  EXPECT_EQ(metric("quire:completion_replies_total{model_name=\"m\",engine=\"0\",status=\"499\""), "1");
}

TEST_F(ServiceTest, CancelsAlsoWhenTheClientLeavesBeforeTheIdsAreKnown) {
  open();
  const auto exchange = new_exchange();
  service_.handler().handle(request_of("POST", "/v1/completions", R"({"prompt":"a"})"), exchange);
  while (engine_.asked() == 0) std::this_thread::yield();  // asked, but the news is still a task
  exchange->leave();
  EXPECT_TRUE(exchange->run_until([&] { return !engine_.cancelled().empty(); }));
}

TEST_F(ServiceTest, TokenizesAndBack) {
  open();
  const json text = json::parse(post("/tokenize", R"({"prompt":"aé","return_token_strs":true})").body);
  EXPECT_EQ(text["tokens"], json::parse("[97,195,169]"));
  EXPECT_EQ(text["count"], 3);
  EXPECT_EQ(text["max_model_len"], kTestLength);
  EXPECT_EQ(text["token_strs"].size(), 3U);
  EXPECT_EQ(json::parse(post("/tokenize", R"({"messages":[{"role":"user","content":"x"}]})").body)["count"], 19);
  EXPECT_EQ(json::parse(post("/detokenize", R"({"tokens":[97,195,169]})").body)["prompt"], "aé");
  EXPECT_EQ(post("/detokenize", R"({"tokens":[97,9999]})").status, 400);
}

TEST_F(ServiceTest, TakesRequestIdsAndListsIgnoredFields) {
  open();
  const auto exchange = new_exchange();
  service_.handler().handle(request_of("POST", "/v1/completions", R"({"prompt":"a","future":1,"bad name\r\nX: y":2})",
                                       {{"x-request-id", "mine-1"}}),
                            exchange);
  exchange->run_until([&] { return engine_.asked() == 1; });
  engine_.send_text(0, "x", FinishReason::kStop);
  EXPECT_EQ(finish(*exchange)["id"], "cmpl-mine-1");
  EXPECT_EQ(header(exchange->answer, "X-Request-Id"), "mine-1");
  EXPECT_EQ(header(exchange->answer, "X-Quire-Ignored-Fields"), "future");
}

TEST_F(ServiceTest, ShowsMetrics) {
  open();
  const auto exchange = submit("/v1/completions", R"({"prompt":"abc"})");
  engine_.send_text(0, "x");
  exchange->run_ready();
  engine_.send_text(0, "y", FinishReason::kStop);
  finish(*exchange);
  EXPECT_EQ(metric("vllm:num_requests_running"), "3");
  EXPECT_EQ(metric("vllm:generation_tokens_total"), "11");
  EXPECT_EQ(metric("vllm:kv_cache_usage_perc"), "0");
  EXPECT_EQ(metric("vllm:time_to_first_token_seconds_count"), "1");
  EXPECT_EQ(metric("vllm:inter_token_latency_seconds_count"), "1");
  EXPECT_EQ(metric("vllm:request_prompt_tokens_sum"), "3");
  EXPECT_EQ(metric("vllm:request_prompt_tokens_bucket{model_name=\"m\",engine=\"0\",le=\"2\"}"), "0");
  EXPECT_EQ(metric("vllm:request_prompt_tokens_bucket{model_name=\"m\",engine=\"0\",le=\"5\"}"), "1");
  EXPECT_EQ(metric("vllm:request_generation_tokens_sum"), "2");
}

class SamplingIdsTest : public ServiceTest {
 protected:
  SamplingIdsTest() : ServiceTest(ServiceOptions{.served_model_names = {"m"}, .max_sampling_ids = 12}) {}
};

TEST_F(SamplingIdsTest, BoundsTheIdsOfAllAnswersTogether) {
  open();
  // Two prompts, n of 2, three different ids: just 12.
  submit("/v1/completions",
         R"({"prompt":["a","b"],"n":2,"allowed_token_ids":[1,1,1],"stop_token_ids":[2],)"
         R"("logit_bias":{"3":1}})",
         4);
  for (const auto& [members, param] : std::vector<std::pair<std::string, std::string>>{
           {R"("allowed_token_ids":[1,4],"stop_token_ids":[2],"logit_bias":{"3":1})", "allowed_token_ids"},
           {R"("allowed_token_ids":[1],"stop_token_ids":[2,5],"logit_bias":{"3":1})", "stop_token_ids"},
           {R"("stop_token_ids":[2],"logit_bias":{"1":1,"2":1,"3":1})", "logit_bias"}}) {
    const HttpResponse refusal = post("/v1/completions", R"({"prompt":["a","b"],"n":2,)" + members + "}");
    EXPECT_EQ(refusal.status, 400) << members;
    const json error = json::parse(refusal.body)["error"];
    EXPECT_EQ(error["param"], param);
    EXPECT_NE(error["message"].get<std::string>().find("at most 12 ids"), std::string::npos) << error;
  }
  EXPECT_EQ(engine_.asked(), 4U);
}

class DefaultsTest : public ServiceTest {
 protected:
  DefaultsTest()
      : ServiceTest(ServiceOptions{.served_model_names = {"m"},
                                   .sampling_defaults = {.temperature = 0.0F, .top_k = 7, .max_tokens = 3}}) {}
};

TEST_F(DefaultsTest, TheModelsDefaultsFillInForARequest) {
  open();
  std::vector<std::shared_ptr<FakeExchange>> asked;
  asked.push_back(submit("/v1/completions", R"({"prompt":"a"})"));
  EXPECT_EQ(engine_.request(0).sampling.temperature, 0.0F);
  EXPECT_EQ(engine_.request(0).sampling.top_k, 7);
  EXPECT_EQ(engine_.request(0).sampling.max_tokens, 16);
  const std::string hi = R"("messages":[{"role":"user","content":"hi"}])";
  asked.push_back(submit("/v1/chat/completions", "{" + hi + "}"));
  EXPECT_EQ(engine_.request(1).sampling.max_tokens, 3);
  asked.push_back(submit("/v1/chat/completions", "{" + hi + R"(,"temperature":0.5,"top_k":-1,"max_tokens":5})"));
  EXPECT_EQ(engine_.request(2).sampling.temperature, 0.5F);
  EXPECT_EQ(engine_.request(2).sampling.top_k, 0);
  EXPECT_EQ(engine_.request(2).sampling.max_tokens, 5);
  for (size_t i = 0; i < asked.size(); ++i) {
    engine_.send_text(i, "x", FinishReason::kStop);
    finish(*asked[i]);
  }
}

class OtherDefaultsTest : public ServiceTest {
 protected:
  std::string fingerprint(const SamplingDefaults& defaults) {
    Service service({.served_model_names = {"m"}, .sampling_defaults = defaults});
    FakeEngine engine;
    service.open(engine.backend(&tokenizer_, &template_));
    const auto exchange = new_exchange();
    service.handler().handle(request_of("POST", "/v1/completions", R"({"prompt":"a"})"), exchange);
    EXPECT_TRUE(exchange->run_until([&] { return engine.asked() == 1; }));
    engine.send_text(0, "x", FinishReason::kStop);
    std::string found = finish(*exchange)["system_fingerprint"];
    service.close();
    return found;
  }
};

// Equal fingerprints promise equal answers to equal requests.
TEST_F(OtherDefaultsTest, AreOtherFingerprints) {
  const std::string none = fingerprint({});
  const std::string cool = fingerprint({.temperature = 0.5F});
  EXPECT_NE(none, cool);
  EXPECT_NE(cool, fingerprint({.temperature = 0.25F}));
  EXPECT_EQ(cool, fingerprint({.temperature = 0.5F}));
}

class KeyTest : public ServiceTest {
 protected:
  KeyTest() : ServiceTest(ServiceOptions{.served_model_names = {"m"}, .api_keys = {"sesame", "second"}}) {}
};

TEST_F(KeyTest, AsksForAKey) {
  open();
  EXPECT_EQ(get("/v1/models").status, 401);
  EXPECT_EQ(get("/health").status, 200);
  for (const auto& [value, status] : std::vector<std::pair<std::string, int>>{{"Bearer sesame", 200},
                                                                              {"Bearer second", 200},
                                                                              {"Bearer sesam", 401},
                                                                              {"Bearer ", 401},
                                                                              {"sesame", 401},
                                                                              {"Bearer sesame ", 401}}) {
    EXPECT_EQ(ask(request_of("GET", "/v1/models", {}, {{"authorization", value}})).status, status) << value;
  }
}

}  // namespace
}  // namespace quire::api
