// The `quire` object: in what it is asked for, and in what it comes.
#include "api/test_service.h"

namespace quire::api {
namespace {

const CacheReport kReport = {
    .minimum_reuse_tokens = 32,
    .groups = {{.group = 0,
                .kind = "sliding window",
                .hit_tokens = 32,
                .misses = {{.from = 32, .to = 64, .reason = MissReason::kEvicted, .evicted_seconds_ago = 1.23456},
                           {.from = 64, .to = 70, .reason = MissReason::kBelowMinimum}}}}};
constexpr RequestTimes kTimes = {.queue = 0.0015, .prefill = 0.25, .decode = 1.5};

const json kExpected = json::parse(R"({"queue_ms":1.5,"prefill_ms":250,"decode_ms":1500,"minimum_reuse_tokens":32,
  "groups":[{"group":0,"kind":"sliding window","hit_tokens":32,"misses":[
    {"from":32,"to":64,"reason":"evicted","evicted_seconds_ago":1.235},{"from":64,"to":70,"reason":"below_minimum"}]}]})");

// A first token with the report, then a last one with the latest times.
void answer(FakeEngine& engine) {
  engine.send(0, {.tokens = {'x'}, .times = RequestTimes{}, .cache_report = kReport});
  engine.send(0, {.tokens = {'y'}, .finish = FinishReason::kLength, .times = kTimes});
}

TEST_F(ServiceTest, ExplainsInABody) {
  open();
  const auto exchange = submit("/v1/completions", R"({"prompt":"a","quire":{"explain":true}})");
  EXPECT_TRUE(engine_.request(0).explain_cache);
  answer(engine_);
  EXPECT_EQ(finish(*exchange)["quire"], kExpected);
}

TEST_F(ServiceTest, ExplainsInTheLastChunkOfAStream) {
  for (const bool usage : {false, true}) {
    FakeEngine engine;
    Service service({.served_model_names = {"m"}, .random = [] { return uint64_t{42}; }});
    service.open(engine.backend(&tokenizer_, &template_));
    const auto exchange = new_exchange();
    json body = {
        {"messages", {{{"role", "user"}, {"content", "hi"}}}}, {"stream", true}, {"quire", {{"explain", true}}}};
    if (usage) body["stream_options"] = {{"include_usage", true}};
    service.handler().handle(request_of("POST", "/v1/chat/completions", body.dump()), exchange);
    ASSERT_TRUE(exchange->run_until([&] { return engine.asked() == 1; }));
    answer(engine);
    const auto chunks = finish_stream(*exchange);
    EXPECT_EQ(chunks.back()["quire"], kExpected);
    EXPECT_EQ(chunks.back()["choices"].empty(), usage);
    for (size_t i = 0; i + 1 < chunks.size(); ++i) EXPECT_FALSE(chunks[i].contains("quire"));
    service.close();
  }
}

TEST_F(ServiceTest, ExplainsOnlyWhereAsked) {
  open();
  const auto exchange = submit("/v1/completions", R"({"prompt":"a","quire":{"explain":false}})");
  EXPECT_FALSE(engine_.request(0).explain_cache);
  engine_.send_text(0, "b", FinishReason::kLength);
  EXPECT_FALSE(finish(*exchange).contains("quire"));
}

TEST_F(ServiceTest, ExplainsAnAnswerThatEndsAtAStopString) {
  open();
  const auto exchange = submit("/v1/completions", R"({"prompt":"a","stop":"y","quire":{"explain":true}})");
  engine_.send(0, {.tokens = {'x'}, .times = RequestTimes{}, .cache_report = kReport});
  engine_.send(0, {.tokens = {'y'}, .times = kTimes});
  EXPECT_EQ(finish(*exchange)["quire"], kExpected);
}

TEST_F(ServiceTest, RefusesWhatQuireCannotHold) {
  open();
  for (const char* wrong :
       {R"("quire":true)", R"("quire":[])", R"("quire":{"explain":1})", R"("quire":{"explian":true})",
        R"("quire":{"explain":true,"more":0})", R"("n":2,"quire":{"explain":true})"}) {
    const auto response = post("/v1/completions", R"({"prompt":"a",)" + std::string(wrong) + "}");
    EXPECT_EQ(response.status, 400) << wrong;
    EXPECT_EQ(json::parse(response.body)["error"]["param"], "quire") << wrong;
  }
  EXPECT_EQ(post("/v1/completions", R"({"prompt":["a","b"],"quire":{"explain":true}})").status, 400);
}

TEST_F(ServiceTest, ShowsTimesOfAnswersInItsMetrics) {
  open();
  const auto exchange = submit("/v1/completions", R"({"prompt":"abc","max_tokens":9})");
  engine_.send(0, {.tokens = {'x'}, .finish = FinishReason::kStop, .times = kTimes});
  finish(*exchange);
  EXPECT_EQ(metric("vllm:request_queue_time_seconds_sum"), "0.0015");
  EXPECT_EQ(metric("vllm:request_inference_time_seconds_sum"), "1.75");
  EXPECT_EQ(metric("vllm:request_params_max_tokens_sum"), "9");
  EXPECT_EQ(metric("vllm:request_params_n_count"), "1");
  // Without a limit an answer goes on to the end of the context.
  const auto chat = submit("/v1/chat/completions", R"({"messages":[{"role":"user","content":"hi"}]})");
  const auto prompt = static_cast<int64_t>(engine_.request(1).prompt.size());
  engine_.send(1, {.tokens = {'x'}, .finish = FinishReason::kStop, .times = kTimes});
  finish(*chat);
  EXPECT_EQ(metric("vllm:request_params_max_tokens_sum"), std::to_string(9 + kTestLength - prompt));
}

}  // namespace
}  // namespace quire::api
