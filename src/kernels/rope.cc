#include "kernels/rope.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.h"
#include "kernels/math.h"
#include "kernels/row_ops.h"

namespace quire::kernels {
namespace {

constexpr int kRowsAtOnce = 512;  // rows made ready by one prepare(), so that decoding rarely computes any

double llama3_frequency(const RopeParameters& p, double frequency) {
  const double wavelength = 2 * std::numbers::pi / frequency;
  if (wavelength <= p.original_max_position / p.high_freq_factor) return frequency;
  if (wavelength > p.original_max_position / p.low_freq_factor) return frequency / p.factor;
  const double blend =
      (p.original_max_position / wavelength - p.low_freq_factor) / (p.high_freq_factor - p.low_freq_factor);
  return (1 - blend) * (frequency / p.factor) + blend * frequency;
}

// The dimension that turns `rotations` times in the original length.
double yarn_dimension(const RopeParameters& p, double rotations) {
  const double turns = p.original_max_position / (rotations * 2 * std::numbers::pi);
  return p.rotary_dim * kernels::ln(turns) / (2 * kernels::ln(p.theta));
}

// Kept where the ramp is 0, divided by the factor where it is 1, a mean of both between.
double yarn_frequency(const RopeParameters& p, double frequency, size_t i) {
  double low = yarn_dimension(p, p.beta_fast), high = yarn_dimension(p, p.beta_slow);
  if (p.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0);
  high = std::min(high, p.rotary_dim - 1.0);
  if (low == high) high += 0.001;  // as the reference does
  const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
  return frequency / p.factor * ramp + frequency * (1 - ramp);
}

double theta_of(const RopeParameters& p) {
  if (p.type != RopeType::kDynamic) return p.theta;
  const double length = std::max(p.longest, p.original_max_position);
  const double growth = p.factor * length / p.original_max_position - (p.factor - 1);
  return p.theta * pow(growth, p.rotary_dim / (p.rotary_dim - 2.0));
}

std::unexpected<Error> bad(std::string_view name, double value, std::string_view right) {
  return fail(ErrorKind::kUnsupported, fmt::format("rope {} is {}, must be {}", name, value, right), std::string(name));
}

Result<void> check_divisors(const std::vector<float>& divisors, int count) {
  if (!divisors.empty() && divisors.size() != static_cast<size_t>(count))
    return bad("frequency divisors", static_cast<double>(divisors.size()), "half of the rotary dimension");
  for (float divisor : divisors)
    if (!(divisor >= 1e-6F && divisor <= 1e6F)) return bad("frequency divisor", divisor, "between 1e-6 and 1e6");
  return {};
}

// What the type needs beside theta and factor. The negations also refuse NaN.
Result<void> check_type(const RopeParameters& p) {
  const bool has_length = p.type != RopeType::kDefault && p.type != RopeType::kLinear;
  if ((has_length || !p.long_divisors.empty()) && !(p.original_max_position >= 1 && p.original_max_position <= 1e9))
    return bad("original_max_position_embeddings", p.original_max_position, "between 1 and 1e9");
  if (p.depends_on_longest() && !(p.longest >= 1 && p.longest <= 1e9))
    return bad("longest", p.longest, "between 1 and 1e9");
  switch (p.type) {
    case RopeType::kDefault:
    case RopeType::kLinear:
      return {};
    case RopeType::kLlama3:
      if (!(p.low_freq_factor > 0)) return bad("low_freq_factor", p.low_freq_factor, "above 0");
      if (!(p.high_freq_factor >= p.low_freq_factor && p.high_freq_factor <= 1e6))
        return bad("high_freq_factor", p.high_freq_factor, "at least low_freq_factor and at most 1e6");
      return {};
    case RopeType::kYarn:
      if (!(p.beta_slow > 0 && p.beta_slow <= 1e6)) return bad("beta_slow", p.beta_slow, "above 0 and at most 1e6");
      if (!(p.beta_fast >= p.beta_slow && p.beta_fast <= 1e6))
        return bad("beta_fast", p.beta_fast, "at least beta_slow and at most 1e6");
      return {};
    case RopeType::kDynamic:
      if (p.rotary_dim < 4) return bad("dimension", p.rotary_dim, "at least 4 for the type dynamic");
      if (!(p.factor >= 1)) return bad("factor", p.factor, "at least 1 for the type dynamic");
      return {};
  }
  return {};
}

Result<void> check(const RopeParameters& p) {
  if (p.rotary_dim < 2 || p.rotary_dim % 2 != 0) return bad("dimension", p.rotary_dim, "even and at least 2");
  // The negations also refuse NaN.
  if (!(p.theta > 1 && p.theta <= 1e18)) return bad("theta", p.theta, "above 1 and at most 1e18");
  if (!(p.factor > 0 && p.factor <= 1e6)) return bad("factor", p.factor, "above 0 and at most 1e6");
  if (!(p.attention_factor > 0 && p.attention_factor <= 1e6))
    return bad("attention_factor", p.attention_factor, "above 0 and at most 1e6");
  for (const auto* divisors : {&p.frequency_divisors, &p.long_divisors})
    if (auto ok = check_divisors(*divisors, p.rotary_dim / 2); !ok) return ok;
  return check_type(p);
}

}  // namespace

std::vector<double> rope_inverse_frequencies(const RopeParameters& p) {
  std::vector<double> inverse(static_cast<size_t>(p.rotary_dim / 2));
  const bool is_long = !p.long_divisors.empty() && p.longest > p.original_max_position;
  const std::vector<float>& divisors = is_long ? p.long_divisors : p.frequency_divisors;
  const double theta = theta_of(p);
  for (size_t i = 0; i < inverse.size(); i++) {
    const double frequency = pow(theta, -2.0 * static_cast<double>(i) / p.rotary_dim);
    switch (p.type) {
      case RopeType::kDefault:
      case RopeType::kDynamic:
        inverse[i] = frequency;
        break;
      case RopeType::kLinear:
        inverse[i] = frequency / p.factor;
        break;
      case RopeType::kLlama3:
        inverse[i] = llama3_frequency(p, frequency);
        break;
      case RopeType::kYarn:
        inverse[i] = yarn_frequency(p, frequency, i);
        break;
    }
    if (!divisors.empty()) inverse[i] /= static_cast<double>(divisors[i]);
  }
  return inverse;
}

Result<void> check_rope(const RopeParameters& parameters, int max_positions) {
  if (auto ok = check(parameters); !ok) return ok;
  // Angles beyond 2^26 would lose precision; factors below 1 make them larger than positions.
  if (max_positions >= 1 && max_positions <= 1 << 24 && max_positions / parameters.factor <= 1 << 26) return {};
  return fail(ErrorKind::kUnsupported,
              fmt::format("rope tables for {} positions; must be between 1 and {}", max_positions, 1 << 24),
              "max_model_len");
}

Result<RopeTable> RopeTable::make(const RopeParameters& parameters, int max_positions, Allocator& allocator) {
  if (auto ok = check_rope(parameters, max_positions); !ok) return std::unexpected(ok.error());
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
