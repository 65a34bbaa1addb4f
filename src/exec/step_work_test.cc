#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "exec/step_profile.h"

namespace quire::exec {
namespace {

TEST(StepWork, KeysAreThoseOfEveryRow) {
  std::mt19937 rng(1);
  const auto below = [&](int n) { return static_cast<int>(rng() % static_cast<unsigned>(n)); };
  for (int i = 0; i < 200; ++i) {
    const BatchSequence sequence{.num_rows = 1 + below(40), .first_position = below(100)};
    const int window = below(2) * (1 + below(50)), chunk = below(2) * (1 + below(50));
    int64_t seen = 0;
    std::set<int64_t> read;
    for (int64_t p = sequence.first_position; p < sequence.first_position + sequence.num_rows; ++p)
      for (int64_t key = 0; key <= p; ++key) {
        if (window > 0 && key <= p - window) continue;
        if (chunk > 0 && key / chunk != p / chunk) continue;
        ++seen;
        read.insert(key);
      }
    EXPECT_EQ(seen_keys(sequence, window, chunk), static_cast<double>(seen));
    EXPECT_EQ(read_keys(sequence, window, chunk), static_cast<double>(read.size()));
  }
}

TEST(StepWork, AProductReadsItsMatrixOnce) {
  const std::vector<float> numbers(48 * 64, 1);
  const weights::Tensor tensor{
      .name = "w", .format = weights::WeightFormat::kF32, .shape = {48, 64}, .data = std::as_bytes(std::span(numbers))};
  const kernels::PackSource source{&tensor};
  Allocator allocator;
  ThreadPool pool(1);
  auto matrix = kernels::pack({&source, 1}, kernels::WeightTarget::kF32, 1, allocator, pool);
  ASSERT_TRUE(matrix);
  const double bytes = static_cast<double>(matrix->bytes());
  EXPECT_GE(bytes, 48 * 64 * 4);
  model::Linear linear;
  linear.rows = 48;
  linear.cols = 64;
  linear.parts.push_back({std::move(*matrix), 0});
  const auto table = *kernels::kernel_table(Isa::kScalar, {});

  const kernels::Work work = work_of_product(linear, table, 3, false);
  EXPECT_EQ(work.bytes, bytes);
  EXPECT_EQ(work.cached_bytes, 3 * (64 + 48) * 4);
  EXPECT_EQ(work.operations, kernels::operations_of(kernels::Unit::kF32, 2.0 * 3 * 48 * 64));
  // What is there is read, too.
  EXPECT_EQ(work_of_product(linear, table, 3, true).cached_bytes, 3 * (64 + 2 * 48) * 4);
}

TEST(StepWork, AttentionReadsEachKeyOnceASequence) {
  model::AttentionSpec spec;
  spec.q_heads = 4;
  spec.kv_heads = 2;
  spec.head_dim = 8;
  StepBatch batch;
  batch.sequences = {{.first_row = 0, .num_rows = 3, .first_position = 0},
                     {.first_row = 3, .num_rows = 1, .first_position = 9}};
  batch.positions = {0, 1, 2, 9};
  batch.tokens = {1, 1, 1, 1};
  const auto table = *kernels::kernel_table(Isa::kScalar, {});
  const kernels::Work work = work_of_attention(spec, DType::kBF16, table, batch);
  EXPECT_EQ(work.bytes, (3 + 10) * 2 * 2 * 8 * 2);                 // keys; k and v of two heads in bf16
  EXPECT_EQ(work.cached_bytes, 4 * 2 * 4 * 8 * 4);                 // q and the result of four rows
  EXPECT_EQ(work.all_operations(), (1 + 2 + 3 + 10) * 4 * 8 * 4);  // a multiply-add with k, one with v
}

TEST(StepProfile, IsChargedWithWhatPasses) {
  StepProfile profile;
  profile.resume();
  profile.charge(Operator::kHead);
  profile.charge(Operator::kSampling);
  StepWork work = {};
  work[static_cast<size_t>(Operator::kHead)].bytes = 5;
  profile.count(work);
  profile.count(work);
  EXPECT_EQ(profile.steps(), 2);
  EXPECT_EQ(profile.of(Operator::kHead).work.bytes, 10);
  EXPECT_GE(profile.of(Operator::kHead).seconds, 0);
  EXPECT_EQ(profile.of(Operator::kQkv).seconds, 0);
  EXPECT_DOUBLE_EQ(profile.seconds(), profile.of(Operator::kHead).seconds + profile.of(Operator::kSampling).seconds);
}

}  // namespace
}  // namespace quire::exec
