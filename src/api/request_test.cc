#include "api/request.h"

#include <gtest/gtest.h>

namespace quire::api {
namespace {

constexpr ParseLimits kLimits{.vocab_size = 1000, .max_model_len = 4096, .max_choices = 64};

Result<Parsed<CompletionRequest>> completion(std::string_view body) { return parse_completion(body, kLimits); }
Result<Parsed<ChatRequest>> chat(std::string_view body) { return parse_chat(body, kLimits); }

// A body with a prompt or message and these members more.
std::string with(std::string_view members) { return R"({"prompt":"x",)" + std::string(members) + "}"; }
std::string chat_with(std::string_view members) {
  return R"({"messages":[{"role":"user","content":"hi"}],)" + std::string(members) + "}";
}

TEST(Completion, HasTheDefaultsOfVllm) {
  const auto parsed = completion(R"({"prompt":"hello"})");
  ASSERT_TRUE(parsed.has_value());
  const CompletionRequest& request = parsed->request;
  EXPECT_EQ(std::get<std::string>(request.prompts.at(0)), "hello");
  EXPECT_FALSE(request.options.max_tokens.has_value());
  EXPECT_EQ(request.options.n, 1);
  EXPECT_FALSE(request.options.stream);
  EXPECT_FALSE(request.options.seed.has_value());
  EXPECT_TRUE(request.options.skip_special_tokens);
  EXPECT_TRUE(request.add_special_tokens);
  EXPECT_FALSE(request.echo);
  EXPECT_EQ(request.options.sampling.temperature, 1.0F);
  EXPECT_FALSE(request.options.sampling.logprobs.has_value());
  EXPECT_TRUE(parsed->ignored_fields.empty());
}

TEST(Completion, ReadsAllItsFields) {
  const auto parsed = completion(R"({
    "model":"m","prompt":[[1,2],[3]],"max_tokens":7,"n":2,"temperature":0,"top_p":0.5,"top_k":-1,"min_p":0.25,
    "presence_penalty":-1,"frequency_penalty":1.5,"repetition_penalty":1.25,"seed":-1,"stop":["a","b"],
    "stop_token_ids":[5,6],"min_tokens":3,"ignore_eos":true,"logprobs":5,"prompt_logprobs":2,"echo":true,
    "logit_bias":{"7":-100,"3":1.5},"allowed_token_ids":[1,2,3],"include_stop_str_in_output":true,
    "skip_special_tokens":false,"return_token_ids":true,"return_tokens_as_token_ids":true,"add_special_tokens":false,
    "truncate_prompt_tokens":9,"priority":-4,"cache_salt":"s","user":"u","best_of":2})");
  ASSERT_TRUE(parsed.has_value()) << parsed.error().message;
  const GenerationOptions& options = parsed->request.options;
  const SamplingParams& sampling = options.sampling;
  EXPECT_EQ(options.model, "m");
  ASSERT_EQ(parsed->request.prompts.size(), 2U);
  EXPECT_EQ(std::get<std::vector<TokenId>>(parsed->request.prompts[0]), (std::vector<TokenId>{1, 2}));
  EXPECT_EQ(options.max_tokens, 7);
  EXPECT_EQ(options.n, 2);
  EXPECT_EQ(sampling.temperature, 0.0F);
  EXPECT_EQ(sampling.top_p, 0.5F);
  EXPECT_EQ(sampling.top_k, 0);
  EXPECT_EQ(sampling.min_p, 0.25F);
  EXPECT_EQ(sampling.presence_penalty, -1.0F);
  EXPECT_EQ(sampling.frequency_penalty, 1.5F);
  EXPECT_EQ(sampling.repetition_penalty, 1.25F);
  EXPECT_EQ(options.seed, UINT64_MAX);
  EXPECT_EQ(options.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(sampling.stop_token_ids, (std::vector<TokenId>{5, 6}));
  EXPECT_EQ(sampling.min_tokens, 3);
  EXPECT_TRUE(sampling.ignore_eos);
  EXPECT_EQ(sampling.logprobs, 5);
  EXPECT_EQ(sampling.prompt_logprobs, 2);
  EXPECT_TRUE(parsed->request.echo);
  EXPECT_EQ(sampling.logit_bias, (std::vector<std::pair<TokenId, float>>{{3, 1.5F}, {7, -100.0F}}));
  EXPECT_EQ(sampling.allowed_token_ids, (std::vector<TokenId>{1, 2, 3}));
  EXPECT_TRUE(options.include_stop_str_in_output);
  EXPECT_FALSE(options.skip_special_tokens);
  EXPECT_TRUE(options.return_token_ids);
  EXPECT_TRUE(options.return_tokens_as_token_ids);
  EXPECT_FALSE(parsed->request.add_special_tokens);
  EXPECT_EQ(options.truncate_prompt_tokens, 9);
  EXPECT_EQ(options.priority, -4);
  EXPECT_EQ(options.cache_salt, "s");
  EXPECT_TRUE(parsed->ignored_fields.empty());
}

TEST(Completion, TakesEveryKindOfPrompt) {
  EXPECT_EQ(completion(R"({"prompt":"a"})")->request.prompts.size(), 1U);
  EXPECT_EQ(completion(R"({"prompt":["a","b","c"]})")->request.prompts.size(), 3U);
  EXPECT_EQ(completion(R"({"prompt":[1,2,3]})")->request.prompts.size(), 1U);
  EXPECT_EQ(completion(R"({"prompt":[[1],[2,3]]})")->request.prompts.size(), 2U);
}

TEST(Completion, TakesNullAsAbsentAndWholeNumbersAsIntegers) {
  const auto parsed =
      completion(with(R"("max_tokens":null,"seed":null,"stop":null,"n":2.0,"logprobs":null,"future":null)"));
  ASSERT_TRUE(parsed.has_value());
  EXPECT_FALSE(parsed->request.options.max_tokens.has_value());
  EXPECT_EQ(parsed->request.options.n, 2);
  EXPECT_TRUE(parsed->ignored_fields.empty());
}

TEST(Completion, ListsWhatItIgnores) {
  const auto parsed = completion(with(R"("metadata":{"a":1},"frobnicate":3)"));
  ASSERT_TRUE(parsed.has_value());
  EXPECT_EQ(parsed->ignored_fields, (std::vector<std::string>{"metadata", "frobnicate"}));
}

struct Bad {
  std::string body;
  const char* param;
  const char* says;
};

TEST(Completion, RefusesByName) {
  const std::string deep(200, '[');
  const std::vector<Bad> all = {
      {"", "", "JSON"},
      {"{", "", "JSON"},
      {"[1]", "", "object"},
      {"\"x\"", "", "object"},
      {"{\"prompt\":\"x\"} trailing", "", "JSON"},
      {"{\"prompt\":\"\xff\"}", "", "UTF-8"},
      {R"({"prompt":"\ud800"})", "", "JSON"},
      {R"({"prompt":NaN})", "", "JSON"},
      {R"({"prompt":01})", "", "JSON"},
      {"{\"prompt\":\"a\nb\"}", "", "JSON"},
      {R"({"prompt":)" + deep + std::string(200, ']') + "}", "", "128"},
      {R"({"prompt":"x","prompt":"y"})", "prompt", "twice"},
      {with(R"("a":{"b":[{"c":1,"c":2}]})"), "c", "twice"},
      {R"({"model":"m"})", "prompt", "missing"},
      {R"({"prompt":null})", "prompt", "missing"},
      {R"({"prompt":3})", "prompt", "not 3"},
      {R"({"prompt":[]})", "prompt", "empty"},
      {R"({"prompt":["a",1]})", "prompt", "prompt[1]"},
      {R"({"prompt":[1,"a"]})", "prompt", "prompt[1]"},
      {R"({"prompt":[1,1000]})", "prompt", "999"},
      {R"({"prompt":[1,-1]})", "prompt", "-1"},
      {R"({"prompt":[1,1.5]})", "prompt", "1.5"},
      {R"({"prompt":[1,true]})", "prompt", "true"},
      {R"({"prompt":[[1],[2,99999]]})", "prompt", "prompt[1][1]"},
      {R"({"prompt":[[1],2]})", "prompt", "prompt[1]"},
      {R"({"prompt":[[[1]]]})", "prompt", "prompt[0][0]"},
      {with(R"("max_tokens":0)"), "max_tokens", "from 1"},
      {with(R"("max_tokens":true)"), "max_tokens", "not true"},
      {with(R"("max_tokens":1.5)"), "max_tokens", "not 1.5"},
      {with(R"("max_tokens":"7")"), "max_tokens", "not \"7\""},
      {with(R"("max_tokens":-1)"), "max_tokens", "not -1"},
      {with(R"("max_tokens":4294967297)"), "max_tokens", "from 1"},
      {with(R"("max_tokens":[7])"), "max_tokens", "a list"},
      {with(R"("n":0)"), "n", "from 1"},
      {with(R"("n":1000)"), "n", "128"},
      {with(R"("n":100)"), "n", "64"},
      {R"({"prompt":["a","b","c"],"n":30})", "n", "64"},
      {with(R"("n":2,"best_of":3)"), "best_of", "equal n"},
      {with(R"("temperature":-0.5)"), "temperature", "from 0"},
      {with(R"("temperature":"hot")"), "temperature", "number"},
      {with(R"("temperature":1e999)"), "temperature", "from 0 to 100"},
      {with(R"("top_p":0)"), "top_p", "greater than 0"},
      {with(R"("top_p":1.5)"), "top_p", "from 0 to 1"},
      {with(R"("top_k":-2)"), "top_k", "from -1"},
      {with(R"("min_p":2)"), "min_p", "from 0 to 1"},
      {with(R"("presence_penalty":3)"), "presence_penalty", "from -2 to 2"},
      {with(R"("frequency_penalty":-3)"), "frequency_penalty", "from -2 to 2"},
      {with(R"("repetition_penalty":0)"), "repetition_penalty", "from 0.01 to 100"},
      {with(R"("repetition_penalty":101)"), "repetition_penalty", "from 0.01 to 100"},
      {with(R"("seed":1.5)"), "seed", "64 bits"},
      {with(R"("seed":18446744073709551616)"), "seed", "64 bits"},
      {with(R"("stop":"")"), "stop", "empty"},
      {with(R"("stop":["a",1])"), "stop", "stop[1]"},
      {with(R"("stop":")" + std::string(2000, 'a') + "\""), "stop", "1024"},
      {with(R"("stop_token_ids":[1000])"), "stop_token_ids", "999"},
      {with(R"("stop_token_ids":7)"), "stop_token_ids", "list"},
      {with(R"("min_tokens":17)"), "min_tokens", "max_tokens"},
      {with(R"("ignore_eos":1)"), "ignore_eos", "true or false"},
      {with(R"("stream":"yes")"), "stream", "true or false"},
      {with(R"("logprobs":21)"), "logprobs", "20"},
      {with(R"("logprobs":true)"), "logprobs", "not true"},
      {with(R"("prompt_logprobs":-1)"), "prompt_logprobs", "from 0"},
      {with(R"("prompt_logprobs":1,"stream":true)"), "prompt_logprobs", "stream"},
      {with(R"("stream_options":{"include_usage":true})"), "stream_options", "stream"},
      {with(R"("stream":true,"stream_options":{"include_usage":1})"), "stream_options", "include_usage"},
      {with(R"("stream":true,"stream_options":7)"), "stream_options", "object"},
      {with(R"("logit_bias":[1])"), "logit_bias", "object"},
      {with(R"("logit_bias":{"1000":1})"), "logit_bias", "999"},
      {with(R"("logit_bias":{"-1":1})"), "logit_bias", "\"-1\""},
      {with(R"("logit_bias":{"1x":1})"), "logit_bias", "\"1x\""},
      {with(R"("logit_bias":{"1":101})"), "logit_bias", "100"},
      {with(R"("logit_bias":{"1":"a"})"), "logit_bias", "number"},
      {with(R"("logit_bias":{"1":1,"01":2})"), "logit_bias", "twice"},
      {with(R"("truncate_prompt_tokens":0)"), "truncate_prompt_tokens", "-1"},
      {with(R"("guided_json":{"type":"object"})"), "guided_json", "not supported"},
      {with(R"("use_beam_search":true)"), "use_beam_search", "not supported"},
      {with(R"("bad_words":["x"])"), "bad_words", "not supported"},
      {with(R"("suffix":"end")"), "suffix", "not supported"},
      {with(R"("cache_salt":7)"), "cache_salt", "string"},
      {with(R"("priority":"high")"), "priority", "integer"},
  };
  for (const Bad& bad : all) {
    const auto parsed = completion(bad.body);
    ASSERT_FALSE(parsed.has_value()) << bad.body;
    EXPECT_EQ(parsed.error().param, bad.param) << bad.body;
    EXPECT_NE(parsed.error().message.find(bad.says), std::string::npos) << bad.body << "\n" << parsed.error().message;
  }
}

// Numbers that no 64 bits hold, wherever a number may stand: the error names the field as for any other wrong value.
TEST(Completion, NamesTheFieldOfANumberThatIsTooLarge) {
  const std::vector<std::string> numbers = {"18446744073709551616",
                                            "-9223372036854775809",
                                            "1180591620717411303424",
                                            "-" + std::string(400, '9'),
                                            std::string(5000, '1'),
                                            "1e999",
                                            "-1E+400",
                                            "123456789012345678901234567890.5e400"};
  for (const char* name : {"max_tokens",
                           "n",
                           "best_of",
                           "temperature",
                           "top_p",
                           "top_k",
                           "min_p",
                           "presence_penalty",
                           "frequency_penalty",
                           "repetition_penalty",
                           "seed",
                           "min_tokens",
                           "ignore_eos",
                           "logprobs",
                           "prompt_logprobs",
                           "stream",
                           "truncate_prompt_tokens",
                           "priority",
                           "prompt",
                           "stop",
                           "stop_token_ids",
                           "allowed_token_ids",
                           "cache_salt",
                           "model",
                           "echo",
                           "response_format"}) {
    for (const std::string& number : numbers) {
      const std::string prompt = std::string_view(name) == "prompt" ? "" : R"("prompt":"a \" 99999999999999999999 [",)";
      const auto parsed = completion("{" + prompt + "\"" + name + "\":" + number + "}");
      ASSERT_FALSE(parsed.has_value()) << name << " " << number;
      EXPECT_EQ(parsed.error().param, name) << number << "\n" << parsed.error().message;
      EXPECT_LT(parsed.error().message.size(), 200U) << parsed.error().message;
    }
  }
  for (const std::string& number : numbers) {
    EXPECT_EQ(completion("{\"prompt\":[1," + number + "]}").error().param, "prompt");
    EXPECT_EQ(completion(with("\"stop_token_ids\":[" + number + "]")).error().param, "stop_token_ids");
    EXPECT_EQ(completion(with("\"logit_bias\":{\"1\":" + number + "}")).error().param, "logit_bias");
    const auto ignored = completion(with("\"future\":[" + number + "]"));
    ASSERT_TRUE(ignored.has_value()) << ignored.error().message;
    EXPECT_EQ(ignored->ignored_fields, std::vector<std::string>{"future"});
    EXPECT_EQ(std::get<std::string>(ignored->request.prompts[0]), "x");
  }
  // What is no number stays bad JSON, also beside one that is too large.
  for (const char* wrong : {"01", "-", "1.", ".5", "1e", "+1", "0123456789012345678901234", "1.e999", "--1", "1-1",
                            "18446744073709551616x", "1e999e1"}) {
    const auto parsed = completion(with("\"seed\":18446744073709551616,\"n\":" + std::string(wrong)));
    ASSERT_FALSE(parsed.has_value()) << wrong;
    EXPECT_EQ(parsed.error().param, "") << wrong;
    EXPECT_NE(parsed.error().message.find("JSON"), std::string::npos) << wrong;
  }
}

