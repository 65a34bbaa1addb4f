#include "kernels/attention_oracle.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "kernels/math.h"

namespace quire::kernels {
namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();
constexpr float kLog2e = 1.44269502F;

float rounded(float x, DType dtype) { return dtype == DType::kF32 ? x : bf16_to_float(float_to_bf16(x)); }

struct Softmax {
  float m = kNothing;
  float l = 0;
  std::vector<float> o;
  bool nan = false;  // a score is
};

void merge(Softmax& to, const Softmax& more) {
  to.nan |= more.nan;
  if (more.m == kNothing) return;
  if (to.m == kNothing) {
    const bool nan = to.nan;
    to = more;
    to.nan = nan;
    return;
  }
  const float top = std::max(to.m, more.m), a = exp2(to.m - top), b = exp2(more.m - top);
  to.l = std::fma(more.l, b, to.l * a);
  for (size_t d = 0; d < to.o.size(); d++) to.o[d] = std::fma(more.o[d], b, to.o[d] * a);
  to.m = top;
}

class Row {
 public:
  Row(const AttentionShape& shape, const DenseTokens& tokens, const float* q, int q_head, const OracleOptions& options)
      : shape_(shape), tokens_(tokens), options_(options), head_(q_head / (shape.q_heads / shape.kv_heads)) {
    for (int d = 0; d < shape.head_dim; d++) q_.push_back(rounded(q[d], shape.dtype));
  }

  // Rule 13: what a row of K or V is multiplied with, and its numbers.
  struct Quantised {
    float scale = 1;
    std::vector<float> numbers;
  };
  Quantised row_of(const std::vector<float>& of, int64_t token) const {
    const float* x = of.data() + (token * shape_.kv_heads + head_) * shape_.head_dim;
    Quantised row{1, std::vector<float>(static_cast<size_t>(shape_.head_dim))};
    if (shape_.dtype != DType::kI8) {
      for (size_t d = 0; d < row.numbers.size(); d++) row.numbers[d] = rounded(x[d], shape_.dtype);
      return row;
    }
    float peak = 0;
    bool finite = true;
    for (size_t d = 0; d < row.numbers.size(); d++) {
      peak = std::max(peak, std::abs(x[d]));
      finite = finite && std::isfinite(x[d]);
    }
    if (!finite || peak < 1e-30F) {
      row.scale = finite ? 0 : std::numeric_limits<float>::quiet_NaN();
      return row;
    }
    for (size_t d = 0; d < row.numbers.size(); d++) row.numbers[d] = std::nearbyint(x[d] * (127.0F / peak));
    row.scale = peak / 127.0F;
    return row;
  }

  Softmax chunk(int64_t begin, int64_t lo, int64_t hi) const {
    Softmax result;
    std::vector<float> s(256), p(256);
    std::vector<std::vector<float>> values;  // from lo on
    for (int64_t t = lo; t < hi; t++) {
      const Quantised key = row_of(tokens_.k, t);
      float score = dot(key.numbers);
      if (shape_.dtype == DType::kI8) score *= key.scale;
      score *= options_.scale;
      if (options_.soft_cap > 0) score = options_.soft_cap * tanh(score / options_.soft_cap);
      s[at(t - begin)] = score * kLog2e;
      result.nan |= std::isnan(score);
      result.m = std::max(result.m, s[at(t - begin)]);
    }
    float lanes[16] = {};
    for (int64_t t = lo; t < hi; t++) {
      const float e = exp2(s[at(t - begin)] - result.m);
      lanes[t % 16] += e;
      const Quantised value = row_of(tokens_.v, t);
      p[at(t - begin)] = rounded(shape_.dtype == DType::kI8 ? e * value.scale : e, shape_.dtype);
      values.push_back(value.numbers);
    }
    for (int step = 8; step > 0; step /= 2)
      for (int i = 0; i < step; i++) lanes[i] += lanes[i + step];
    result.l = lanes[0];
    for (int d = 0; d < shape_.head_dim; d++) result.o.push_back(sum(p, values, begin, lo, hi, d));
    return result;
  }

 private:
  static size_t at(int64_t i) { return static_cast<size_t>(i); }
  // The sum of a[i] * b(i), i in [lo, hi), by rule 1: ascending; but for f32 in blocks of 32 at multiples of 32, the
  // even numbers of a block apart from the odd ones.
  template <class B>
  float sum_of(const std::vector<float>& a, B b, int64_t lo, int64_t hi) const {
    float acc = 0;
    if (shape_.dtype == DType::kF32) {
      for (int64_t i = lo; i < hi; i++) acc = std::fma(a[at(i)], b(i), acc);
      return acc;
    }
    for (int64_t block = lo / 32 * 32; block < hi; block += 32) {
      float chain[2] = {0, 0};
      for (int64_t i = std::max(block, lo); i < std::min(block + 32, hi); i++) {
        chain[i % 2] = std::fma(a[at(i)], b(i), chain[i % 2]);
      }
      acc = acc + (chain[0] + chain[1]);
    }
    return acc;
  }
  float dot(const std::vector<float>& key) const {
    return sum_of(q_, [&](int64_t d) { return key[at(d)]; }, 0, shape_.head_dim);
  }
  // A key that is not seen is left out.
  float sum(const std::vector<float>& p, const std::vector<std::vector<float>>& values, int64_t begin, int64_t lo,
            int64_t hi, int d) const {
    const auto value = [&](int64_t i) { return values[at(begin + i - lo)][at(d)]; };
    return sum_of(p, value, lo - begin, hi - begin) + 0.0F;
  }

