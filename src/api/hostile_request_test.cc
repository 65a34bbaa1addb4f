// Bodies that were good and were then changed at random: each endpoint plans them or says what is wrong with them.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "api/endpoint.h"
#include "api/test_model.h"
#include "text/grammar.h"

namespace quire::api {
namespace {

using nlohmann::json;

const std::pair<const char*, const char*> kGood[] = {
    {"/v1/completions", R"({"prompt":["a","b"],"n":2,"max_tokens":3,"stop":["x"],"logit_bias":{"5":1},"echo":true,
      "logprobs":2,"stream":true,"stream_options":{"include_usage":true},"seed":1})"},
    {"/v1/chat/completions", R"({"messages":[{"role":"system","content":"s"},{"role":"user","content":[{"type":"text",
      "text":"hi"}]},{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"f",
      "arguments":"{}"}}]},{"role":"tool","tool_call_id":"c","content":"r"}],"tools":[{"type":"function","function":{
      "name":"f","parameters":{"type":"object","properties":{"a":{"type":"string"}}}}}],"tool_choice":"auto",
      "max_completion_tokens":3,"temperature":0,"chat_template_kwargs":{"mood":"m"},"response_format":{"type":
      "json_schema","json_schema":{"name":"n","schema":{"type":"object"}}}})"},
    {"/v1/responses", R"({"input":[{"role":"developer","content":"d"},{"type":"message","role":"user","content":[{
      "type":"input_text","text":"a"}]},{"type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"r"}]},
      {"type":"function_call","call_id":"c","name":"f","arguments":"{\"a\":1}"},{"type":"function_call_output",
      "call_id":"c","output":"o"}],"instructions":"i","tools":[{"type":"function","name":"f","parameters":{"type":
      "object"}}],"tool_choice":{"type":"function","name":"f"},"max_output_tokens":5,"metadata":{"k":"v"},
      "reasoning":{"effort":"low"},"text":{"format":{"type":"text"}},"include":["reasoning.encrypted_content"]})"},
    {"/v1/messages", R"({"system":[{"type":"text","text":"s"}],"messages":[{"role":"user","content":"hi"},{"role":
      "assistant","content":[{"type":"thinking","thinking":"t","signature":""},{"type":"text","text":"x"},{"type":
      "tool_use","id":"c","name":"f","input":{"a":1}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":
      "c","content":[{"type":"text","text":"r"}],"is_error":false},{"type":"text","text":"go"}]}],"max_tokens":5,
      "tools":[{"name":"f","description":"d","input_schema":{"type":"object"}}],"tool_choice":{"type":"auto",
      "disable_parallel_tool_use":true},"thinking":{"type":"enabled","budget_tokens":1024},"stop_sequences":["x"],
      "temperature":0.5,"output_config":{"effort":"low","format":{"type":"json_schema","schema":{"type":"object"}}}})"},
};

// Every value in it.
void collect(json& value, std::vector<json*>& all) {
  all.push_back(&value);
  if (!value.is_structured()) return;
  for (json& part : value) collect(part, all);
}

json random_value(std::mt19937& random, const std::vector<json*>& others) {
  const json odd[] = {nullptr,
                      true,
                      0,
                      -1,
                      1.5,
                      1e300,
                      uint64_t{1} << 63,
                      "",
                      "auto",
                      "\xF0\x9F\x98\x80",
                      json::array(),
                      json::object(),
                      {{"type", "function"}},
                      {1, "a"},
                      std::string(2000, 'a')};
  const size_t pick = random() % (std::size(odd) + 5);
  return pick < std::size(odd) ? odd[pick] : *others[random() % others.size()];
}

void change(json& body, std::mt19937& random) {
  std::vector<json*> all;
  collect(body, all);
  json& place = *all[random() % all.size()];
  const json value = random_value(random, all);
  const uint32_t way = random() % 4;
  if (way == 0 && place.is_object() && !place.empty()) {
    place.erase(std::next(place.begin(), static_cast<std::ptrdiff_t>(random() % place.size())));
  } else if (way == 1 && place.is_object() && !place.empty()) {
    std::next(place.begin(), static_cast<std::ptrdiff_t>(random() % place.size())).value() = value;
  } else if (way == 2 && place.is_array()) {
    place.push_back(value);
  } else if (&place != &body) {
    place = value;
  }
}

TEST(HostileRequests, NoBodyIsAFaultOfTheServer) {
  const text::Tokenizer tokenizer = byte_tokenizer();
  const text::ChatTemplate chat_template = small_template();
  const text::GrammarCompiler grammars(tokenizer, {kEndToken}, kTestVocab);
  FakeEngine engine;
  Backend backend = engine.backend(&tokenizer, &chat_template);
  backend.grammars = &grammars;
  const ServiceOptions service{.served_model_names = {"m"}};
  std::mt19937 random(11);
  for (const auto& [path, good] : kGood) {
    const Endpoint* endpoint = find_endpoint(path);
    ASSERT_NE(endpoint, nullptr);
    const AskContext context{.backend = backend, .service = service, .request_id = "r", .fingerprint = "f"};
    ASSERT_TRUE(endpoint->ask(good, context)) << path << endpoint->ask(good, context).error().message;
    int planned = 0;
    std::set<std::string> refusals;
    for (int round = 0; round < 4000; ++round) {
      json body = json::parse(good);
      for (uint32_t i = 0; i <= random() % 3; ++i) change(body, random);
      const auto asked = endpoint->ask(body.dump(), context);
      if (asked) {
        ++planned;
        continue;
      }
      const ErrorKind kind = asked.error().kind;
      EXPECT_TRUE(kind == ErrorKind::kInvalidRequest || kind == ErrorKind::kUnsupported || kind == ErrorKind::kNotFound)
          << body << asked.error().message;
      EXPECT_FALSE(asked.error().message.empty()) << body;
      refusals.insert(asked.error().message);
    }
    EXPECT_GT(planned, 100) << path;
    EXPECT_GT(refusals.size(), 50U) << path;
  }
}

}  // namespace
}  // namespace quire::api