TEST(Completion, StreamsAnEchoWithLogprobsButNoPromptLogprobs) {
  EXPECT_TRUE(completion(with(R"("echo":true,"logprobs":2,"stream":true)")).has_value());
  for (const char* count : {"0", "1", "20"}) {
    const auto parsed = completion(with("\"stream\":true,\"prompt_logprobs\":" + std::string(count)));
    ASSERT_FALSE(parsed.has_value()) << count;
    EXPECT_EQ(parsed.error().param, "prompt_logprobs");
    EXPECT_NE(parsed.error().message.find("echo and logprobs"), std::string::npos);
  }
}

TEST(Completion, TakesWhatSaysNothingOfTheUnsupported) {
  EXPECT_TRUE(completion(with(R"("suffix":"","bad_words":[],"use_beam_search":false,"guided_json":{})")).has_value());
}

TEST(Completion, KeepsEachIdOnceHoweverOftenItIsNamed) {
  const auto parsed = completion(with(R"("allowed_token_ids":[9,2,9,9,0,2],"stop_token_ids":[6,5,6])"));
  ASSERT_TRUE(parsed.has_value());
  EXPECT_EQ(parsed->request.options.sampling.allowed_token_ids, (std::vector<TokenId>{0, 2, 9}));
  EXPECT_EQ(parsed->request.options.sampling.stop_token_ids, (std::vector<TokenId>{5, 6}));
}

