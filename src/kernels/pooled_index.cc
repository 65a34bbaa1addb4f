#include "kernels/pooled_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "kernels/index_kernels.h"
#include "kernels/lines.h"
#include "kernels/shape_check.h"

namespace quire::kernels {
namespace {

constexpr int kMostPool = 64;
constexpr int kKeysAtOnce = 32;

size_t product_of(int a, int b) { return static_cast<size_t>(a) * static_cast<size_t>(b); }

// Where the numbers of a worker lie, in whole lines: those of pooling, or those of selecting.
struct PoolingRoom {
  size_t row, pool, pooled, end;
  explicit PoolingRoom(const PooledIndexShape& s) {
    const size_t width = product_of(2, rounded_to_lines(s.dim));
    row = 0;  // key and gate of the token
    pool = row + width;
    pooled = pool + static_cast<size_t>(s.pool) * width;
    end = pooled + width;
  }
};

struct SelectingRoom {
  size_t queries, weights, wide, dots, scores, end;
  explicit SelectingRoom(const PooledIndexShape& s) {
    const int heads = rounded_to_lines(s.heads), dim = rounded_to_lines(s.dim);
    queries = 0;
    weights = product_of(s.dim, heads);
    wide = weights + static_cast<size_t>(heads);
    dots = wide + product_of(kKeysAtOnce, dim);
    scores = dots + product_of(kKeysAtOnce, heads);
    end = scores + kKeysAtOnce;
  }
};

size_t floats_for(const PooledIndexShape& shape) { return std::max(PoolingRoom(shape).end, SelectingRoom(shape).end); }

size_t pools_for(const PooledIndexShape& shape) { return 2 * static_cast<size_t>(shape.top_k / shape.pool); }

// The key that a token brings, from what the model's matrix gave for it.
void token_key(const KernelTable& table, const PooledIndexArgs& args, int row, int64_t position, float* out) {
  table.index->norm({.n = args.shape.dim,
                     .x = args.key + static_cast<size_t>(row) * args.stride,
                     .weight = args.norm_weight,
                     .bias = args.norm_bias,
                     .epsilon = args.norm_epsilon,
                     .out = out});
  if (args.rope != nullptr)
    apply_rope(table, *args.rope, static_cast<int>(position), out, 1, static_cast<size_t>(args.shape.dim));
}

// Shares the rows of the step out: each worker calls make(worker) once and the result with (sequence, row of the step).
template <class Make>
void split_rows(std::span<const AttentionSequence> sequences, ThreadPool& pool, Make make) {
  if (sequences.empty()) return;
  const int first = sequences.front().first_row, last = sequences.back().first_row + sequences.back().num_rows;
  pool.split(last - first, [&](int worker, int begin, int end) {
    auto work = make(worker);
    for (int row = first + begin; row < first + end; row++)
      work(*(std::ranges::upper_bound(sequences, row, {}, &AttentionSequence::first_row) - 1), row);
  });
}

// Follows one sequence, token by token.
class Pooling {
 public:
  Pooling(const KernelTable& table, const PooledIndexArgs& args, float* numbers)
      : table_(table), args_(args), shape_(args.shape), room_(shape_), numbers_(numbers) {}

  void token(int row, int64_t position) {
    const auto r = static_cast<size_t>(row);
    float* own = numbers_ + room_.row;
    token_key(table_, args_, row, position, own);
    std::copy_n(args_.gate + r * args_.stride, shape_.dim, own + shape_.dim);
    const int64_t slot = args_.ring_slots[r];
    if (slot < 0) return;
    const auto place = static_cast<int>(position % shape_.pool);
    if (place == shape_.pool - 1 && args_.key_slots[r] >= 0) {
      // A pool lies in the ring from its first row on.
      for (int i = 0; i < place; i++) std::memcpy(in_pool(i), args_.ring.slot(slot - place + i), row_bytes());
      std::memcpy(in_pool(place), own, row_bytes());
      float* pooled = numbers_ + room_.pooled;
      table_.index->pool(
          {.pool = shape_.pool, .dim = shape_.dim, .rows = in_pool(0), .bias = args_.position_bias, .out = pooled});
      write_numbers(pooled, shape_.dim, shape_.dtype, args_.keys.slot(args_.key_slots[r]));
    }
    std::memcpy(args_.ring.slot(slot), own, row_bytes());
  }

