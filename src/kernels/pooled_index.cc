#include "kernels/pooled_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/lane_sum.h"
#include "kernels/math.h"
#include "kernels/shape_check.h"

namespace quire::kernels {
namespace {

constexpr int kMostPool = 64;

template <class Value>
float row_sum(int n, Value value) {
  float lanes[16] = {};
  for (int i = 0; i < n; i++) lanes[i % 16] += value(i);
  return sum_of_lanes(lanes);
}

// Follows one sequence, token by token.
class Pooling {
 public:
  explicit Pooling(const PooledIndexArgs& args)
      : args_(args), shape_(args.shape), row_(static_cast<size_t>(2 * shape_.dim)) {
    pooled_.resize(static_cast<size_t>(shape_.dim));
    pool_.resize(static_cast<size_t>(shape_.pool) * row_.size());
  }

  void token(int row, int64_t position) {
    const auto r = static_cast<size_t>(row);
    normed_key(args_.key + r * args_.stride);
    std::copy_n(args_.gate + r * args_.stride, shape_.dim, row_.data() + shape_.dim);
    const int64_t slot = args_.ring_slots[r];
    if (slot < 0) return;
    const auto place = static_cast<int>(position % shape_.pool);
    if (place == shape_.pool - 1 && args_.key_slots[r] >= 0) {
      for (int i = 0; i < place; i++) read(slot - place + i, i);
      std::ranges::copy(row_, pool_.begin() + place * std::ssize(row_));
      write_pooled(args_.keys.slot(args_.key_slots[r]));
    }
    std::memcpy(args_.ring.slot(slot), row_.data(), row_.size() * sizeof(float));
  }

 private:
  void normed_key(const float* x) {
    const int n = shape_.dim;
    const auto count = static_cast<float>(n);
    const float mean = row_sum(n, [&](int i) { return x[i]; }) / count;
    const float variance = row_sum(n, [&](int i) { return (x[i] - mean) * (x[i] - mean); }) / count;
    const float inverse = 1 / std::sqrt(variance + args_.norm_epsilon);
    for (int i = 0; i < n; i++)
      row_[static_cast<size_t>(i)] = std::fma((x[i] - mean) * inverse, args_.norm_weight[i], args_.norm_bias[i]);
  }

  // The ring's row of an earlier token of the pool: a pool lies in the ring from its first row on.
  void read(int64_t slot, int place) {
    std::memcpy(pool_.data() + static_cast<ptrdiff_t>(place) * std::ssize(row_), args_.ring.slot(slot),
                row_.size() * sizeof(float));
  }

  void write_pooled(std::byte* to) {
    for (int c = 0; c < shape_.dim; c++) {
      float logit[kMostPool];
      float largest = -std::numeric_limits<float>::infinity();
      for (int i = 0; i < shape_.pool; i++) {
        const float gate = pool_[static_cast<size_t>((2 * i + 1) * shape_.dim + c)];
        logit[i] = gate + args_.position_bias[static_cast<ptrdiff_t>(i) * shape_.dim + c];
        largest = std::max(largest, logit[i]);
      }
      float sum = 0, pooled = 0;
      for (int i = 0; i < shape_.pool; i++) {
        const float a = exp(logit[i] - largest);
        sum += a;
        pooled = std::fma(a, pool_[static_cast<size_t>(2 * i * shape_.dim + c)], pooled);
      }
      pooled_[static_cast<size_t>(c)] = pooled / sum;
    }
    write_numbers(pooled_.data(), shape_.dim, shape_.dtype, to);
  }

  const PooledIndexArgs& args_;
  const PooledIndexShape& shape_;
  std::vector<float> row_;     // key, gate of the token
  std::vector<float> pool_;    // [pool][key, gate]
  std::vector<float> pooled_;  // [dim]
};

// Chooses for one row.
class Selecting {
 public:
  Selecting(const PooledIndexArgs& args, TokenSelection& selection)
      : args_(args),
        shape_(args.shape),
        selection_(selection),
        key_(static_cast<size_t>(shape_.dim)),
        kept_(static_cast<size_t>(shape_.top_k / shape_.pool)) {}