TEST(Completion, EchoAloneNeedsNoNewTokens) {
  const auto parsed = completion(with(R"("echo":true,"max_tokens":0)"));
  ASSERT_TRUE(parsed.has_value());
  EXPECT_EQ(parsed->request.options.max_tokens, 0);
}

TEST(Completion, RefusesObjectsOfEndlessMembers) {
  std::string body = R"({"prompt":"x")";
  for (int i = 0; i < 1000; ++i) body += ",\"k" + std::to_string(i) + "\":1";
  const auto parsed = completion(body + "}");
  ASSERT_FALSE(parsed.has_value());
  EXPECT_NE(parsed.error().message.find("members"), std::string::npos);
}

TEST(GenerationConfig, GivesDefaultsThatRequestsOverride) {
  const auto file = parse_generation_config(
      R"({"_from_model_config":true,"eos_token_id":[1,2],"do_sample":true,"temperature":0.25,"top_k":-1,"top_p":0.5,
          "min_p":0.125,"repetition_penalty":1.5,"max_new_tokens":9,"bos_token_id":null,"transformers_version":"5.0.0"})");
  ASSERT_TRUE(file.has_value()) << file.error().message;
  EXPECT_EQ(describe(*file), "temperature 0.25, top_p 0.5, top_k 0, min_p 0.125, repetition_penalty 1.5, max_tokens 9");
  ParseLimits limits = kLimits;
  limits.defaults = *file;
  const auto silent = parse_completion(R"({"prompt":"x","temperature":null})", limits)->request.options;
  EXPECT_EQ(silent.sampling.temperature, 0.25F);
  EXPECT_EQ(silent.sampling.top_p, 0.5F);
  EXPECT_EQ(silent.sampling.top_k, 0);
  EXPECT_EQ(silent.sampling.min_p, 0.125F);
  EXPECT_EQ(silent.sampling.repetition_penalty, 1.5F);
  EXPECT_EQ(silent.default_max_tokens, kDefaultMaxTokens);  // vLLM's own, in spite of the file
  const auto spoken = parse_completion(
      R"({"prompt":"x","temperature":1,"top_p":1,"top_k":7,"min_p":0,"repetition_penalty":1,"max_tokens":99})", limits);
  const SamplingParams& asked = spoken->request.options.sampling;
  EXPECT_EQ(asked.temperature, 1.0F);
  EXPECT_EQ(asked.top_p, 1.0F);
  EXPECT_EQ(asked.top_k, 7);
  EXPECT_EQ(asked.min_p, 0.0F);
  EXPECT_EQ(asked.repetition_penalty, 1.0F);
  EXPECT_EQ(spoken->request.options.max_tokens, 99);  // a default is no limit
  const std::string hi = R"("messages":[{"role":"user","content":"hi"}])";
  EXPECT_EQ(parse_chat("{" + hi + "}", limits)->request.options.default_max_tokens, 9);
  EXPECT_EQ(parse_chat("{" + hi + R"(,"min_tokens":10})", limits).error().param, "min_tokens");
  EXPECT_EQ(parse_chat("{" + hi + "}", kLimits)->request.options.default_max_tokens, INT32_MAX);
}

