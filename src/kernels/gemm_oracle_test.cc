#include "kernels/gemm_oracle.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/dtype.h"

namespace quire::kernels::oracle {
namespace {

using weights::WeightFormat;

size_t at(int row, int column, int columns) {
  return static_cast<size_t>(row) * static_cast<size_t>(columns) + static_cast<size_t>(column);
}

int pick(std::mt19937& rng, int low, int high) {
  return low + static_cast<int>(rng() % static_cast<uint32_t>(high - low + 1));
}

struct Half {
  uint16_t bits;
  float value;
};

// A finite fp16, sometimes zero or denormal, with its value by the definition of the format.
Half random_half(std::mt19937& rng) {
  const int kind = pick(rng, 0, 15);
  const int exponent = kind == 0 ? 0 : pick(rng, 4, 18);
  const int mantissa = kind == 1 ? 0 : pick(rng, 0, 1023);
  const bool negative = rng() % 4 == 0;
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return {static_cast<uint16_t>((negative ? 0x8000 : 0) | exponent << 10 | mantissa),
          static_cast<float>(negative ? -magnitude : magnitude)};
}

void put16(std::byte* p, uint16_t value) { std::memcpy(p, &value, 2); }
void put8(std::byte* p, int value) { *p = static_cast<std::byte>(value & 255); }

// Two nibbles a byte: weight i beside weight i + 16.
void put_nibbles(std::byte* p, const int* q) {
  for (int i = 0; i < 16; i++) put8(p + i, (q[i] & 15) | (q[i + 16] & 15) << 4);
}

void put_fifth_bits(std::byte* p, const int* q) {
  uint32_t bits = 0;
  for (int i = 0; i < 32; i++) bits |= static_cast<uint32_t>((q[i] >> 4) & 1) << i;
  std::memcpy(p, &bits, 4);
}

// The integers a format can hold.
std::pair<int, int> weight_range(WeightFormat format) {
  switch (format) {
    case WeightFormat::kQ8_0:
      return {-128, 127};
    case WeightFormat::kQ4_0:
      return {-8, 7};
    case WeightFormat::kQ5_0:
      return {-16, 15};
    case WeightFormat::kQ6_K:
      return {-32, 31};
    case WeightFormat::kQ2_K:
      return {0, 3};
    case WeightFormat::kQ3_K:
      return {-4, 3};
    case WeightFormat::kQ5_1:
    case WeightFormat::kQ5_K:
      return {0, 31};
    default:
      return {0, 15};
  }
}

bool has_minimum(WeightFormat format) {
  return format == WeightFormat::kQ4_1 || format == WeightFormat::kQ5_1 || format == WeightFormat::kQ2_K ||
         format == WeightFormat::kQ4_K || format == WeightFormat::kQ5_K;
}

// What the 16 codes of a format mean; MXFP4 (OCP's e2m1) doubled, so that they are integers. Empty for all others.
std::vector<int> codes(WeightFormat format) {
  if (format == WeightFormat::kIQ4_NL || format == WeightFormat::kIQ4_XS)
    return {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
  if (format != WeightFormat::kMXFP4) return {};
  std::vector<int> values;
  for (int code = 0; code < 16; code++) {
    const int exponent = code >> 1 & 3, mantissa = code & 1;
    const int size = exponent == 0 ? mantissa : (2 + mantissa) << (exponent - 1);
    values.push_back(code < 8 ? size : -size);
  }
  return values;
}

// Any code of a value.
int code_of(WeightFormat format, int value) {
  const std::vector<int> all = codes(format);
  return static_cast<int>(std::ranges::find(all, value) - all.begin());
}

// A block of 32 weights from column `k` of row `n`.
void fill_block(Matrix& m, int n, int k, std::byte* b, std::mt19937& rng) {
  const Half d = random_half(rng);
  const Half min = random_half(rng);
  const size_t group = at(n, k / 32, m.k / 32);
  m.d[group] = d.value;
  put16(b, d.bits);
  std::byte* rest = b + 2;
  if (has_minimum(m.format)) {
    m.min[group] = min.value;
    put16(rest, min.bits);
    rest += 2;
  }
  int q[32];
  for (int i = 0; i < 32; i++) q[i] = m.q[at(n, k + i, m.k)];
  if (m.format == WeightFormat::kQ8_0) {
    for (int i = 0; i < 32; i++) put8(rest + i, q[i]);
    return;
  }
  const int offset = -weight_range(m.format).first;
  for (int& value : q) value += offset;
  if (m.format == WeightFormat::kQ5_0 || m.format == WeightFormat::kQ5_1) {
    put_fifth_bits(rest, q);
    rest += 4;
  }
  put_nibbles(rest, q);
}

void fill_mxfp4(Matrix& m, int n, int k, std::byte* b, std::mt19937& rng) {
  // Below 2 the scale is no normal number, and counts as zero.
  const int e = rng() % 16 == 0 ? pick(rng, 0, 3) : pick(rng, 110, 140);
  m.d[at(n, k / 32, m.k / 32)] = e < 2 ? 0 : std::ldexp(1.F, e - 128);
  put8(b, e);
  int q[32];
  for (int i = 0; i < 32; i++) q[i] = code_of(m.format, m.q[at(n, k + i, m.k)]);
  put_nibbles(b + 1, q);
}

void fill_iq4_nl(Matrix& m, int n, int k, std::byte* b, std::mt19937& rng) {
  const Half d = random_half(rng);
  m.d[at(n, k / 32, m.k / 32)] = d.value;
  put16(b, d.bits);
  int q[32];
  for (int i = 0; i < 32; i++) q[i] = code_of(m.format, m.q[at(n, k + i, m.k)]);
  put_nibbles(b + 2, q);
}

// Eight runs of 32 with 6-bit factors: the low bits of two share a byte, the upper ones of all a word.
void fill_iq4_xs(Matrix& m, int n, int k, std::byte* b, std::mt19937& rng) {
  const Half d = random_half(rng);
  put16(b, d.bits);
  int high = 0;
  for (int j = 0; j < 8; j++) {
    const int factor = rng() % 8 == 0 ? -32 : pick(rng, -32, 31);
    m.d[at(n, k / 32 + j, m.k / 32)] = d.value * static_cast<float>(factor);
    const int stored = factor + 32;
    high |= (stored >> 4) << (2 * j);
    b[4 + j / 2] |= static_cast<std::byte>((stored & 15) << (4 * (j % 2)));
    int q[32];
    for (int i = 0; i < 32; i++) q[i] = code_of(m.format, m.q[at(n, k + 32 * j + i, m.k)]);
    put_nibbles(b + 8 + 16 * j, q);
  }
  put16(b + 2, static_cast<uint16_t>(high));
}

// In each half of 128 weights: four runs of 32 in the pairs of bits of 32 bytes.
void put_pairs(std::byte* p, const int* q) {
  for (int half = 0; half < 2; half++) {
    for (int i = 0; i < 32; i++) {
      int byte = 0;
      for (int run = 0; run < 4; run++) byte |= (q[128 * half + 32 * run + i] & 3) << (2 * run);
      put8(p + 32 * half + i, byte);
    }
  }
}

void fill_q2_k(Matrix& m, int n, int k, std::byte* b, std::mt19937& rng) {
  const Half d = random_half(rng);
  const Half min = random_half(rng);
  put16(b + 80, d.bits);
  put16(b + 82, min.bits);
  for (int j = 0; j < 8; j++) {
    m.d[at(n, k / 32 + j, m.k / 32)] = d.value;
    m.min[at(n, k / 32 + j, m.k / 32)] = -min.value;
  }
  for (int j = 0; j < 16; j++) {
    const int of_d = pick(rng, 0, 15);
    const int of_min = pick(rng, 0, 15);
    m.factor[at(n, k / 16 + j, m.k / 16)] = of_d;
    m.min_factor[at(n, k / 16 + j, m.k / 16)] = of_min;
    put8(b + j, of_d | of_min << 4);
  }
  put_pairs(b + 16, &m.q[at(n, k, m.k)]);
}

void fill_q3_k(Matrix& m, int n, int k, std::byte* b, std::mt19937& rng) {
  const Half d = random_half(rng);
  put16(b + 108, d.bits);
  for (int j = 0; j < 8; j++) m.d[at(n, k / 32 + j, m.k / 32)] = d.value;
  for (int j = 0; j < 16; j++) {
    const int factor = rng() % 8 == 0 ? -32 : pick(rng, -32, 31);
    m.factor[at(n, k / 16 + j, m.k / 16)] = factor;
    const int stored = factor + 32;
    b[96 + j % 8] |= static_cast<std::byte>((stored & 15) << (j < 8 ? 0 : 4));
    b[104 + j % 4] |= static_cast<std::byte>((stored >> 4) << (j / 4 * 2));
  }
  int u[256];
  for (int i = 0; i < 256; i++) {
    u[i] = m.q[at(n, k + i, m.k)] + 4;
    b[i % 32] |= static_cast<std::byte>((u[i] >> 2) << (i / 32));
  }
  put_pairs(b + 32, u);
}

// The eight pairs of 6-bit factors of a Q4_K or Q5_K block.
void put_factors(std::byte* s, const int* of_d, const int* of_min) {
  for (int j = 0; j < 4; j++) {
    put8(s + j, of_d[j] | (of_d[j + 4] >> 4) << 6);
    put8(s + j + 4, of_min[j] | (of_min[j + 4] >> 4) << 6);
    put8(s + j + 8, (of_d[j + 4] & 15) | (of_min[j + 4] & 15) << 4);
  }
}

void fill_q45_k(Matrix& m, int n, int k, std::byte* b, std::mt19937& rng) {
  const Half d = random_half(rng);
  const Half min = random_half(rng);
  int of_d[8];
  int of_min[8];
  for (int j = 0; j < 8; j++) {
    of_d[j] = pick(rng, 0, 63);
    of_min[j] = pick(rng, 0, 63);
    m.d[at(n, k / 32 + j, m.k / 32)] = d.value * static_cast<float>(of_d[j]);
    m.min[at(n, k / 32 + j, m.k / 32)] = -(min.value * static_cast<float>(of_min[j]));
  }
  put16(b, d.bits);
  put16(b + 2, min.bits);
  put_factors(b + 4, of_d, of_min);
  const bool five = m.format == WeightFormat::kQ5_K;
  std::byte* high = b + 16;
  std::byte* low = five ? b + 48 : b + 16;
  for (int i = 0; i < 32; i++) {
    int bits = 0;
    for (int j = 0; j < 8; j++) {
      const int q = m.q[at(n, k + 32 * j + i, m.k)];
      bits |= (q >> 4) << j;
      if (j % 2 == 0) put8(low + j / 2 * 32 + i, (q & 15) | (m.q[at(n, k + 32 * j + 32 + i, m.k)] & 15) << 4);
    }
    if (five) put8(high + i, bits);
  }
}

void fill_q6_k(Matrix& m, int n, int k, std::byte* b, std::mt19937& rng) {
  const Half d = random_half(rng);
  put16(b + 208, d.bits);
  for (int j = 0; j < 8; j++) m.d[at(n, k / 32 + j, m.k / 32)] = d.value;
  for (int j = 0; j < 16; j++) {
    const int factor = rng() % 8 == 0 ? -128 : pick(rng, -128, 127);
    m.factor[at(n, k / 16 + j, m.k / 16)] = factor;
    put8(b + 192 + j, factor);
  }
  // In each half of 128: four runs of 32, u = value + 32, with their low nibbles in two rows and high bits in one.
  for (int half = 0; half < 2; half++) {
    for (int i = 0; i < 32; i++) {
      int u[4];
      for (int run = 0; run < 4; run++) u[run] = m.q[at(n, k + 128 * half + 32 * run + i, m.k)] + 32;
      put8(b + 64 * half + i, (u[0] & 15) | (u[2] & 15) << 4);
      put8(b + 64 * half + 32 + i, (u[1] & 15) | (u[3] & 15) << 4);
      put8(b + 128 + 32 * half + i, u[0] >> 4 | (u[1] >> 4) << 2 | (u[2] >> 4) << 4 | (u[3] >> 4) << 6);
    }
  }
}

// What writes the block of row `n` from column `k` on.
using Filler = void (*)(Matrix& m, int n, int k, std::byte* b, std::mt19937& rng);

Filler filler(WeightFormat format) {
  switch (format) {
    case WeightFormat::kQ2_K:
      return fill_q2_k;
    case WeightFormat::kQ3_K:
      return fill_q3_k;
    case WeightFormat::kQ4_K:
    case WeightFormat::kQ5_K:
      return fill_q45_k;
    case WeightFormat::kQ6_K:
      return fill_q6_k;
    case WeightFormat::kIQ4_NL:
      return fill_iq4_nl;
    case WeightFormat::kIQ4_XS:
      return fill_iq4_xs;
    case WeightFormat::kMXFP4:
      return fill_mxfp4;
    default:
      return fill_block;
  }
}

void fill_quantised(Matrix& m, std::mt19937& rng) {
  const auto [low, high] = weight_range(m.format);
  const size_t count = m.values.size();
  m.q.resize(count);
  for (int& q : m.q) q = rng() % 8 == 0 ? (rng() % 2 == 0 ? low : high) : pick(rng, low, high);
  for (int i = 0; i < m.k; i++) m.q[static_cast<size_t>(i)] = low;  // one row of the lowest: the largest sums
  if (const std::vector<int> values = codes(m.format); !values.empty()) {
    for (int& q : m.q) q = values[static_cast<size_t>(q)];
  }
  m.d.resize(count / 32);
  m.min.resize(count / 32);
  m.factor.assign(count / 16, 1);
  m.min_factor.assign(count / 16, 1);
  const weights::FormatInfo& info = weights::format_info(m.format);
  std::byte* b = m.file.data();
  for (int n = 0; n < m.n; n++) {
    for (int k = 0; k < m.k; k += info.block_elements, b += info.block_bytes) {
      filler(m.format)(m, n, k, b, rng);
    }
  }
  // In double every product and sum is exact: one rounding, at the end.
  for (size_t i = 0; i < count; i++) {
    const double product = double{m.d[i / 32]} * m.factor[i / 16] * m.q[i];
    const double min = double{m.min[i / 32]} * m.min_factor[i / 16];
    m.values[i] = static_cast<float>(has_minimum(m.format) ? product + min : product);
  }
}

void fill_floats(Matrix& m, std::mt19937& rng) {
  std::normal_distribution<float> normal;
  for (size_t i = 0; i < m.values.size(); i++) {
    float value = normal(rng) * 0.1F;
    if (rng() % 32 == 0) value = std::ldexp(value, pick(rng, -150, 20));  // also denormals
    if (m.format == WeightFormat::kF16) {
      const Half half = random_half(rng);
      value = half.value;
      put16(m.file.data() + 2 * i, half.bits);
    } else if (m.format == WeightFormat::kBF16) {
      const uint16_t bits = float_to_bf16(value);
      value = bf16_to_float(bits);
      put16(m.file.data() + 2 * i, bits);
    } else {
      std::memcpy(m.file.data() + 4 * i, &value, 4);
    }
    m.values[i] = value;
  }
}

float integer_chain(const Matrix& w, const QuantisedRow& a, int n, int begin, int end) {
  float acc = 0;
  for (int g = begin / 32; g < end / 32; g++) {
    int dot = 0;
    int sum = 0;
    for (int k = 32 * g; k < 32 * g + 32; k++) {
      const int q = a.q[static_cast<size_t>(k)];
      dot += q * w.q[at(n, k, w.k)] * w.factor[at(n, k / 16, w.k / 16)];
      sum += q * w.min_factor[at(n, k / 16, w.k / 16)];
    }
    const size_t group = at(n, g, w.k / 32);
    const float scale = a.scale[static_cast<size_t>(g)];
    acc = std::fma(w.d[group] * scale, static_cast<float>(dot), acc);
    if (w.format == WeightFormat::kQ2_K) {
      acc = std::fma(-w.min[group] / 32 * scale, static_cast<float>(-32 * sum), acc);
    } else if (has_minimum(w.format)) {
      acc = std::fma(w.min[group], scale * static_cast<float>(sum), acc);
    }
  }
  return acc;
}

float rounded(float x) { return bf16_to_float(float_to_bf16(x)); }

// Inputs in blocks of 32, the last one filled with zeros; even and odd ones apart.
float block_sum(const Matrix& w, const float* x, int n, int begin, int end) {
  float acc = 0;
  for (int block = begin; block < end; block += 32) {
    float parts[2] = {0, 0};
    for (int i = 0; i < 32; i++) {
      const int k = block + i;
      const float weight = k < w.k ? rounded(w.values[at(n, k, w.k)]) : 0;
      parts[i % 2] = std::fma(k < w.k ? rounded(x[k]) : 0, weight, parts[i % 2]);
    }
    acc = acc + (parts[0] + parts[1]);
  }
  return acc;
}

float rounded_chain(const Matrix& w, const float* x, int n, int begin, int end) {
  float acc = 0;
  for (int k = begin; k < end; k++) acc = std::fma(rounded(x[k]), w.values[at(n, k, w.k)], acc);
  return acc;
}

float f32_chain(const Matrix& w, const float* x, int n, int begin, int end) {
  float acc = 0;
  for (int k = begin; k < end; k++) acc = std::fma(x[k], w.values[at(n, k, w.k)], acc);
  return acc;
}

float tree(const float* sums, int count) {
  return count == 1 ? sums[0] : tree(sums, count / 2) + tree(sums + count / 2, count / 2);
}

}  // namespace

weights::Tensor Matrix::tensor() const {
  return {.name = "test.weight", .format = format, .shape = {n, k}, .data = file};
}

Matrix random_matrix(WeightFormat format, int n, int k, std::mt19937& rng) {
  Matrix m;
  m.format = format;
  m.n = n;
  m.k = k;
  const size_t count = static_cast<size_t>(n) * static_cast<size_t>(k);
  const weights::FormatInfo& info = weights::format_info(format);
  m.values.resize(count);
  m.file.resize(count / static_cast<size_t>(info.block_elements) * static_cast<size_t>(info.block_bytes));
  if (weights::is_quantised(format)) {
    fill_quantised(m, rng);
  } else {
    fill_floats(m, rng);
  }
  return m;
}

QuantisedRow quantise(const float* x, int k) {
  QuantisedRow row;
  for (int g = 0; g < k; g += 32) {
    float amax = 0;
    bool finite = true;
    for (int i = g; i < g + 32; i++) {
      finite = finite && std::isfinite(x[i]);
      amax = std::max(amax, std::fabs(x[i]));
    }
    const bool zero = !finite || amax < 1e-30F;
    row.scale.push_back(!finite ? std::nanf("") : zero ? 0.F : amax / 127.F);
    for (int i = g; i < g + 32; i++) {
      row.q.push_back(zero ? 0 : static_cast<int>(std::lrint(x[i] * (127.F / amax))));
    }
  }
  return row;
}

std::vector<float> random_rows(int m, int k, std::mt19937& rng) {
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(m) * static_cast<size_t>(k));
  for (int r = 0; r < m; r++) {
    const int exponent = r % 5 == 3 ? pick(rng, -140, 40) : 0;
    for (int i = 0; i < k; i++) {
      const float value = normal(rng) * (rng() % 64 == 0 ? 30.F : 1.F);
      x[at(r, i, k)] = std::ldexp(value, exponent);
      if (r % 3 == 0 && i < 64) x[at(r, i, k)] = 0;
      if (r % 7 == 6) x[at(r, i, k)] = 2;  // every weight's activation is +127
    }
  }
  return x;
}

std::vector<float> product(const Matrix& w, const std::vector<float>& x, int m, Arithmetic arithmetic, int slices) {
  std::vector<float> c(static_cast<size_t>(m) * static_cast<size_t>(w.n));
  for (int r = 0; r < m; r++) {
    const float* row = x.data() + at(r, 0, w.k);
    const QuantisedRow quantised = arithmetic == Arithmetic::kIntegers ? quantise(row, w.k) : QuantisedRow{};
    for (int n = 0; n < w.n; n++) {
      float sums[8];
      for (int s = 0; s < slices; s++) {
        const int begin = w.k / slices * s;
        const int end = w.k / slices * (s + 1);
        switch (arithmetic) {
          case Arithmetic::kF32:
            sums[s] = f32_chain(w, row, n, begin, end);
            break;
          case Arithmetic::kRounded:
            sums[s] = rounded_chain(w, row, n, begin, end);
            break;
          case Arithmetic::kBlocks:
            sums[s] = block_sum(w, row, n, begin, end);
            break;
          case Arithmetic::kIntegers:
            sums[s] = integer_chain(w, quantised, n, begin, end);
            break;
        }
      }
      c[at(r, n, w.n)] = tree(sums, slices);
    }
  }
  return c;
}

std::string difference(const float* want, const float* got, size_t count, int columns) {
  for (size_t i = 0; i < count; i++) {
    if (std::bit_cast<uint32_t>(want[i]) == std::bit_cast<uint32_t>(got[i])) continue;
    if (std::isnan(want[i]) && std::isnan(got[i])) continue;
    const auto width = static_cast<size_t>(columns);
    return fmt::format("row {} column {} is {:a} ({}), not {:a} ({})", i / width, i % width, got[i], got[i], want[i],
                       want[i]);
  }
  return {};
}

}  // namespace quire::kernels::oracle