 private:
  size_t row_bytes() const { return open_pool_row_bytes(shape_); }
  float* in_pool(int place) { return numbers_ + room_.pool + product_of(place, 2 * shape_.dim); }

  const KernelTable& table_;
  const PooledIndexArgs& args_;
  const PooledIndexShape& shape_;
  PoolingRoom room_;
  float* numbers_;
};

// Keys of single tokens need no other's.
void write_key(const KernelTable& table, const PooledIndexArgs& args, const AttentionSequence& sequence, int row,
               float* numbers) {
  const int64_t slot = args.key_slots[static_cast<size_t>(row)];
  if (slot < 0) return;
  token_key(table, args, row, sequence.first_position + row - sequence.first_row, numbers);
  write_numbers(numbers, args.shape.dim, args.shape.dtype, args.keys.slot(slot));
}

// Chooses for one row after the other.
class Selecting {
 public:
  Selecting(const IndexKernels& kernels, const PooledIndexArgs& args, IndexWorkspace::Worker& worker,
            TokenSelection& selection)
      : score_(args.shape.dtype == DType::kF32 ? kernels.score_f32 : kernels.score_bf16),
        args_(args),
        shape_(args.shape),
        room_(shape_),
        numbers_(worker.numbers),
        pools_(worker.pools),
        selection_(selection),
        kept_(static_cast<size_t>(shape_.top_k / shape_.pool)) {}

  void operator()(const AttentionSequence& sequence, int row) {
    const int64_t position = sequence.first_position + row - sequence.first_row;
    const int64_t complete = (position + 1) / shape_.pool;
    if (complete * shape_.pool <= shape_.top_k) {
      add(row, 0, position + 1);
      return;
    }
    turn_queries(row);
    pools_.clear();
    for (int64_t j = 0; j < complete; j += kKeysAtOnce) {
      const auto count = static_cast<int>(std::min<int64_t>(kKeysAtOnce, complete - j));
      score_keys(sequence, j, count);
      for (int i = 0; i < count; i++) {
        if (pools_.size() == 2 * kept_) keep_best();  // memory does not grow with the context
        pools_.push_back({numbers_[room_.scores + static_cast<size_t>(i)], j + i});
        if (std::isnan(pools_.back().score)) return;
      }
    }
    keep_best();
    std::ranges::sort(pools_, {}, &IndexWorkspace::Pool::index);
    for (const auto& pool : pools_) add(row, pool.index * shape_.pool, (pool.index + 1) * shape_.pool);
    add(row, complete * shape_.pool, position + 1);
  }

 private:
  // At least kept_ are there. No two are equal in this order, so what is kept does not depend on when.
  void keep_best() {
    std::ranges::nth_element(pools_, pools_.begin() + static_cast<ptrdiff_t>(kept_),
                             [](const IndexWorkspace::Pool& a, const IndexWorkspace::Pool& b) {
                               return a.score != b.score ? a.score > b.score : a.index < b.index;
                             });
    pools_.resize(kept_);
  }

  void add(int row, int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; p++) selection_.add(row, static_cast<int32_t>(p));
  }