TEST(GenerationConfig, SaysNothingWhereTheFileSaysNothing) {
  for (const char* text : {"{}", R"({"eos_token_id":2,"temperature":null,"top_k":null,"max_new_tokens":null})"}) {
    const auto file = parse_generation_config(text);
    ASSERT_TRUE(file.has_value()) << text;
    EXPECT_EQ(describe(*file), "");
  }
}

TEST(GenerationConfig, NamesTheKeyOfAWrongValue) {
  const std::vector<std::pair<const char*, std::vector<const char*>>> wrong = {
      {"temperature", {"-0.5", "101", "\"hot\"", "true", "[1]", "{}", "1e999"}},
      {"top_p", {"0", "-1", "1.5", "\"1\"", "false"}},
      {"top_k", {"-2", "1.5", "\"5\"", "true", "4294967296", "18446744073709551616"}},
      {"min_p", {"-0.1", "2", "\"0\""}},
      {"repetition_penalty", {"0", "101", "\"1\"", "[]"}},
      {"max_new_tokens", {"0", "-1", "1.5", "\"9\"", "true", "4294967296"}}};
  for (const auto& [key, values] : wrong) {
    for (const char* value : values) {
      const auto parsed = parse_generation_config("{\"" + std::string(key) + "\":" + value + "}");
      ASSERT_FALSE(parsed.has_value()) << key << " " << value;
      EXPECT_EQ(parsed.error().kind, ErrorKind::kCorruptFile);
      EXPECT_EQ(parsed.error().param, key);
      EXPECT_TRUE(parsed.error().message.starts_with("generation_config.json: " + std::string(key)))
          << parsed.error().message;
    }
  }
  for (const char* text : {"", "[]", "3", "{", "{\"top_k\":1,\"top_k\":2}"}) {
    EXPECT_TRUE(parse_generation_config(text).error().message.starts_with("generation_config.json: ")) << text;
  }
}

