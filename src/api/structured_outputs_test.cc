// response_format and structured_outputs: from the body to the engine's request.
#include <gtest/gtest.h>

#include "api/request.h"
#include "api/test_service.h"

namespace quire::api {
namespace {

const ParseLimits kLimits{.vocab_size = 1000, .max_model_len = 100};

Result<Parsed<CompletionRequest>> completion(const std::string& fields) {
  return parse_completion(R"({"prompt":"x",)" + fields + "}", kLimits);
}

TEST(StructuredOutputs, EveryFormBecomesAGrammar) {
  using text::GrammarKind;
  const std::string schema = R"({"type":"object","properties":{"b":{"type":"integer"},"a":{"enum":[1,"é"]}}})";
  const struct {
    std::string fields;
    GrammarKind kind;
    std::string text;
    std::string param;
  } all[] = {
      {R"("response_format":{"type":"json_object"})", GrammarKind::kJsonSchema, R"({"type":"object"})",
       "response_format"},
      {R"("response_format":{"type":"json_schema","json_schema":{"name":"n","strict":true,"schema":)" + schema + "}}",
       GrammarKind::kJsonSchema, schema, "response_format"},
      {R"("response_format":{"type":"json_schema","json_schema":{"name":"n","schema":true}})", GrammarKind::kJsonSchema,
       "true", "response_format"},
      {R"("structured_outputs":{"json":)" + schema + "}", GrammarKind::kJsonSchema, schema, "structured_outputs"},
      {R"("structured_outputs":{"json":"{\"type\":\"null\"}"})", GrammarKind::kJsonSchema, R"({"type":"null"})",
       "structured_outputs"},
      {R"("structured_outputs":{"json_object":true})", GrammarKind::kJsonSchema, R"({"type":"object"})",
       "structured_outputs"},
      {R"("structured_outputs":{"regex":"a+","json":null,"choice":null})", GrammarKind::kRegex, "a+",
       "structured_outputs"},
      {R"("structured_outputs":{"choice":["a","b\n"]})", GrammarKind::kChoice, R"(["a","b\n"])", "structured_outputs"},
      {R"("structured_outputs":{"grammar":"start: \"a\""},"response_format":{"type":"text"})", GrammarKind::kLark,
       "start: \"a\"", "structured_outputs"},
  };
  for (const auto& form : all) {
    const auto parsed = completion(form.fields);
    ASSERT_TRUE(parsed) << form.fields << parsed.error().message;
    const auto& grammar = parsed->request.options.grammar;
    ASSERT_TRUE(grammar) << form.fields;
    EXPECT_EQ(grammar->kind, form.kind);
    EXPECT_EQ(grammar->text, form.text);
    EXPECT_EQ(grammar->param, form.param);
    EXPECT_TRUE(parsed->ignored_fields.empty());
  }
  for (const char* free : {R"("response_format":{"type":"text"})", R"("response_format":null)",
                           R"("structured_outputs":null)", R"("n":1)"})
    EXPECT_FALSE(completion(free)->request.options.grammar) << free;
}

TEST(StructuredOutputs, WhatIsWrongIsRefusedByName) {
  const struct {
    std::string fields, param, says;
  } all[] = {
      {R"("response_format":7)", "response_format", "object"},
      {R"("response_format":{})", "response_format", "response_format.type is missing"},
      {R"("response_format":{"type":null})", "response_format", "response_format.type is missing"},
      {R"("response_format":{"type":7})", "response_format", "response_format.type must be a string"},
      {R"("response_format":{"type":"xml"})", "response_format", "\"json_schema\", not \"xml\""},
      {R"("response_format":{"type":"json_schema"})", "response_format", "json_schema"},
      {R"("response_format":{"type":"json_schema","json_schema":[]})", "response_format", "object"},
      {R"("response_format":{"type":"json_schema","json_schema":{"schema":{}}})", "response_format", "name"},
      {R"("response_format":{"type":"json_schema","json_schema":{"name":"n"}})", "response_format",
       "schema is missing"},
      {R"("response_format":{"type":"json_schema","json_schema":{"name":"n","schema":[]}})", "response_format",
       "a list"},
      {R"("response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{},"strict":1}})",
       "response_format", "strict"},
      {R"("structured_outputs":"a")", "structured_outputs", "object"},
      {R"("structured_outputs":{})", "structured_outputs", "none"},
      {R"("structured_outputs":{"json_object":false})", "structured_outputs", "none"},
      {R"("structured_outputs":{"regex":"a","choice":["a"]})", "structured_outputs", "several"},
      {R"("structured_outputs":{"regex":7})", "structured_outputs", "regex must be a string"},
      {R"("structured_outputs":{"json":7})", "structured_outputs", "schema"},
      {R"("structured_outputs":{"choice":[]})", "structured_outputs", "empty"},
      {R"("structured_outputs":{"choice":"a"})", "structured_outputs", "list of strings"},
      {R"("structured_outputs":{"choice":["a",1]})", "structured_outputs", "not 1"},
      {R"("structured_outputs":{"choice":["a",""]})", "structured_outputs", "not empty"},
      {R"("structured_outputs":{"json":{},"whitespace_pattern":" "})", "structured_outputs", "whitespace_pattern"},
      {R"("structured_outputs":{"structural_tag":"{}"})", "structured_outputs", "structural_tag"},
      {R"("structured_outputs":{"regex":"a"},"response_format":{"type":"json_object"})", "structured_outputs",
       "exclude"},
      {R"("guided_regex":"a")", "guided_regex", "not supported"},
  };
  for (const auto& bad : all) {
    const auto parsed = completion(bad.fields);
    ASSERT_FALSE(parsed) << bad.fields;
    EXPECT_EQ(parsed.error().param, bad.param) << bad.fields;
    EXPECT_NE(parsed.error().message.find(bad.says), std::string::npos) << bad.fields << "\n" << parsed.error().message;
  }
}

