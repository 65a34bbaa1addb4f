// The bit contract for models that attend to keys and values, with experts and without.
#include "engine/bits.h"

namespace quire::test {
namespace {

INSTANTIATE_TEST_SUITE_P(
    Tiny, Bits,
    ::testing::Values(BitsCase{"llama_untied", Profile::kBF16}, BitsCase{"qwen3", Profile::kBF16},
                      BitsCase{"qwen3_moe", Profile::kBF16}, BitsCase{"gguf/random_qwen3_moe.gguf", Profile::kQ8},
                      BitsCase{"gpt_oss", Profile::kBF16}, BitsCase{"gpt_oss_mxfp4", Profile::kQ8},
                      BitsCase{"gemma3", Profile::kBF16}, BitsCase{"gemma3", Profile::kF32},
                      BitsCase{"gemma3", Profile::kBF16, KvCacheDtype::kInt8},
                      BitsCase{"gemma3", Profile::kBF16, KvCacheDtype::kAuto, LmHeadQuantization::kInt8},
                      BitsCase{"gguf/random_llama_k.gguf", Profile::kQ8, KvCacheDtype::kInt8},
                      BitsCase{"gguf/random_gemma3_mixed.gguf", Profile::kQ8},
                      BitsCase{"gguf/random_llama_k.gguf", Profile::kQ8},
                      BitsCase{"gguf/random_llama_k.gguf", Profile::kBF16}, BitsCase{"qwen3_packed", Profile::kQ8},
                      BitsCase{"llama_w8a8", Profile::kQ8}, BitsCase{"qwen2", Profile::kBF16},
                      BitsCase{"phi3", Profile::kBF16}, BitsCase{"smollm3", Profile::kBF16},
                      BitsCase{"gemma2", Profile::kBF16}, BitsCase{"mistral", Profile::kBF16}),
    name_of);

// The logits of the last of 100 tokens of a model with two cache groups, run in two steps over hand-made tables: group
// g has blocks of its own, unless `mutate` hands every group the table of group 0.
std::vector<float> logits_over_tables(bool mutate) {
  auto loaded = engine::LoadedModel::load(alone(golden_dir() + "/gemma3", Profile::kBF16));
  EXPECT_TRUE(loaded);
  engine::LoadedModel& model = **loaded;
  const auto& groups = model.storage.plan().groups;
  EXPECT_GE(groups.size(), 2U);
  const auto prompt = random_prompt(100, 1);
  std::vector<float> logits;
  for (int first : {0, 50}) {
    exec::StepBatch batch;
    for (int p = first; p < first + 50; ++p) {
      batch.tokens.push_back(prompt[static_cast<size_t>(p)]);
      batch.positions.push_back(p);
    }
    batch.sequences.push_back({0, 50, first});
    batch.logits_rows.push_back(49);
    for (size_t g = 0; g < groups.size(); ++g) {
      exec::GroupTables tables;
      tables.width = static_cast<int>(groups[g].table_columns);
      tables.blocks.assign(static_cast<size_t>(tables.width), 0);
      const auto size = static_cast<int>(groups[g].spec.block_size);
      for (int c = 0; c * size < 100; ++c)
        tables.blocks[static_cast<size_t>(c)] = 1 + c + (mutate ? 0 : 10 * static_cast<int>(g));
      for (int p : batch.positions)
        tables.slots.push_back(tables.blocks[static_cast<size_t>(p / size)] * size + p % size);
      batch.groups.push_back(std::move(tables));
    }
    model.attention.prepare(batch, model.kernels, model.pool->size());
    model.forward->run(batch, model.attention, [&](const exec::LogitsBlock& block) {
      logits.assign(block.logits, block.logits + model.info.vocab_size);
    });
  }
  return logits;
}

TEST(CacheFaults, OneTableForAllLayersChangesTheAnswer) {
  const auto right = logits_over_tables(false);
  EXPECT_EQ(right, logits_over_tables(false));
  EXPECT_NE(right, logits_over_tables(true));
}

}  // namespace
}  // namespace quire::test