TEST(Chat, NormalisesMessages) {
  const auto parsed = chat(R"({"messages":[
    {"role":"system","content":"be kind","name":"s"},
    {"role":"user","content":[{"type":"text","text":"one"},{"type":"text","text":"two"}]},
    {"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"a\": 1}"}}]},
    {"role":"tool","tool_call_id":"1","content":"42"}]})");
  ASSERT_TRUE(parsed.has_value()) << parsed.error().message;
  EXPECT_EQ(
      parsed->request.prompt.messages,
      R"([{"role":"system","content":"be kind","name":"s"},{"role":"user","content":"one\ntwo"},)"
      R"({"role":"assistant","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":{"a":1}}}],"content":""},)"
      R"({"role":"tool","tool_call_id":"1","content":"42"}])");
  EXPECT_FALSE(parsed->request.options.max_tokens.has_value());
  EXPECT_TRUE(parsed->request.prompt.add_generation_prompt);
  EXPECT_FALSE(parsed->request.prompt.add_special_tokens);
}

TEST(Chat, ReadsItsOwnFields) {
  const auto parsed = chat(chat_with(
      R"("max_tokens":5,"max_completion_tokens":6,"logprobs":true,"top_logprobs":3,"tools":[{"type":"function","function":{"name":"f"}}],
         "chat_template_kwargs":{"enable_thinking":false},"continue_final_message":true)"));
  ASSERT_TRUE(parsed.has_value()) << parsed.error().message;
  EXPECT_EQ(parsed->request.options.max_tokens, 6);
  EXPECT_EQ(parsed->request.options.sampling.logprobs, 3);
  EXPECT_EQ(parsed->request.prompt.tools, R"([{"type":"function","function":{"name":"f"}}])");
  EXPECT_EQ(parsed->request.prompt.kwargs, R"({"enable_thinking":false})");
  EXPECT_TRUE(parsed->request.prompt.continue_final_message);
  EXPECT_EQ(parsed->request.prompt.final_content, "hi");
  EXPECT_FALSE(parsed->request.prompt.add_generation_prompt);
  EXPECT_TRUE(chat(chat_with(R"("tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"none")"))
                  ->request.prompt.tools.empty());
  EXPECT_EQ(chat(chat_with(R"("logprobs":true)"))->request.options.sampling.logprobs, 0);
  EXPECT_FALSE(chat(chat_with(R"("logprobs":false)"))->request.options.sampling.logprobs.has_value());
}

TEST(Chat, RefusesByName) {
  const std::vector<Bad> all = {
      {R"({})", "messages", "missing"},
      {R"({"messages":[]})", "messages", "empty"},
      {R"({"messages":"hi"})", "messages", "list"},
      {R"({"messages":["hi"]})", "messages", "messages[0]"},
      {R"({"messages":[{"content":"hi"}]})", "messages", "no role"},
      {R"({"messages":[{"role":"user"}]})", "messages", "no content"},
      {R"({"messages":[{"role":7,"content":"hi"}]})", "messages", "messages[0].role"},
      {R"({"messages":[{"role":"user","content":7}]})", "messages", "messages[0].content"},
      {R"({"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]})", "messages",
       "image_url"},
      {R"({"messages":[{"role":"user","content":[{"type":"text"}]}]})", "messages", "no text"},
      {R"({"messages":[{"role":"assistant","tool_calls":[{"function":{"arguments":"{"}}]}]})", "messages", "arguments"},
      {R"({"messages":[{"role":"assistant","tool_calls":[7]}]})", "messages", "tool call"},
      {chat_with(R"("max_tokens":0)"), "max_tokens", "from 1"},
      {chat_with(R"("max_completion_tokens":1.5)"), "max_completion_tokens", "1.5"},
      {chat_with(R"("logprobs":5)"), "logprobs", "true or false"},
      {chat_with(R"("top_logprobs":5)"), "top_logprobs", "logprobs"},
      {chat_with(R"("logprobs":true,"top_logprobs":21)"), "top_logprobs", "20"},
      {chat_with(R"("tool_choice":"required")"), "tool_choice", "required"},
      {chat_with(R"("tool_choice":{"type":"function"})"), "tool_choice", "an object"},
      {chat_with(R"("tools":{})"), "tools", "list"},
      {chat_with(R"("add_generation_prompt":true,"continue_final_message":true)"), "continue_final_message", "exclude"},
      {chat_with(R"("chat_template_kwargs":[])"), "chat_template_kwargs", "object"},
      {chat_with(R"("chat_template_kwargs":{"tools":[]})"), "chat_template_kwargs", "tools"},
      {chat_with(R"("functions":[{"name":"f"}])"), "functions", "not supported"},
      {chat_with(R"("echo":true)"), "echo", "not supported"},
      {chat_with(R"("stream":true,"prompt_logprobs":1)"), "prompt_logprobs", "stream"},
      {chat_with(R"("top_logprobs":18446744073709551616)"), "top_logprobs", "integer"},
      {chat_with(R"("max_completion_tokens":1e400)"), "max_completion_tokens", "integer"},
  };
  for (const Bad& bad : all) {
    const auto parsed = chat(bad.body);
    ASSERT_FALSE(parsed.has_value()) << bad.body;
    EXPECT_TRUE(parsed.error().param.starts_with(bad.param)) << bad.body << "\n" << parsed.error().param;
    EXPECT_NE(parsed.error().message.find(bad.says), std::string::npos) << bad.body << "\n" << parsed.error().message;
  }
}