  const AttentionShape& shape_;
  const DenseTokens& tokens_;
  const OracleOptions& options_;
  int head_;
  std::vector<float> q_;
};

}  // namespace

std::vector<float> attention_oracle(const AttentionShape& shape, const DenseTokens& tokens, const float* q, int q_head,
                                    int64_t position, const OracleOptions& options) {
  int64_t lo = 0;
  if (shape.window > 0) lo = std::max<int64_t>(lo, position - shape.window + 1);
  if (shape.chunk > 0) lo = std::max<int64_t>(lo, position - position % shape.chunk);
  const Row row(shape, tokens, q, q_head, options);
  Softmax total;
  for (int64_t begin = lo / 256 * 256; begin <= position; begin += 256)
    merge(total, row.chunk(begin, std::max(begin, lo), std::min(begin + 256, position + 1)));
  if (options.sinks != nullptr) {
    merge(total, {options.sinks[q_head] * kLog2e, 1, std::vector<float>(static_cast<size_t>(shape.head_dim))});
  }
  if (total.nan) total = {.l = 1, .o = std::vector<float>(static_cast<size_t>(shape.head_dim), std::nanf(""))};
  const float inverse = 1.0F / total.l;
  for (float& x : total.o) x *= inverse;
  return total.o;
}

TestCache::TestCache(const AttentionShape& shape, int blocks, int block_tokens, int gap) : shape_(shape) {
  const size_t head_bytes = kv_head_bytes(shape.dtype, shape.page_tokens, shape.head_dim);
  const int in_block = block_tokens / shape.page_tokens;
  view_.head_stride = head_bytes;
  view_.page_stride = head_bytes * static_cast<size_t>(shape.kv_heads);
  view_.block_tokens = block_tokens;
  view_.pages_per_block = in_block + gap;
  memory_ = *allocator_.allocate(static_cast<size_t>(blocks * view_.pages_per_block) * view_.page_stride);
  std::memset(memory_.data(), 0xff, memory_.size());  // NaN in every type
  view_.base = memory_.data();
  free_.resize(static_cast<size_t>(blocks - 1));
  std::iota(free_.begin(), free_.end(), 1);
  std::shuffle(free_.begin(), free_.end(), std::mt19937(3));
}

std::vector<int32_t> TestCache::take(int64_t tokens) {
  std::vector<int32_t> blocks;
  for (int64_t t = 0; t < tokens; t += view_.block_tokens) {
    blocks.push_back(free_.back());
    free_.pop_back();
  }
  return blocks;
}

std::vector<int32_t> TestCache::pages(const std::vector<int32_t>& blocks) const {
  std::vector<int32_t> pages;
  for (const int32_t b : blocks)
    for (int i = 0; i < view_.block_tokens / shape_.page_tokens; i++)
      pages.push_back(b == 0 ? 0 : b * view_.pages_per_block + i);
  return pages;
}

void TestCache::write(const KernelTable& table, const std::vector<int32_t>& blocks, const DenseTokens& tokens,
                      int64_t begin, int64_t end, ThreadPool& pool) {
  std::vector<int64_t> slots;
  for (int64_t t = begin; t < end; t++)
    slots.push_back(int64_t{blocks[static_cast<size_t>(t / view_.block_tokens)]} * view_.block_tokens +
                    t % view_.block_tokens);
  const auto stride = static_cast<size_t>(shape_.kv_heads * shape_.head_dim);
  const size_t first = static_cast<size_t>(begin) * stride;
  write_kv(table, shape_, view_,
           {.slots = slots,
            .k = tokens.k.data() + first,
            .v = tokens.v.data() + first,
            .k_stride = stride,
            .v_stride = stride},
           pool);
}

std::vector<float> random_numbers(size_t n, std::mt19937& rng) {
  std::normal_distribution<float> normal;
  std::vector<float> x(n);
  for (float& v : x) v = normal(rng);
  return x;
}

DenseTokens random_tokens(const AttentionShape& shape, int64_t tokens, std::mt19937& rng) {
  const auto n = static_cast<size_t>(tokens * shape.kv_heads * shape.head_dim);
  return {random_numbers(n, rng), random_numbers(n, rng)};
}

// The oracle itself against plain softmax in double.
TEST(AttentionOracle, IsSoftmax) {
  std::mt19937 rng(1);
  const AttentionShape shape = {.q_heads = 2, .kv_heads = 1, .head_dim = 16, .page_tokens = 16, .dtype = DType::kF32};
  const DenseTokens tokens = random_tokens(shape, 600, rng);
  const auto q = random_numbers(16, rng);
  const float sinks[] = {0.5F, -1};
  for (const float* sink : {static_cast<const float*>(nullptr), sinks}) {
    const auto got = attention_oracle(shape, tokens, q.data(), 1, 599, {.scale = 0.25F, .soft_cap = 5, .sinks = sink});
    std::vector<double> weights;
    double sum = sink == nullptr ? 0 : std::exp(-1.0);
    for (size_t t = 0; t < 600; t++) {
      double s = 0;
      for (size_t d = 0; d < 16; d++) s += static_cast<double>(q[d]) * tokens.k[t * 16 + d];
      weights.push_back(std::exp(5 * std::tanh(s * 0.25 / 5)));
      sum += weights.back();
    }
    for (size_t d = 0; d < 16; d++) {
      double want = 0;
      for (size_t t = 0; t < 600; t++) want += weights[t] / sum * tokens.v[t * 16 + d];
      EXPECT_NEAR(got[d], want, 1e-6);
    }
  }
}

}  // namespace quire::kernels
