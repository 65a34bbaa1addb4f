#include "kernels/rope.h"

#include <fmt/format.h>

#include <algorithm>
#include <numbers>

#include "base/check.h"
#include "kernels/math.h"
#include "kernels/row_ops.h"

namespace quire::kernels {
namespace {

constexpr int kRowsAtOnce = 512;  // rows made ready by one prepare(), so that decoding rarely computes any

double llama3_frequency(const RopeParameters& p, double frequency) {
  const double wavelength = 2 * std::numbers::pi / frequency;
  if (wavelength < p.original_max_position / p.high_freq_factor) return frequency;
  if (wavelength > p.original_max_position / p.low_freq_factor) return frequency / p.factor;
  const double blend =
      (p.original_max_position / wavelength - p.low_freq_factor) / (p.high_freq_factor - p.low_freq_factor);
  return (1 - blend) * (frequency / p.factor) + blend * frequency;
}

Result<void> check(const RopeParameters& p) {
  const auto bad = [](std::string_view name, double value, std::string_view right) {
    return fail(ErrorKind::kUnsupported, fmt::format("rope {} is {}, must be {}", name, value, right),
                std::string(name));
  };
  if (p.rotary_dim < 2 || p.rotary_dim % 2 != 0) return bad("dimension", p.rotary_dim, "even and at least 2");
  // The negations also refuse NaN.
  if (!(p.theta > 1 && p.theta <= 1e18)) return bad("theta", p.theta, "above 1 and at most 1e18");
  if (!(p.factor > 0 && p.factor <= 1e6)) return bad("factor", p.factor, "above 0 and at most 1e6");
  if (!(p.attention_factor > 0 && p.attention_factor <= 1e6)) {
    return bad("attention_factor", p.attention_factor, "above 0 and at most 1e6");
  }
  if (!p.frequency_divisors.empty() && p.frequency_divisors.size() != static_cast<size_t>(p.rotary_dim / 2))
    return bad("frequency divisors", static_cast<double>(p.frequency_divisors.size()), "half of the rotary dimension");
  for (float divisor : p.frequency_divisors)
    if (!(divisor >= 1e-6F && divisor <= 1e6F)) return bad("frequency divisor", divisor, "between 1e-6 and 1e6");
  if (p.type != RopeType::kLlama3) return {};
  if (!(p.low_freq_factor > 0)) return bad("low_freq_factor", p.low_freq_factor, "above 0");
  if (!(p.high_freq_factor > p.low_freq_factor && p.high_freq_factor <= 1e6)) {
    return bad("high_freq_factor", p.high_freq_factor, "above low_freq_factor and at most 1e6");
  }
  if (!(p.original_max_position >= 1 && p.original_max_position <= 1e9)) {
    return bad("original_max_position_embeddings", p.original_max_position, "between 1 and 1e9");
  }
  return {};
}

}  // namespace

std::vector<double> rope_inverse_frequencies(const RopeParameters& p) {
  std::vector<double> inverse(static_cast<size_t>(p.rotary_dim / 2));
  for (size_t i = 0; i < inverse.size(); i++) {
    const double frequency = pow(p.theta, -2.0 * static_cast<double>(i) / p.rotary_dim);
    switch (p.type) {
      case RopeType::kDefault:
        inverse[i] = frequency;
        break;
      case RopeType::kLinear:
        inverse[i] = frequency / p.factor;
        break;
      case RopeType::kLlama3:
        inverse[i] = llama3_frequency(p, frequency);
        break;
    }
    if (!p.frequency_divisors.empty()) inverse[i] /= static_cast<double>(p.frequency_divisors[i]);
  }
  return inverse;
}

Result<RopeTable> RopeTable::make(const RopeParameters& parameters, int max_positions, Allocator& allocator) {
  if (auto ok = check(parameters); !ok) return std::unexpected(ok.error());
  // Angles beyond 2^26 would lose precision; factors below 1 make them larger than positions.
  if (max_positions < 1 || max_positions > 1 << 24 || max_positions / parameters.factor > 1 << 26) {
    return fail(ErrorKind::kUnsupported,
                fmt::format("rope tables for {} positions; must be between 1 and {}", max_positions, 1 << 24),
                "max_model_len");
  }
  RopeTable table;
  auto storage = allocator.allocate(static_cast<size_t>(max_positions) * static_cast<size_t>(parameters.rotary_dim) *
                                    sizeof(float));
  if (!storage) return std::unexpected(storage.error());
  table.storage_ = std::move(*storage);
  table.inverse_ = rope_inverse_frequencies(parameters);
  table.attention_factor_ = parameters.attention_factor;
  table.half_ = parameters.rotary_dim / 2;
  table.max_positions_ = max_positions;
  table.interleaved_ = parameters.interleaved;
  return table;
}

void RopeTable::prepare(int end, ThreadPool& pool) {
  QUIRE_CHECK(end <= max_positions_);
  if (end <= prepared_) return;
  const int first = prepared_;
  const int last = std::min(max_positions_, (end + kRowsAtOnce - 1) / kRowsAtOnce * kRowsAtOnce);
  pool.split(last - first, [&](int a, int b) { compute(first + a, first + b); });
  prepared_ = last;
}

float* RopeTable::row(int position) const {
  return reinterpret_cast<float*>(storage_.data()) + static_cast<size_t>(position) * static_cast<size_t>(2 * half_);
}

void RopeTable::compute(int begin, int end) {
  for (int position = begin; position < end; position++) {
    float* out = row(position);
    for (int i = 0; i < half_; i++) {
      const double angle = position * inverse_[static_cast<size_t>(i)];
      out[i] = static_cast<float>(kernels::cos(angle) * attention_factor_);
      out[half_ + i] = static_cast<float>(kernels::sin(angle) * attention_factor_);
    }
  }
}

void apply_rope(const KernelTable& table, const RopeTable& rope, int position, float* x, int heads,
                size_t head_stride) {
  const RopeArgs args = {.x = x,
                         .head_stride = head_stride,
                         .heads = heads,
                         .cos = rope.cos(position),
                         .sin = rope.sin(position),
                         .half = rope.half()};
  rope.interleaved() ? table.rows->rope_interleaved(args) : table.rows->rope_half(args);
}

}  // namespace quire::kernels