TEST(Tokenize, TakesTextOrMessages) {
  const auto text = parse_tokenize(R"({"prompt":"a","return_token_strs":true})");
  ASSERT_TRUE(text.has_value());
  EXPECT_EQ(text->request.text, "a");
  EXPECT_TRUE(text->request.add_special_tokens);
  EXPECT_TRUE(text->request.return_token_strs);
  const auto chat = parse_tokenize(R"({"messages":[{"role":"user","content":"hi"}]})");
  ASSERT_TRUE(chat.has_value());
  EXPECT_TRUE(chat->request.chat.has_value());
  EXPECT_FALSE(chat->request.add_special_tokens);
  EXPECT_EQ(parse_tokenize("{}").error().param, "prompt");
  EXPECT_EQ(parse_tokenize(R"({"prompt":"a","messages":[{"role":"user","content":"hi"}]})").error().param, "prompt");
}

TEST(Detokenize, TakesTokens) {
  EXPECT_EQ(parse_detokenize(R"({"tokens":[1,2]})", kLimits)->request.tokens, (std::vector<TokenId>{1, 2}));
  EXPECT_TRUE(parse_detokenize(R"({"tokens":[]})", kLimits)->request.tokens.empty());
  EXPECT_EQ(parse_detokenize("{}", kLimits).error().param, "tokens");
  EXPECT_EQ(parse_detokenize(R"({"tokens":[1000]})", kLimits).error().param, "tokens");
}

}  // namespace
}  // namespace quire::api
