// The service without a network: the test is the io thread, and sends the engine's updates.
#include "api/service.h"

#include <gtest/gtest.h>

#include <chrono>
#include <deque>
#include <nlohmann/json.hpp>

#include "api/test_model.h"

namespace quire::api {
namespace {

using nlohmann::json;

// Keeps what the service answers. Its tasks run when the test runs them.
class FakeExchange final : public Exchange {
 public:
  void respond(HttpResponse response) override {
    if (closed) return;
    answer = std::move(response);
    done = true;
  }
  void start(HttpResponse head) override {
    answer = std::move(head);
    streaming = true;
  }
  void write(std::string_view piece) override { stream += piece; }
  void finish() override { done = true; }
  void on_close(std::function<void()> callback) override { close_ = std::move(callback); }
  void post(std::function<void()> task) override {
    {
      const std::lock_guard lock(mutex_);
      tasks_.push_back(std::move(task));
    }
    changed_.notify_one();
  }

  // Runs tasks until `condition` holds; false if it does not within seconds.
  bool run_until(const std::function<bool()>& condition) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (!condition()) {
      std::unique_lock lock(mutex_);
      const bool any =
          changed_.wait_until(lock, std::min(end, std::chrono::steady_clock::now() + std::chrono::milliseconds(20)),
                              [this] { return !tasks_.empty(); });
      if (!any && std::chrono::steady_clock::now() >= end) return false;
      if (!any) continue;
      const auto task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
    }
    return true;
  }
  void run_ready() {
    for (;;) {
      std::function<void()> task;
      {
        const std::lock_guard lock(mutex_);
        if (tasks_.empty()) return;
        task = std::move(tasks_.front());
        tasks_.pop_front();
      }
      task();
    }
  }
  void leave() {
    closed = true;
    if (close_) close_();
  }

  HttpResponse answer;
  std::string stream;
  bool streaming = false;
  bool done = false;
  bool closed = false;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  std::function<void()> close_;
};

std::string header(const HttpResponse& response, std::string_view name) {
  for (const auto& [key, value] : response.headers) {
    if (key == name) return value;
  }
  return {};
}

// The data of a stream's events, but for [DONE], which must be the last.
std::vector<json> events(const std::string& stream) {
  std::vector<json> all;
  size_t at = 0;
  bool done = false;
  while (at < stream.size()) {
    EXPECT_FALSE(done) << "something after [DONE]";
    EXPECT_EQ(stream.compare(at, 6, "data: "), 0);
    const size_t end = stream.find("\n\n", at);
    EXPECT_NE(end, std::string::npos);
    const std::string data = stream.substr(at + 6, end - at - 6);
    done = data == "[DONE]";
    if (!done) all.push_back(json::parse(data));
    at = end + 2;
  }
  EXPECT_TRUE(done);
  return all;
}

class ServiceTest : public testing::Test {
 protected:
  ServiceTest()
      : ServiceTest(ServiceOptions{.served_model_names = {"m", "alias"}, .random = [] { return uint64_t{42}; }}) {}
  explicit ServiceTest(ServiceOptions options)
      : tokenizer_(byte_tokenizer()), template_(small_template()), service_(std::move(options)) {}
  ~ServiceTest() override { service_.close(); }

  void open() { service_.open(engine_.backend(&tokenizer_, &template_)); }
  void open_without_text() { service_.open(engine_.backend(nullptr, nullptr)); }

  static HttpRequest request_of(std::string method, std::string path, std::string body = {}, Headers headers = {}) {
    if (method == "POST") headers.emplace_back("content-type", "application/json");
    return {.method = std::move(method),
            .path = std::move(path),
            .query = {},
            .headers = std::move(headers),
            .client = "test",
            .body = std::move(body)};
  }
  // What admit() refuses, or the answer that comes without the engine.
  HttpResponse ask(HttpRequest request) {
    const Handler handler = service_.handler();
    if (auto refusal = handler.admit(request)) return *refusal;
    const auto exchange = std::make_shared<FakeExchange>();
    handler.handle(std::move(request), exchange);
    EXPECT_TRUE(exchange->run_until([&] { return exchange->done; }));
    return exchange->answer;
  }
  HttpResponse get(std::string path) { return ask(request_of("GET", std::move(path))); }
  HttpResponse post(std::string path, const std::string& body) {
    return ask(request_of("POST", std::move(path), body));
  }
  // Sends a request and waits until the engine has `answers` more.
  std::shared_ptr<FakeExchange> submit(std::string path, const std::string& body, size_t answers = 1) {
    const size_t before = engine_.asked();
    const auto exchange = std::make_shared<FakeExchange>();
    HttpRequest request = request_of("POST", std::move(path), body);
    const Handler handler = service_.handler();
    EXPECT_FALSE(handler.admit(request).has_value());
    handler.handle(std::move(request), exchange);
    EXPECT_TRUE(exchange->run_until([&] { return engine_.asked() == before + answers || exchange->done; }));
    EXPECT_FALSE(exchange->done) << exchange->answer.body;
    return exchange;
  }
  static json finish(FakeExchange& exchange) {
    EXPECT_TRUE(exchange.run_until([&] { return exchange.done; }));
    EXPECT_EQ(exchange.answer.status, 200) << exchange.answer.body;
    return json::parse(exchange.answer.body);
  }
  static std::vector<json> finish_stream(FakeExchange& exchange) {
    EXPECT_TRUE(exchange.run_until([&] { return exchange.done; }));
    return events(exchange.stream);
  }
  std::string metric(const std::string& name) {
    const std::string text = get("/metrics").body;
    const size_t at = text.find("\n" + name);
    if (at == std::string::npos) return "absent";
    const size_t end = text.find('\n', at + 1);
    return text.substr(text.rfind(' ', end) + 1, end - text.rfind(' ', end) - 1);
  }

  text::Tokenizer tokenizer_;
  text::ChatTemplate template_;
  FakeEngine engine_;
  Service service_;
};

PositionLogprobs position(TokenId token, float logprob, std::vector<TokenLogprob> top, int rank = 1) {
  return {.token = {.token = token, .logprob = logprob, .rank = rank}, .top = std::move(top)};
}

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
  EXPECT_NE(header(get("/"), "Content-Security-Policy"), "");
}

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

TEST_F(ServiceTest, StreamsWholeCharactersAndUsage) {
  open();
  const auto exchange =
      submit("/v1/completions", R"({"prompt":"a","stream":true,"stream_options":{"include_usage":true}})");
  engine_.send_text(0, "h\xc3");
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
      "logprobs":true,"top_logprobs":1,"chat_template_kwargs":{"mood":"glad"},"tools":[{"type":"function"}]})");
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
  engine_.send_text(0, "A", FinishReason::kStop);
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
  EXPECT_EQ(metric("quire:http_replies_total{model_name=\"m\",engine=\"0\",status=\"499\""), "1");
}

TEST_F(ServiceTest, CancelsAlsoWhenTheClientLeavesBeforeTheIdsAreKnown) {
  open();
  const auto exchange = std::make_shared<FakeExchange>();
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
  const auto exchange = std::make_shared<FakeExchange>();
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