  void operator()(const AttentionSequence& sequence, int index) {
    const int row = sequence.first_row + index;
    const int64_t position = sequence.first_position + index;
    const int64_t complete = (position + 1) / shape_.pool;
    if (complete * shape_.pool <= shape_.top_k) {
      add(row, 0, position + 1);
      return;
    }
    pools_.clear();
    for (int64_t j = 0; j < complete; j++) {
      read_numbers(sequence_row(args_.keys, sequence.pages.data(), j), shape_.dim, shape_.dtype, key_.data());
      if (pools_.size() == 2 * kept_) keep_best();  // memory does not grow with the context
      pools_.push_back({score(row), j});
      if (std::isnan(pools_.back().score)) return;
    }
    keep_best();
    std::ranges::sort(pools_, {}, &Pool::index);
    for (const Pool& pool : pools_) add(row, pool.index * shape_.pool, (pool.index + 1) * shape_.pool);
    add(row, complete * shape_.pool, position + 1);
  }

 private:
  struct Pool {
    float score;
    int64_t index;
  };

  // At least kept_ are there. No two are equal in this order, so what is kept does not depend on when.
  void keep_best() {
    std::ranges::nth_element(pools_, pools_.begin() + static_cast<ptrdiff_t>(kept_), [](const Pool& a, const Pool& b) {
      return a.score != b.score ? a.score > b.score : a.index < b.index;
    });
    pools_.resize(kept_);
  }

  void add(int row, int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; p++) selection_.add(row, static_cast<int32_t>(p));
  }

  float score(int row) const {
    const auto r = static_cast<size_t>(row);
    const float* weight = args_.weight + r * args_.stride;
    const float* q = args_.q + r * args_.q_stride;
    const float scale = 1 / std::sqrt(static_cast<float>(shape_.dim * shape_.heads));
    float total = 0;
    for (int h = 0; h < shape_.heads; h++, q += shape_.dim) {
      float dot = 0;
      for (int i = 0; i < shape_.dim; i++) dot = std::fma(q[i], key_[static_cast<size_t>(i)], dot);
      total = std::fma(weight[h] * scale, std::max(dot, 0.0F), total);
    }
    return total;
  }

  const PooledIndexArgs& args_;
  const PooledIndexShape& shape_;
  TokenSelection& selection_;
  std::vector<float> key_;
  size_t kept_;              // pools that a row reads
  std::vector<Pool> pools_;  // the best so far, and some more
};

}  // namespace

Result<void> check_pooled_index_shape(const PooledIndexShape& s) {
  if (auto ok = check_ranges("pooled indexer", {{"pool", s.pool, 1, kMostPool},
                                                {"heads", s.heads, 1, 1 << 10},
                                                {"dimension", s.dim, 1, 1 << 10},
                                                {"top k", s.top_k, 1, 1 << 16}});
      !ok)
    return ok;
  if (s.top_k % s.pool != 0)
    return fail(ErrorKind::kUnsupported,
                fmt::format("pooled indexer: top k {} must be a multiple of the pool of {} tokens", s.top_k, s.pool),
                "top k");
  if (s.dtype == DType::kBF16 || s.dtype == DType::kF32) return {};
  return fail(ErrorKind::kUnsupported, fmt::format("pooled indexer: keys are bf16 or f32, not {}", name_of(s.dtype)),
              "dtype");
}

size_t pooled_key_bytes(const PooledIndexShape& shape) { return static_cast<size_t>(shape.dim) * size_of(shape.dtype); }

size_t open_pool_row_bytes(const PooledIndexShape& shape) { return static_cast<size_t>(2 * shape.dim) * sizeof(float); }

void pool_keys(const PooledIndexArgs& args, std::span<const AttentionSequence> sequences, ThreadPool& pool) {
  pool.split(static_cast<int>(sequences.size()), [&](int begin, int end) {
    Pooling pooling(args);
    for (int s = begin; s < end; s++) {
      const AttentionSequence& sequence = sequences[static_cast<size_t>(s)];
      for (int i = 0; i < sequence.num_rows; i++) pooling.token(sequence.first_row + i, sequence.first_position + i);
    }
  });
}

void select_tokens(const PooledIndexArgs& args, std::span<const AttentionSequence> sequences, ThreadPool& pool,
                   TokenSelection& selection) {
  if (sequences.empty()) return;
  selection.reset(sequences.back().first_row + sequences.back().num_rows);
  split_rows(sequences, pool, [&] { return Selecting(args, selection); });
}

}  // namespace quire::kernels