  void turn_queries(int row) {
    const auto r = static_cast<size_t>(row), heads = static_cast<size_t>(rounded_to_lines(shape_.heads));
    const float* q = args_.q + r * args_.q_stride;
    const float scale = 1 / std::sqrt(static_cast<float>(shape_.dim * shape_.heads));
    for (size_t h = 0; h < static_cast<size_t>(shape_.heads); h++, q += shape_.dim) {
      for (size_t i = 0; i < static_cast<size_t>(shape_.dim); i++) numbers_[room_.queries + i * heads + h] = q[i];
      numbers_[room_.weights + h] = args_.weight[r * args_.stride + h] * scale;
    }
  }

  void score_keys(const AttentionSequence& sequence, int64_t first, int count) {
    const std::byte* keys[kKeysAtOnce];
    for (int i = 0; i < count; i++) keys[i] = sequence_row(args_.keys, sequence.pages.data(), first + i);
    score_({.heads = shape_.heads,
            .dim = shape_.dim,
            .count = count,
            .keys = keys,
            .queries = numbers_ + room_.queries,
            .weights = numbers_ + room_.weights,
            .wide = numbers_ + room_.wide,
            .dots = numbers_ + room_.dots,
            .scores = numbers_ + room_.scores});
  }

  void (*score_)(const IndexScoreArgs&);
  const PooledIndexArgs& args_;
  const PooledIndexShape& shape_;
  SelectingRoom room_;
  float* numbers_;
  std::vector<IndexWorkspace::Pool>& pools_;  // the best so far, and some more
  TokenSelection& selection_;
  size_t kept_;  // pools that a row reads
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

bool IndexWorkspace::holds(const PooledIndexShape& shape, int workers) const {
  return workers_.size() >= static_cast<size_t>(workers) && floats_ >= floats_for(shape) && pools_ >= pools_for(shape);
}

Result<void> IndexWorkspace::reserve(const PooledIndexShape& shape, int workers, Allocator& allocator) {
  if (holds(shape, workers)) return {};
  const size_t floats = std::max(floats_, floats_for(shape)), pools = std::max(pools_, pools_for(shape));
  const size_t count = std::max(workers_.size(), static_cast<size_t>(workers));
  auto memory = allocator.allocate(floats * count * sizeof(float));
  if (!memory) return std::unexpected(memory.error());
  memory_ = std::move(*memory);
  floats_ = floats;
  pools_ = pools;
  workers_.resize(count);
  for (size_t i = 0; i < count; i++) {
    workers_[i].numbers = reinterpret_cast<float*>(memory_.data()) + i * floats;
    workers_[i].pools.reserve(pools);
  }
  return {};
}

void pool_keys(const KernelTable& table, const PooledIndexArgs& args, std::span<const AttentionSequence> sequences,
               IndexWorkspace& workspace, ThreadPool& pool) {
  QUIRE_CHECK(workspace.holds(args.shape, pool.size()));
  if (!args.shape.keeps_ring())
    return split_rows(sequences, pool, [&](int worker) {
      return [&, numbers = workspace.worker(worker).numbers](const AttentionSequence& sequence, int row) {
        write_key(table, args, sequence, row, numbers);
      };
    });
  pool.split(static_cast<int>(sequences.size()), [&](int worker, int begin, int end) {
    Pooling pooling(table, args, workspace.worker(worker).numbers);
    for (int s = begin; s < end; s++) {
      const AttentionSequence& sequence = sequences[static_cast<size_t>(s)];
      for (int i = 0; i < sequence.num_rows; i++) pooling.token(sequence.first_row + i, sequence.first_position + i);
    }
  });
}

void select_tokens(const KernelTable& table, const PooledIndexArgs& args, std::span<const AttentionSequence> sequences,
                   IndexWorkspace& workspace, ThreadPool& pool, TokenSelection& selection) {
  if (sequences.empty()) return;
  QUIRE_CHECK(workspace.holds(args.shape, pool.size()));
  selection.reset(sequences.back().first_row + sequences.back().num_rows);
  split_rows(sequences, pool,
             [&](int worker) { return Selecting(*table.index, args, workspace.worker(worker), selection); });
}

}  // namespace quire::kernels
