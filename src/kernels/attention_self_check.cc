#include "kernels/attention_self_check.h"

#include <fmt/format.h>

#include <cstring>
#include <numeric>
#include <string_view>
#include <vector>

#include "base/buffer.h"
#include "kernels/attention.h"
#include "kernels/row_ops.h"
#include "kernels/scan.h"

namespace quire::kernels {
namespace {

// Numbers between -2 and 2 from a fixed sequence.
std::vector<float> numbers(size_t n) {
  std::vector<float> x(n);
  uint32_t state = 1;
  for (float& v : x) {
    state = state * 1664525U + 1013904223U;
    v = static_cast<float>(static_cast<int32_t>(state) >> 8) * 0x1p-22F;
  }
  return x;
}

bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

Result<void> differs(std::string_view kernel, const KernelTable& table) {
  return fail(ErrorKind::kInternal,
              fmt::format("the {} kernels of {} do not compute what the scalar ones do; QUIRE_ISA=scalar avoids them",
                          kernel, name_of(table.isa)));
}

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
  const auto x = numbers(kTokens * dim * 2);
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
      if (!same(*want, *got)) return differs("attention", table);
    }
  }
  return {};
}

Result<void> row_ops_self_check(const KernelTable& table) {
  auto scalar = kernel_table(Isa::kScalar, {});
  if (!scalar) return std::unexpected(scalar.error());
  constexpr int kCount = 1500;
  const auto x = numbers(kCount), y = numbers(kCount + 7);
  const auto rows = [&](const KernelTable& t) {
    std::vector<float> out(5 * kCount + 1);
    t.rows->rms_norm({x.data(), 0, y.data(), 1e-6F, 1, kCount, out.data(), 0});
    t.rows->silu_mul(x.data(), y.data() + 7, kCount, out.data() + kCount);
    t.rows->gelu_tanh_mul(x.data(), y.data() + 7, kCount, out.data() + 2 * kCount);
    t.rows->soft_cap(x.data(), 1.5F, kCount, out.data() + 3 * kCount);
    t.rows->sigmoid_mul(x.data(), y.data() + 7, kCount, out.data() + 4 * kCount);
    out.back() = log_sum_exp(t, x);
    return out;
  };
  if (!same(rows(*scalar), rows(table))) return differs("row", table);
  const ScoredId want = scalar->scan->argmax(x.data(), kCount), got = table.scan->argmax(x.data(), kCount);
  if (want.id != got.id || want.value != got.value) return differs("scan", table);
  return {};
}

}  // namespace quire::kernels
