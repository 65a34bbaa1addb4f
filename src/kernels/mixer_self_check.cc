// The comparisons of kernels for layers that keep states and latents.
#include <numeric>
#include <utility>
#include <vector>

#include "base/buffer.h"
#include "kernels/gated_delta.h"
#include "kernels/index_kernels.h"
#include "kernels/latent_attention.h"
#include "kernels/self_check.h"

namespace quire::kernels {
namespace {

// Outputs and the state after some tokens. Values in whole lanes, side by side and alone, and a rest.
std::vector<float> gated_delta_of(const KernelTable& table, float decay_floor) {
  const GatedDeltaShape shape{
      .heads = 2, .key_heads = 1, .key_dim = 20, .value_dim = 87, .conv_width = 4, .decay_floor = decay_floor};
  constexpr int kTokens = 5;
  const auto width = static_cast<size_t>(shape.channels()), decays = static_cast<size_t>(shape.decays());
  const size_t stride = width + decays + static_cast<size_t>(shape.heads);
  const auto x = self_check_numbers(kTokens * stride), conv = self_check_numbers(4 * width);
  const auto bias = self_check_numbers(decays);
  const std::vector<float> rate = {0.5F, 2};
  const auto out_width = static_cast<size_t>(shape.value_rows());
  std::vector<float> out(kTokens * out_width), state(gated_delta_state_size(shape));
  const GatedDeltaSequence sequence = {.to = state.data(), .first_row = 0, .num_rows = kTokens};
  ThreadPool pool(1);
  gated_delta(table,
              {.shape = shape,
               .conv = conv.data(),
               .rate = rate.data(),
               .dt_bias = bias.data(),
               .x = x.data(),
               .b = x.data() + width + decays,
               .stride = stride,
               .a = x.data() + width,
               .a_stride = stride,
               .out = out.data(),
               .out_stride = out_width},
              {&sequence, 1}, pool);
  out.insert(out.end(), state.begin(), state.end());
  return out;
}

// Two tokens that read the last 78 of 270, over the end of a chunk. Rows are whole blocks of rule 1, or not.
Result<std::vector<float>> latents_of(const KernelTable& table, DType dtype, int rank) {
  constexpr int kTokens = 270, kRows = 2, kFirst = 192, kBlock = 32;
  const LatentShape shape = {.heads = 18, .nope_dim = 37, .rope_dim = 6, .value_dim = 20, .rank = rank, .dtype = dtype};
  Allocator allocator;
  RowView cache = {.row_stride = latent_row_bytes(shape), .rows_per_block = kBlock};
  cache.block_stride = cache.row_stride * kBlock;
  std::vector<int32_t> blocks((kTokens + kBlock - 1) / kBlock);
  std::iota(blocks.begin(), blocks.end(), 0);
  auto memory = allocator.allocate(cache.block_stride * blocks.size());
  if (!memory) return std::unexpected(memory.error());
  cache.base = memory->data();
  std::vector<int64_t> slots(kTokens);
  std::iota(slots.begin(), slots.end(), 0);
  ThreadPool pool(1);
  const auto width = static_cast<size_t>(shape.row_dim()),
             q_width = static_cast<size_t>(shape.heads * shape.query_dim());
  const auto x = self_check_numbers(kTokens * width), q = self_check_numbers(kRows * q_width);
  const auto expansion = self_check_numbers(static_cast<size_t>(shape.expansion_rows() * shape.rank));
  write_latents(shape, cache, slots, x.data(), width, pool);
  auto selected = TokenSelection::make(kRows, kTokens - kFirst, allocator);
  if (!selected) return std::unexpected(selected.error());
  selected->reset(kRows);
  for (int row = 0; row < kRows; row++)
    for (int t = kFirst; t <= kTokens - kRows + row; t++) selected->add(row, t);
  LatentWorkspace workspace;
  if (auto reserved = workspace.reserve(shape, kRows, 1, allocator); !reserved)
    return std::unexpected(reserved.error());
  const auto out_width = static_cast<size_t>(shape.heads * shape.value_dim);
  std::vector<float> out(kRows * out_width);
  const AttentionSequence sequence = {blocks, 0, kRows, kTokens - kRows};
  const Expansion packed(shape, expansion, dtype);
  attend_latents(table,
                 {.shape = shape,
                  .cache = cache,
                  .expansion = &packed,
                  .scale = 0.02F,
                  .q = q.data(),
                  .q_stride = q_width,
                  .out = out.data(),
                  .out_stride = out_width,
                  .selected = &*selected},
                 {&sequence, 1}, workspace, pool);
  return out;
}

// A norm, a pool, and the scores of some keys of both types.
std::vector<float> index_of(const KernelTable& table) {
  constexpr int kHeads = 18, kDim = 37, kPool = 5, kKeys = 19, kPadded = 48;
  const auto x = self_check_numbers(size_t{2} * kPool * kDim), queries = self_check_numbers(size_t{kDim} * kPadded);
  std::vector<float> out(2 * (kDim + kKeys));
  table.index->norm({kDim, x.data(), x.data() + kDim, x.data() + 2 * kDim, 1e-6F, out.data()});
  table.index->pool({kPool, kDim, x.data(), queries.data(), out.data() + kDim});
  std::vector<std::byte> memory(kKeys * kDim * sizeof(float));
  std::vector<float> room(size_t{2} * kKeys * kPadded);
  float* scores = out.data() + 2 * kDim;
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    const std::byte* keys[kKeys];
    for (int i = 0; i < kKeys; i++) {
      std::byte* key = memory.data() + static_cast<size_t>(i * kDim) * size_of(dtype);
      write_numbers(x.data() + 3 * i, kDim, dtype, key);
      keys[i] = key;
    }
    const auto score = dtype == DType::kF32 ? table.index->score_f32 : table.index->score_bf16;
    score({kHeads, kDim, kKeys, keys, queries.data(), x.data(), room.data(), room.data() + kKeys * kPadded, scores});
    scores += kKeys;
  }
  return out;
}

}  // namespace

Result<void> gated_delta_self_check(const KernelTable& table) {
  auto scalar = kernel_table(Isa::kScalar, {});
  if (!scalar) return std::unexpected(scalar.error());
  for (const float decay_floor : {0.0F, -5.0F})
    if (!same_bits(gated_delta_of(*scalar, decay_floor), gated_delta_of(table, decay_floor)))
      return differs("gated delta", table);
  return {};
}

Result<void> latent_self_check(const KernelTable& table) {
  auto scalar = kernel_table(Isa::kScalar, {});
  if (!scalar) return std::unexpected(scalar.error());
  for (const auto& [dtype, rank] : {std::pair{DType::kBF16, 58}, {DType::kBF16, 43}, {DType::kF32, 43}}) {
    const auto want = latents_of(*scalar, dtype, rank), got = latents_of(table, dtype, rank);
    if (!want) return std::unexpected(want.error());
    if (!got) return std::unexpected(got.error());
    if (!same_bits(*want, *got)) return differs("latent attention", table);
  }
  return {};
}

Result<void> index_self_check(const KernelTable& table) {
  auto scalar = kernel_table(Isa::kScalar, {});
  if (!scalar) return std::unexpected(scalar.error());
  if (!same_bits(index_of(*scalar), index_of(table))) return differs("index", table);
  return {};
}

}  // namespace quire::kernels
