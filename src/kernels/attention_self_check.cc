#include <numeric>
#include <vector>

#include "base/buffer.h"
#include "kernels/attention.h"
#include "kernels/self_check.h"

namespace quire::kernels {
namespace {

struct Case {
  int dim;
  int page_tokens;
  int group;
  int rows;
};

// Query tokens at the end of 303, with a partly seen run at both ends.
Result<std::vector<float>> attention(const KernelTable& table, DType dtype, const Case& c) {
  constexpr int kTokens = 303;
  const auto dim = static_cast<size_t>(c.dim);
  const AttentionShape shape = {.q_heads = c.group,
                                .kv_heads = 1,
                                .head_dim = c.dim,
                                .page_tokens = c.page_tokens,
                                .dtype = dtype,
                                .window = 290};
  const size_t page_bytes = kv_head_bytes(dtype, shape.page_tokens, c.dim);
  std::vector<int32_t> pages(static_cast<size_t>((kTokens + c.page_tokens - 1) / c.page_tokens));
  std::iota(pages.begin(), pages.end(), 0);
  Allocator allocator;
  auto memory = allocator.allocate(page_bytes * pages.size());
  if (!memory) return std::unexpected(memory.error());
  const KvView view = {.base = memory->data(),
                       .page_stride = page_bytes,
                       .head_stride = page_bytes,
                       .block_tokens = c.page_tokens,
                       .pages_per_block = 1};
  std::vector<int64_t> slots(kTokens);
  std::iota(slots.begin(), slots.end(), 0);
  const auto x = self_check_numbers(kTokens * dim * 2);
  ThreadPool pool(1);
  write_kv(table, shape, view, {slots, x.data(), x.data() + dim, 2 * dim, 2 * dim}, pool);
  AttentionPlan plan;
  const AttentionSequence sequence = {pages, 0, c.rows, kTokens - c.rows};
  plan.build(table, shape, {&sequence, 1}, 1);
  AttentionWorkspace workspace;
  const size_t stride = static_cast<size_t>(c.group) * dim;
  std::vector<float> out(static_cast<size_t>(c.rows) * stride);
  attend(table, plan, view, {.q = x.data(), .out = out.data(), .q_stride = stride, .out_stride = stride, .scale = 0.2F},
         workspace, pool);
  return out;
}

}  // namespace

Result<void> attention_self_check(const KernelTable& table) {
  auto scalar = kernel_table(Isa::kScalar, {});
  if (!scalar) return std::unexpected(scalar.error());
  // Odd widths and whole ones; blocks of 32 keys in two pages and in one; many rows together, and as few as kernels for
  // many leave to others.
  for (const Case& c : {Case{24, 16, 3, 4}, Case{80, 16, 3, 5}, Case{64, 32, 4, 4}, Case{64, 32, 3, 1}}) {
    for (const DType dtype : {DType::kBF16, DType::kF32, DType::kI8}) {
      const auto want = attention(*scalar, dtype, c), got = attention(table, dtype, c);
      if (!want) return std::unexpected(want.error());
      if (!got) return std::unexpected(got.error());
      if (!same_bits(*want, *got)) return differs("attention", table);
    }
  }
  return {};
}

}  // namespace quire::kernels