class StructuredOutputsService : public ServiceTest {
 protected:
  static std::string completion_with(const std::string& fields) { return R"({"prompt":"x",)" + fields + "}"; }
  static std::string chat_with(const std::string& fields) {
    return R"({"messages":[{"role":"user","content":"x"}],)" + fields + "}";
  }
};

TEST_F(StructuredOutputsService, AllAnswersShareTheConstraint) {
  open();
  submit("/v1/chat/completions", chat_with(R"("n":3,"response_format":{"type":"json_object"})"), 3);
  const auto constraint = engine_.request(0).constraint;
  ASSERT_TRUE(constraint);
  EXPECT_EQ(constraint->vocab_size(), kTestVocab);
  for (size_t i : {1U, 2U}) EXPECT_EQ(engine_.request(i).constraint, constraint);
  std::vector<uint32_t> mask(mask_words(kTestVocab));
  ASSERT_TRUE((*constraint->start())->fill(mask));
  for (TokenId id = 0; id < kTestVocab; ++id) EXPECT_EQ(mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1, id == '{');
  submit("/v1/completions", completion_with(R"("max_tokens":4)"));
  EXPECT_FALSE(engine_.request(3).constraint);
}

TEST_F(StructuredOutputsService, AnAnswerThatItsConstraintEndsKeepsItsLastToken) {
  open();
  const auto exchange = submit("/v1/completions", completion_with(R"("structured_outputs":{"choice":["ab"]})"));
  engine_.send_text(0, "ab", FinishReason::kStop);
  const auto body = finish(*exchange);
  EXPECT_EQ(body["choices"][0]["text"], "ab");
  EXPECT_EQ(body["choices"][0]["finish_reason"], "stop");
  EXPECT_TRUE(body["choices"][0]["stop_reason"].is_null());
}

TEST_F(StructuredOutputsService, WhatDoesNotCompileIsABadRequest) {
  open();
  const std::string path = "/v1/completions";
  for (const auto& [fields, param] :
       {std::pair{R"("structured_outputs":{"regex":"("})", "structured_outputs"},
        std::pair{R"("structured_outputs":{"json":"{"})", "structured_outputs"},
        std::pair{R"("stream":true,"structured_outputs":{"grammar":"start: b"})", "structured_outputs"},
        std::pair{R"("response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{"type":"what"}}})",
                  "response_format"}}) {
    const HttpResponse answer = post(path, completion_with(fields));
    EXPECT_EQ(answer.status, 400) << answer.body;
    EXPECT_EQ(json::parse(answer.body)["error"]["param"], param) << answer.body;
  }
  EXPECT_EQ(engine_.asked(), 0U);
}

TEST_F(StructuredOutputsService, AModelWithoutATokenizerHasNone) {
  open_without_text();
  const HttpResponse answer = post("/v1/completions", R"({"prompt":[1,2],"structured_outputs":{"regex":"a"}})");
  EXPECT_EQ(answer.status, 400);
  EXPECT_EQ(json::parse(answer.body)["error"]["code"], "unsupported");
}

}  // namespace
}  // namespace quire::api
