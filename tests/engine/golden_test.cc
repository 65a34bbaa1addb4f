// The engine against reference implementations: tiny models of every architecture in all profiles, and the real models.
// Tolerances are those that the references' own notes recommend (docs/models.md).
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "support/core_harness.h"
#include "weights/test_files.h"

namespace quire::test {
namespace {

using Json = nlohmann::json;

struct Tolerance {
  double logits;    // absolute part, on raw logits; relative part is 1e-3
  double logprobs;  // on top-5 log-probabilities
  double gap;       // greedy tokens are exact while the reference's two best are further apart than this
};
constexpr size_t kLongPrompt = 200;
constexpr Tolerance kF32{2e-3, 3e-3, 0}, kSensitive{100, 100, 100};

double log_sum_exp(std::span<const float> logits) {
  double top = -INFINITY, sum = 0;
  for (float x : logits) top = std::max(top, static_cast<double>(x));
  for (float x : logits) sum += std::exp(static_cast<double>(x) - top);
  return top + std::log(sum);
}

// The differences to a golden top-5 list of [id, log-probability].
std::vector<double> top5_differences(const Json& top5, std::span<const float> logits) {
  const double norm = log_sum_exp(logits);
  std::vector<double> all;
  for (const Json& entry : top5)
    all.push_back(std::abs(static_cast<double>(logits[entry[0].get<size_t>()]) - norm - entry[1].get<double>()));
  return all;
}

Json read_golden(const std::string& folder) {
  std::ifstream in(folder + "/golden.json");
  return Json::parse(in);
}

// How far the reference itself drifts with bf16 activations.
double reference_drift(const std::string& folder) {
  return read_golden(folder)["bf16_activation_check"]["max_abs_top5_logprob_diff"].get<double>();
}

// Whether rounding changes choices (of experts, of tokens that are read), or is amplified by the norm behind a state
// that is near zero: one row in a hundred says something else then, in the reference too. Of such models it is judged
// how the differences are distributed, and greedy tokens are compared up to the first that differs.
bool is_sensitive(const std::string& folder) { return reference_drift(folder) > 1; }

// The part of its own answers that the reference changes with bf16 activations. Where it is more than a tenth, as of
// models that choose a few of many tokens, the greatest differences say nothing: that part of them is not judged.
double changed_by_rounding(const std::string& folder) {
  const Json check = read_golden(folder)["bf16_activation_check"];
  return 1 - check["greedy_argmax_agree"].get<double>() / check["greedy_steps"].get<double>();
}

// 0.6, or as much as the reference drifts.
Tolerance bf16_tolerance(const std::string& folder) {
  if (is_sensitive(folder)) return kSensitive;
  return {10, std::max(0.6, reference_drift(folder)), 0.25};
}

double mean(const std::vector<double>& values) {
  return std::reduce(values.begin(), values.end()) / static_cast<double>(values.size());
}

// All prompts at once: their steps share batches. `all` gets every difference of a top-5 log-probability.
void check_model(const std::string& folder, EngineOptions options, const Tolerance& tolerance,
                 std::vector<double>* all = nullptr) {
  SCOPED_TRACE(folder);
  const auto check_top5 = [&](const Json& top5, std::span<const float> logits, size_t position) {
    const auto differences = top5_differences(top5, logits);
    EXPECT_LE(std::ranges::max(differences), tolerance.logprobs) << "position " << position;
    if (all != nullptr) all->insert(all->end(), differences.begin(), differences.end());
  };
  const Json golden = read_golden(folder);
  options.kv_cache_bytes = size_t{512} << 20;
  CoreHarness harness(std::move(options));
  std::vector<uint64_t> ids;
  for (const Json& prompt : golden["prompts"]) {
    Request request = greedy(prompt["ids"].get<std::vector<TokenId>>(), static_cast<int>(prompt["greedy_ids"].size()));
    // Every position's logits, but for long prompts: there the last one's must do.
    if (request.prompt.size() <= kLongPrompt) request.sampling.prompt_logprobs = 0;
    ids.push_back(harness.add(std::move(request), prompt.value("first_position_of_top5", 0)));
  }
  ASSERT_FALSE(ids.empty());
  harness.run();

  for (size_t i = 0; i < ids.size(); ++i) {
    SCOPED_TRACE("prompt " + std::to_string(i));
    const Json& prompt = golden["prompts"][i];
    const Answer& answer = harness.answer(ids[i]);
    const size_t length = prompt["ids"].size();
    ASSERT_FALSE(answer.error) << answer.error->message;
    for (size_t p = length <= kLongPrompt ? 0 : length - 1; p < length; ++p) {
      const Json* top5 = nullptr;
      if (prompt.contains("top5")) {
        top5 = &prompt["top5"][p];
      } else if (p >= prompt["first_position_of_top5"].get<size_t>()) {
        top5 = &prompt["top5_last_positions"][p - prompt["first_position_of_top5"].get<size_t>()];
      }
      if (top5 == nullptr) continue;
      check_top5(*top5, answer.logits.at(static_cast<int64_t>(p)), p);
    }
    if (prompt.contains("last_logits")) {
      const auto& logits = answer.logits.at(static_cast<int64_t>(length) - 1);
      for (size_t t = 0; t < logits.size(); ++t) {
        const double want = prompt["last_logits"][t].get<double>();
        ASSERT_NEAR(logits[t], want, tolerance.logits + 1e-3 * std::abs(want)) << "token " << t;
      }
    }
    const auto greedy_ids = prompt["greedy_ids"].get<std::vector<TokenId>>();
    // Where an emulation in numpy found that rounding to bf16 says another token (tests/golden/generate/bf16_flips.py).
    const auto flips = tolerance.gap > 0 ? prompt.value("bf16_flips", std::set<size_t>()) : std::set<size_t>();
    ASSERT_EQ(answer.tokens.size(), greedy_ids.size());
    for (size_t t = 0; t < greedy_ids.size(); ++t) {
      const bool clear = prompt["greedy_gaps"][t].get<double>() > tolerance.gap && !flips.contains(t);
      if (!clear && answer.tokens[t] != greedy_ids[t]) break;  // a legitimate flip: what follows differs
      ASSERT_EQ(answer.tokens[t], greedy_ids[t]) << "step " << t;
      check_top5(prompt["greedy_top5"][t], answer.logits.at(static_cast<int64_t>(length + t) - 1), length + t - 1);
    }
  }
}

// int8 activations are noise, and which of its values comes out depends on every rounding before. So what is judged is
// how the differences are distributed: the reference's notes expect a mean of 0.1 and one in a hundred above 0.45. Some
// 2,500 of them tell the mean to 5 % and that quantile to 10 %; the allowance is two of these. Of sensitive models
// another one in a hundred may differ by a choice.
void expect_error_of_int8_activations(std::vector<double> differences, bool sensitive = false) {
  std::ranges::sort(differences);
  EXPECT_LT(mean(differences), 0.11);
  EXPECT_LT(differences[differences.size() * (sensitive ? 98 : 99) / 100], 0.54);
}

class TinyModels : public ::testing::TestWithParam<std::string> {};

TEST_P(TinyModels, F32EqualsTheReference) {
  const std::string folder = golden_dir() + "/" + GetParam();
  check_model(folder, {.model = folder, .profile = Profile::kF32}, kF32);
}

TEST_P(TinyModels, BF16StaysWithinTheDriftOfBF16Activations) {
  const std::string folder = golden_dir() + "/" + GetParam();
  std::vector<double> differences;
  check_model(folder, {.model = folder, .profile = Profile::kBF16}, bf16_tolerance(folder), &differences);
  std::ranges::sort(differences);
  if (const double part = changed_by_rounding(folder); part > 0.1)
    differences.resize(static_cast<size_t>(static_cast<double>(differences.size()) * (1 - part)));
  EXPECT_LT(mean(differences), is_sensitive(folder) ? 0.25 : 0.1);  // seen: up to 0.22, and to 0.063
  EXPECT_LT(differences[differences.size() * 9 / 10], 0.6);         // seen: up to 0.41
}

// Rounding to int8 is 2^-8 of a group's largest weight, to int4 2^-4. Such tiny models amplify it: int8 was seen to
// move log-probabilities by 0.11 to 0.26, int4 by ten times that. Sensitive models move by 0.9 and, with int4, as far
// as an answer by chance does, which is 5: that would show nothing.
TEST_P(TinyModels, OnlineQuantisationStaysNearTheReference) {
  const std::string folder = golden_dir() + "/" + GetParam();
  const bool sensitive = is_sensitive(folder);
  for (const auto& [quantization, bound] :
       {std::pair{Quantization::kInt8, sensitive ? 1.5 : 0.35}, {Quantization::kInt4, 3.5}}) {
    if (sensitive && quantization == Quantization::kInt4) continue;
    std::vector<double> differences;
    check_model(folder, {.model = folder, .quantization = quantization}, {100, 100, 100}, &differences);
    EXPECT_LT(mean(differences), bound);
  }
}

// The reference's final hidden states (tests/golden/generate/last_hidden.py), and the softmax of some of its logits.
TEST_P(TinyModels, PooledEqualsTheReference) {
  const std::string folder = golden_dir() + "/" + GetParam();
  std::ifstream in(folder + "/last_hidden.json");
  if (!in) GTEST_SKIP() << "no last_hidden.json";
  const Json states = Json::parse(in);
  const Json golden = read_golden(folder);
  CoreHarness harness({.model = folder, .profile = Profile::kF32, .kv_cache_bytes = size_t{64} << 20});
  std::vector<Request> requests;
  for (const Json& prompt : golden["prompts"]) {
    const auto ids = prompt["ids"].get<std::vector<TokenId>>();
    requests.push_back(pooled(ids));
    requests.push_back(pooled(ids, {5, 250, 0}));
  }
  const auto answers = harness.run(std::move(requests));
  ASSERT_EQ(answers.size(), 2 * states.size());
  for (size_t i = 0; i < states.size(); ++i) {
    SCOPED_TRACE("prompt " + std::to_string(i));
    const Answer& hidden = answers[2 * i];
    EXPECT_EQ(hidden.finish, FinishReason::kStop);
    EXPECT_TRUE(hidden.tokens.empty() && hidden.logits.empty());
    ASSERT_EQ(hidden.pooled.size(), states[i].size());
    for (size_t k = 0; k < states[i].size(); ++k) {
      const double want = states[i][k];
      ASSERT_NEAR(hidden.pooled[k], want, kF32.logits + 1e-3 * std::abs(want)) << "number " << k;
    }
    const auto& probabilities = answers[2 * i + 1].pooled;
    ASSERT_EQ(probabilities.size(), 3U);
    std::vector<double> want;
    for (const int token : {5, 250, 0})
      want.push_back(std::exp(golden["prompts"][i]["last_logits"][static_cast<size_t>(token)].get<double>()));
    const double sum = std::reduce(want.begin(), want.end());
    for (size_t k = 0; k < 3; ++k) EXPECT_NEAR(probabilities[k], want[k] / sum, 2e-3);
  }
}

// Every folder with weights, so that another folder of the same format is run whole.
std::vector<std::string> tiny_models() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(golden_dir()))
    if (std::filesystem::exists(entry.path() / "model.safetensors")) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

INSTANTIATE_TEST_SUITE_P(Golden, TinyModels, ::testing::ValuesIn(tiny_models()),
                         [](const auto& info) { return info.param; });

// Models with windows, whose layers are kept like full ones where the hybrid cache is off.
TEST(TinyWindows, EqualTheReferenceWithoutTheHybridCache) {
  for (const std::string model : {"mistral", "gemma2", "gemma3", "llama4"}) {
    const std::string folder = golden_dir() + "/" + model;
    check_model(folder, {.model = folder, .profile = Profile::kF32, .hybrid_kv_cache = false}, kF32);
    check_model(folder, {.model = folder, .profile = Profile::kBF16, .hybrid_kv_cache = false}, bf16_tolerance(folder));
  }
}

// The same weights in a GGUF file, as a converter writes them: q and k permuted, norms with the 1 added, llama3 rope as
// divisors. The reference's answers hold for them too.
class TinyGguf : public ::testing::TestWithParam<std::string> {};

TEST_P(TinyGguf, F32EqualsTheReference) {
  const std::string dir = std::string(QUIRE_TEST_DATA) + "/models/";
  check_model(dir + GetParam(), {.model = dir + "gguf/" + GetParam() + ".gguf", .profile = Profile::kF32}, kF32);
}

INSTANTIATE_TEST_SUITE_P(Golden, TinyGguf,
                         ::testing::Values("llama_untied", "qwen2", "qwen3", "phi3", "smollm3", "gemma2", "gemma3",
                                           "qwen3_5", "qwen3_5_moe", "qwen3_moe", "qwen3_next", "glm4_moe_lite",
                                           "deepseek_v3", "gpt_oss", "deepseek_v32", "glm_moe_dsa"),
                         [](const auto& info) { return info.param; });

// GGUF of Llama 4 has the published models' chunks and growth. The same weights in a folder that says so give the same
// bits, and that other chunks are those of the reference is tested above.
TEST(TinyGguf, OfLlama4EqualsItsFolder) {
  const std::string dir = std::string(QUIRE_TEST_DATA) + "/models/";
  const auto run = [&](const std::string& model, std::string overrides) {
    CoreHarness harness({.model = dir + model,
                         .hf_overrides = std::move(overrides),
                         .profile = Profile::kF32,
                         .kv_cache_bytes = size_t{16} << 20});
    const Json prompt = read_golden(dir + "llama4")["prompts"].back();
    return harness.run({greedy(prompt["ids"].get<std::vector<TokenId>>(), 24)}).front();
  };
  const Answer gguf = run("gguf/llama4.gguf", "");
  const Answer folder = run("llama4", R"({"attention_chunk_size": 8192, "floor_scale": 8192, "attn_scale": 0.1})");
  EXPECT_EQ(gguf.tokens, folder.tokens);
  EXPECT_EQ(gguf.logits, folder.logits);
  EXPECT_NE(gguf.logits, run("llama4", "").logits);
}

// The tensors of a fixture, to be written under other names and together.
struct Tensors {
  explicit Tensors(const std::string& folder) {
    std::ifstream in(folder + "/model.safetensors", std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(in), {}};
    uint64_t size = 0;
    std::memcpy(&size, bytes.data(), sizeof size);
    header = Json::parse(bytes.substr(sizeof size, size));
    header.erase("__metadata__");
    data = bytes.substr(sizeof size + size);
  }

