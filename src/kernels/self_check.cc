#include "kernels/self_check.h"

#include <fmt/format.h>

#include <cstdint>
#include <cstring>
#include <limits>

#include "kernels/row_ops.h"
#include "kernels/scan.h"

namespace quire::kernels {

std::vector<float> self_check_numbers(size_t n) {
  std::vector<float> x(n);
  uint32_t state = 1;
  for (float& v : x) {
    state = state * 1664525U + 1013904223U;
    v = static_cast<float>(static_cast<int32_t>(state) >> 8) * 0x1p-22F;
  }
  return x;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

std::unexpected<Error> differs(std::string_view kernel, const KernelTable& table) {
  return fail(ErrorKind::kInternal,
              fmt::format("the {} kernels of {} do not compute what the scalar ones do; QUIRE_ISA=scalar avoids them",
                          kernel, name_of(table.isa)));
}

Result<void> row_ops_self_check(const KernelTable& table) {
  auto scalar = kernel_table(Isa::kScalar, {});
  if (!scalar) return std::unexpected(scalar.error());
  constexpr int kCount = 1500, kHalf = 20;
  const auto x = self_check_numbers(kCount), y = self_check_numbers(kCount + 7);
  const auto rows = [&](const KernelTable& t) {
    const RowKernels& k = *t.rows;
    std::vector<float> out(10 * kCount);
    k.rms_norm({x.data(), 0, y.data(), 1e-6F, 1, kCount, out.data(), 0});
    k.silu_mul(x.data(), y.data() + 7, kCount, out.data() + kCount);
    k.gelu_tanh_mul(x.data(), y.data() + 7, kCount, out.data() + 2 * kCount);
    k.soft_cap(x.data(), 1.5F, kCount, out.data() + 3 * kCount);
    k.sigmoid_mul(x.data(), y.data() + 7, kCount, out.data() + 4 * kCount);
    k.add(x.data(), y.data() + 7, kCount, out.data() + 5 * kCount);
    k.scale(x.data(), 0.3F, kCount, out.data() + 6 * kCount);
    k.clamped_swiglu({x.data(), y.data() + 7, 1.702F, 1.5F, 1, kCount, out.data() + 7 * kCount});
    const float* inputs[] = {x.data(), y.data(), y.data() + 7};
    float* outputs[] = {out.data() + 8 * kCount, out.data() + 9 * kCount};
    k.combine({inputs, 3, outputs, 2, x.data(), kCount});
    for (const auto rope : {k.rope_half, k.rope_interleaved})
      rope(
          {.x = out.data(), .head_stride = 2 * kHalf + 1, .heads = 3, .cos = x.data(), .sin = y.data(), .half = kHalf});
    return out;
  };
  if (!same_bits(rows(*scalar), rows(table))) return differs("row", table);
  return {};
}

Result<void> scan_self_check(const KernelTable& table) {
  auto scalar = kernel_table(Isa::kScalar, {});
  if (!scalar) return std::unexpected(scalar.error());
  constexpr int kCount = 1500;
  auto x = self_check_numbers(kCount);
  const auto scans = [&](const KernelTable& t) {
    const ScanKernels& k = *t.scan;
    const ScoredId best = k.argmax(x.data(), kCount);
    std::vector<float> out = {static_cast<float>(best.id), best.value, log_sum_exp(t, x)};
    for (const float threshold : {1.9F, 1.99F, 2.0F}) {
      out.push_back(static_cast<float>(k.next_above(x.data(), 3, kCount, threshold)));
      out.push_back(static_cast<float>(k.count_above(x.data(), kCount, threshold)));
    }
    out.push_back(k.has_nan(x.data(), kCount) ? 1 : 0);
    return out;
  };
  const auto agree = [&] { return same_bits(scans(*scalar), scans(table)); };
  if (!agree()) return differs("scan", table);
  x.back() = std::numeric_limits<float>::quiet_NaN();
  if (!agree()) return differs("scan", table);
  return {};
}

}  // namespace quire::kernels
