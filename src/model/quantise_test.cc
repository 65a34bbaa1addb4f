#include "model/quantise.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/buffer.h"
#include "base/thread_pool.h"
#include "model/architectures/architectures.h"
#include "model/load.h"
#include "weights/checkpoint.h"

namespace quire::model {
namespace {

using weights::Tensor;
using weights::WeightFormat;

// Tensors that a test may change.
struct ListSource final : weights::TensorSource {
  std::vector<Tensor> list;

  const Tensor* find(std::string_view name) const override {
    const auto it = std::ranges::find(list, name, &Tensor::name);
    return it == list.end() ? nullptr : &*it;
  }
  std::span<const Tensor> tensors() const override { return list; }
  Result<const Tensor*> require(std::string_view name) const override {
    if (const Tensor* tensor = find(name)) return tensor;
    return fail(ErrorKind::kCorruptFile, "tensor " + std::string(name) + " is missing", std::string(name));
  }
};

// A model of tests/golden/models.
struct Fixture {
  explicit Fixture(const std::string& name) {
    auto opened = weights::open_checkpoint(std::string(QUIRE_TEST_DATA) + "/models/" + name);
    if (!opened) throw std::runtime_error(opened.error().message);
    checkpoint = std::move(*opened);
    for (const Tensor& tensor : checkpoint.tensors->tensors()) tensors.list.push_back(tensor);
  }
  weights::Checkpoint checkpoint;
  ListSource tensors;
};

template <class T>
void expect_error(const Result<T>& result, ErrorKind kind, std::string_view param, std::string_view part) {
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().kind, kind);
  EXPECT_EQ(result.error().param, param);
  EXPECT_NE(result.error().message.find(part), std::string::npos) << result.error().message;
}

constexpr auto kAuto = LmHeadQuantization::kAuto;

Result<QuantisationPlan> plan_of(const Fixture& fixture, Quantization layers, LmHeadQuantization head = kAuto) {
  auto spec = make_spec(fixture.checkpoint);
  if (!spec) return std::unexpected(spec.error());
  return plan_quantisation(*spec, fixture.tensors, layers, head);
}

// Every float matrix of the tiny models but the embedding is one of the layers' seven, or the head.
TEST(PlanQuantisation, NamesTheMatricesAndNothingElse) {
  for (const auto& [quantization, format] :
       {std::pair{Quantization::kInt8, WeightFormat::kQ8_0}, {Quantization::kInt4, WeightFormat::kQ4_0}}) {
    const Fixture fixture("qwen3");
    const auto plan = plan_of(fixture, quantization);
    ASSERT_TRUE(plan) << plan.error().message;
    EXPECT_TRUE(plan->kept.empty());
    size_t matrices = 0;
    for (const Tensor& tensor : fixture.tensors.tensors()) {
      const bool matrix = tensor.shape.size() == 2;
      ASSERT_EQ(plan->formats.contains(tensor.name), matrix) << tensor.name;
      if (!matrix) continue;
      ++matrices;
      const bool outside = tensor.name.find("layers") == std::string::npos;  // embedding and head
      const bool eight = outside || tensor.name.find("v_proj") != std::string::npos;
      EXPECT_EQ(plan->formats.at(tensor.name), eight ? WeightFormat::kQ8_0 : format) << tensor.name;
    }
    EXPECT_EQ(matrices, 5U * 7 + 2);
  }
}

TEST(PlanQuantisation, TheHeadIsAskedForByItself) {
  const auto names = [](const char* model, Quantization layers, LmHeadQuantization head) {
    const Fixture fixture(model);
    const auto plan = plan_of(fixture, layers, head);
    std::set<std::string> list;
    for (const auto& [name, format] : plan->formats)
      if (name.find("layers") == std::string::npos) list.insert(name);
    return list;
  };
  using Names = std::set<std::string>;
  constexpr auto kNone = LmHeadQuantization::kNone, kInt8 = LmHeadQuantization::kInt8;
  const std::string embedding = "model.embed_tokens.weight", head = "lm_head.weight";
  EXPECT_EQ(names("qwen3", Quantization::kInt4, kAuto), (Names{embedding, head}));
  EXPECT_EQ(names("qwen3", Quantization::kInt4, kNone), Names{embedding});
  EXPECT_EQ(names("llama_tied", Quantization::kInt8, kAuto), Names{embedding});
  EXPECT_EQ(names("llama_tied", Quantization::kInt8, kNone), Names{});
  EXPECT_EQ(names("llama_tied", Quantization::kNone, kInt8), Names{embedding});
  EXPECT_EQ(plan_of(Fixture("qwen3"), Quantization::kNone, kInt8)->formats.size(), 1U);
}

TEST(PlanQuantisation, KeepsRowsThatAreNotWholeGroups) {
  const Fixture fixture("gemma3");  // its MLP has 80 columns
  const auto plan = plan_of(fixture, Quantization::kInt8);
  ASSERT_TRUE(plan) << plan.error().message;
  ASSERT_EQ(plan->kept.size(), 7U);
  EXPECT_EQ(plan->kept.front(), "model.layers.0.mlp.down_proj.weight");
  for (const std::string& name : plan->kept) EXPECT_FALSE(plan->formats.contains(name));
}

TEST(PlanQuantisation, KeepsMatricesWhoseRowsAreInputs) {
  const auto plan = plan_of(Fixture("gpt_oss"), Quantization::kInt8);
  ASSERT_TRUE(plan) << plan.error().message;
  ASSERT_EQ(plan->kept.size(), 4U * 2);
  EXPECT_EQ(plan->kept.front(), "model.layers.0.mlp.experts.gate_up_proj");
  EXPECT_TRUE(plan->formats.contains("model.layers.0.self_attn.q_proj.weight"));
}

TEST(PlanQuantisation, RefusesWhereNothingIsLeft) {
  expect_error(plan_of(Fixture("gguf/random_llama_k.gguf"), Quantization::kInt8), ErrorKind::kUnsupported,
               "quantization", "tensor blk.0.attn_v.weight is [128, 256] Q6_K in the file");
  Fixture fixture("qwen3");
  std::ranges::find(fixture.tensors.list, "lm_head.weight", &Tensor::name)->shape = {300, 60};
  expect_error(plan_of(fixture, Quantization::kNone, LmHeadQuantization::kInt8), ErrorKind::kUnsupported,
               "lm_head_quantization",
               "the rows of tensor lm_head.weight [300, 60] BF16 are not whole groups of 32 inputs");
}

TEST(Load, TellsOfAMissingTensorAlsoWhenQuantising) {
  Fixture fixture("qwen3");
  std::erase_if(fixture.tensors.list, [](const Tensor& t) { return t.name == "model.layers.1.mlp.up_proj.weight"; });
  const auto plan = plan_of(fixture, Quantization::kInt8);
  ASSERT_TRUE(plan);
  const weights::RoundedSource source(std::make_unique<ListSource>(fixture.tensors), plan->formats);
  Allocator allocator;
  ThreadPool pool(1);
  expect_error(load_weights(*make_spec(fixture.checkpoint), source, Profile::kQ8, {allocator, pool}),
               ErrorKind::kCorruptFile, "model.layers.1.mlp.up_proj.weight", "is missing");
}

}  // namespace
}  // namespace quire::model