  // Files have no gaps.
  void write(const std::filesystem::path& folder) const {
    Json packed = header;
    std::string all;
    for (auto& [name, entry] : packed.items()) {
      const size_t begin = entry["data_offsets"][0], end = entry["data_offsets"][1], first = all.size();
      all += data.substr(begin, end - begin);
      entry["data_offsets"] = {first, all.size()};
    }
    const std::string text = packed.dump();
    const uint64_t size = text.size();
    std::ofstream(folder / "model.safetensors", std::ios::binary)
        << std::string(reinterpret_cast<const char*>(&size), sizeof size) << text << all;
  }

  // The parts become one tensor, one behind the other.
  void join(const std::vector<std::string>& parts, const std::string& name, const Json& shape) {
    const size_t first = data.size();
    std::string dtype;
    for (const std::string& part : parts) {
      const Json entry = header.at(part);
      const size_t begin = entry["data_offsets"][0], end = entry["data_offsets"][1];
      data += data.substr(begin, end - begin);
      dtype = entry["dtype"];
      header.erase(part);
    }
    header[name] = {{"dtype", dtype}, {"shape", shape}, {"data_offsets", {first, data.size()}}};
  }

  Json header;
  std::string data;
};

// A copy of a fixture as a multimodal checkpoint has it: tensors named from `root` on beside one of a vision tower and
// one that predicts further ahead, the text's configuration in a section.
void write_multimodal(const std::filesystem::path& folder, const std::string& model, const std::string& architecture,
                      const std::string& root) {
  const std::string from = golden_dir() + "/" + model + "/";
  Tensors tensors(from);
  const Json nothing = {{"dtype", "BF16"}, {"shape", {0}}, {"data_offsets", {0, 0}}};
  Json renamed = {{"vision_tower.vision_model.post_layernorm.weight", nothing},
                  {"model.visual.blocks.0.norm1.weight", nothing},
                  {"mtp.layers.0.input_layernorm.weight", nothing}};
  const std::string plain = "model.";
  // The head is beside the model.
  const std::string head = root.ends_with("." + plain) ? root.substr(0, root.size() - plain.size()) : "";
  for (const auto& [name, entry] : tensors.header.items())
    renamed[name.starts_with(plain) ? root + name.substr(plain.size()) : head + name] = entry;
  tensors.header = std::move(renamed);
  tensors.write(folder);
  std::ifstream in(from + "config.json");
  Json text = Json::parse(in);
  text.erase("architectures");
  std::ofstream(folder / "config.json") << Json{
      {"architectures", {architecture}}, {"text_config", text}, {"vision_config", {{"hidden_size", 32}}}};
  std::filesystem::copy(from + "golden.json", folder / "golden.json");
}

TEST(Multimodal, TextEqualsTheReference) {
  for (const auto& [model, architecture] : {std::pair{"gemma3", "Gemma3ForConditionalGeneration"},
                                            {"qwen3_5", "Qwen3_5ForConditionalGeneration"},
                                            {"llama4", "Llama4ForConditionalGeneration"}})
    for (const std::string root : {"language_model.model.", "model.language_model."}) {
      SCOPED_TRACE(model + (" " + root));
      const weights::TemporaryFolder folder;
      write_multimodal(folder.path(), model, architecture, root);
      check_model(folder.path(), {.model = folder.path(), .profile = Profile::kF32}, kF32);
    }
}

// The fixture has a matrix an expert; released models have two stacks a layer.
TEST(Multimodal, ExpertsMayBeStacked) {
  const std::string from = golden_dir() + "/qwen3_5_moe/";
  const weights::TemporaryFolder folder;
  Tensors tensors(from);
  for (int layer = 0; layer < 4; ++layer) {
    const std::string prefix = "model.language_model.layers." + std::to_string(layer) + ".mlp.experts.";
    std::vector<std::string> gate_up, down;
    for (int e = 0; e < 4; ++e) {
      const std::string expert = prefix + std::to_string(e);
      gate_up.insert(gate_up.end(), {expert + ".gate_proj.weight", expert + ".up_proj.weight"});
      down.push_back(expert + ".down_proj.weight");
    }
    tensors.join(gate_up, prefix + "gate_up_proj", {4, 32, 64});
    tensors.join(down, prefix + "down_proj", {4, 64, 16});
  }
  tensors.write(folder.path());
  for (const char* name : {"config.json", "golden.json"}) std::filesystem::copy(from + name, folder / name);
  check_model(folder.path(), {.model = folder.path(), .profile = Profile::kF32}, kF32);
}

// As they are served: integers with a layout of their own by int8 activations, others as bf16, whose error is smaller.
class TinyQuantised : public ::testing::TestWithParam<std::string> {};

TEST_P(TinyQuantised, DefaultProfileStaysWithinTheErrorOfInt8Activations) {
  const std::string folder = golden_dir() + "/" + GetParam();
  const bool sensitive = is_sensitive(folder);
  std::vector<double> differences;
  check_model(folder, {.model = folder}, sensitive ? kSensitive : Tolerance{10, 2.0, 1.0}, &differences);
  expect_error_of_int8_activations(std::move(differences), sensitive);
}

INSTANTIATE_TEST_SUITE_P(Golden, TinyQuantised,
                         ::testing::Values("llama_awq", "llama_gptq", "llama_w8a8", "qwen3_packed", "gemma3_fp8",
                                           "gpt_oss_mxfp4"),
                         [](const auto& info) { return info.param; });

struct RealModel {
  const char* folder;
  const char* file;
  double nll_error;  // that int8 activations may make
};

class RealModels : public ::testing::TestWithParam<RealModel> {
 protected:
  void SetUp() override {
    file_ = real_model(GetParam().file);
    if (file_.empty()) GTEST_SKIP() << "QUIRE_MODEL_DIR does not hold " << GetParam().file;
    folder_ = golden_dir() + "/" + GetParam().folder;
  }
  std::string file_, folder_;
};

TEST_P(RealModels, F32EqualsTheReference) {
  check_model(folder_, {.model = file_, .profile = Profile::kF32}, {1e-2, 2e-3, 0.02});
}

TEST_P(RealModels, Q8StaysWithinTheErrorOfInt8Activations) {
  std::vector<double> differences;
  check_model(folder_, {.model = file_}, {10, 2.0, 1.0}, &differences);
  ASSERT_GT(differences.size(), 2000U);
  expect_error_of_int8_activations(std::move(differences));
}

// Mean over the text, in nats a token.
double mean_nll(const std::vector<TokenId>& ids, EngineOptions options) {
  options.kv_cache_bytes = size_t{256} << 20;
  CoreHarness harness(std::move(options));
  Request request = greedy(ids, 1);
  request.sampling.prompt_logprobs = 0;
  const uint64_t id = harness.add(request, static_cast<int64_t>(ids.size()));
  harness.run();
  const Answer& answer = harness.answer(id);
  EXPECT_EQ(answer.prompt_logprobs.size(), ids.size() - 1);
  double sum = 0;
  for (const auto& position : answer.prompt_logprobs) sum -= static_cast<double>(position.token.logprob);
  return sum / static_cast<double>(ids.size() - 1);
}

// The reference's notes measured +0.001 and -0.001 by emulating int8 activations; the same noise in another order gives
// another value. Its standard error on this text, from the paired differences of 1,800 tokens to the f32 profile taken
// as independent, is 0.0024 (SmolLM2) and 0.0047 (Gemma 3): a shift of three of them would be a loss. A smaller
// systematic one would show in the divergence below, which has no such noise.
TEST_P(RealModels, Q8LosesNoMoreLikelihoodThanInt8Activations) {
  const Json nll = read_golden(folder_)["nll"];
  const auto ids = nll["ids"].get<std::vector<TokenId>>();
  const double want = nll["mean_nll"].get<double>();
  EXPECT_NEAR(mean_nll(ids, {.model = file_}), want, GetParam().nll_error);
  // Keys and values in int8 on top.
  EXPECT_NEAR(mean_nll(ids, {.model = file_, .kv_cache_dtype = KvCacheDtype::kInt8}), want, GetParam().nll_error);
  // Rounding to bf16 is 2^-9 where int8 is some 2^-7, so its noise is a quarter: 0.0006 to 0.0012.
  EXPECT_NEAR(mean_nll(ids, {.model = file_, .profile = Profile::kBF16}), want, 0.002);
}

// How far int8 activations move the whole distribution: the mean Kullback-Leibler divergence from the f32 profile,
// which equals the reference. Emulating one scale per 32 activations gave 0.0037 (SmolLM2) and 0.0053 (Gemma 3).
TEST_P(RealModels, Q8StaysCloseToF32) {
  auto ids = read_golden(folder_)["nll"]["ids"].get<std::vector<TokenId>>();
  ids.resize(300);
  std::map<int64_t, std::vector<float>> logits[2];
  for (int i = 0; i < 2; ++i) {
    CoreHarness harness(
        {.model = file_, .profile = i == 0 ? Profile::kF32 : Profile::kQ8, .kv_cache_bytes = size_t{256} << 20});
    Request request = greedy(ids, 1);
    request.sampling.prompt_logprobs = 0;
    logits[i] = harness.run({request}).front().logits;
  }
  double divergence = 0;
  int same = 0;
  for (const auto& [position, exact] : logits[0]) {
    const auto& quantised = logits[1].at(position);
    const double a = log_sum_exp(exact), b = log_sum_exp(quantised);
    for (size_t t = 0; t < exact.size(); ++t) {
      const double p = static_cast<double>(exact[t]) - a;
      divergence += std::exp(p) * (p - (static_cast<double>(quantised[t]) - b));
    }
    same += std::ranges::max_element(exact) - exact.begin() == std::ranges::max_element(quantised) - quantised.begin();
  }
  const auto count = static_cast<double>(logits[0].size());
  EXPECT_LT(divergence / count, 0.007);
  EXPECT_GT(same / count, 0.94);
}

INSTANTIATE_TEST_SUITE_P(Golden, RealModels,
                         ::testing::Values(RealModel{"real_smollm2", "smollm2.gguf", 0.0072},
                                           RealModel{"real_gemma3_270m", "gemma3.gguf", 0.0141}),
                         [](const auto& info) { return std::string(info.param.folder); });

}  // namespace
}  // namespace quire::test
