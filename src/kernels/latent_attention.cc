#include "kernels/latent_attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/attention_kernels.h"
#include "kernels/lane_sum.h"
#include "kernels/math.h"
#include "kernels/shape_check.h"

namespace quire::kernels {
namespace {

constexpr float kLog2e = 1.44269504088896340736F;

float rounded(float x, DType dtype) { return dtype == DType::kF32 ? x : bf16_to_float(float_to_bf16(x)); }

// A sum by rule 1, of terms that come ascending by their index: for f32 one chain; for bf16 in blocks of 32 indices one
// chain of the even and one of the odd ones, which are then added.
class ChainSum {
 public:
  explicit ChainSum(DType dtype) : single_(dtype == DType::kF32) {}

  void add(int index, float a, float b) {
    if (single_) {
      sum_ = std::fma(a, b, sum_);
      return;
    }
    if (index / kRule1Block != block_) end_block();
    block_ = index / kRule1Block;
    chain_[index % 2] = std::fma(a, b, chain_[index % 2]);
  }
  float sum() {
    if (!single_) end_block();
    return sum_;
  }

 private:
  void end_block() {
    sum_ = sum_ + (chain_[0] + chain_[1]);
    chain_[0] = chain_[1] = 0;
  }

  bool single_;
  int block_ = 0;
  float sum_ = 0;
  float chain_[2] = {0, 0};
};

float dot(const float* a, const float* b, int n, DType dtype) {
  ChainSum sum(dtype);
  for (int i = 0; i < n; i++) sum.add(i, a[i], b[i]);
  return sum.sum();
}

// The running softmax of one row and head: the sum of what came so far, relative to its maximum (rule 6).
struct Softmax {
  float maximum = 0;
  float sum = 0;
  std::vector<float> out;  // [rank]

  void clear(int rank) {
    maximum = -std::numeric_limits<float>::infinity();
    sum = 0;
    out.assign(static_cast<size_t>(rank), 0.0F);
  }

  // A side without a maximum is empty and changes nothing.
  void merge(const Softmax& chunk) {
    constexpr float kNone = -std::numeric_limits<float>::infinity();
    if (chunk.maximum == kNone) return;
    if (maximum == kNone) {
      *this = chunk;
      return;
    }
    const float m = std::max(maximum, chunk.maximum);
    const float a = exp2(maximum - m), b = exp2(chunk.maximum - m);
    sum = std::fma(chunk.sum, b, sum * a);
    for (size_t i = 0; i < out.size(); i++) out[i] = std::fma(chunk.out[i], b, out[i] * a);
    maximum = m;
  }
};

// One row of the step. Keys are read once for all heads, a chunk at a time.
class Row {
 public:
  explicit Row(const LatentArgs& args)
      : args_(args),
        shape_(args.shape),
        queries_(static_cast<size_t>(shape_.heads * shape_.row_dim())),
        keys_(static_cast<size_t>(kSoftmaxChunk * shape_.row_dim())),
        heads_(static_cast<size_t>(shape_.heads)) {}

  void operator()(const AttentionSequence& sequence, int index) {
    const auto row = static_cast<size_t>(sequence.first_row + index);
    absorb(args_.q + row * args_.q_stride);
    for (Softmax& head : heads_) head.clear(shape_.rank);
    blocks_ = sequence.pages.data();
    const int64_t position = sequence.first_position + index;
    if (args_.selected != nullptr) {
      const std::span<const int32_t> keys = args_.selected->row(static_cast<int>(row));
      for (size_t i = 0; i < keys.size(); i++) add_key(keys[i], i + 1 == keys.size() ? -1 : keys[i + 1]);
    } else {
      for (int64_t key = 0; key <= position; key++) add_key(key, key == position ? -1 : key + 1);
    }
    expand(args_.out + row * args_.out_stride);
  }

 private:
  const float* expansion(int head) const {
    return args_.expansion + static_cast<ptrdiff_t>(head) * (shape_.nope_dim + shape_.value_dim) * shape_.rank;
  }
  float* query(int head) { return queries_.data() + static_cast<ptrdiff_t>(head) * shape_.row_dim(); }
  float* key(int place) { return keys_.data() + static_cast<ptrdiff_t>(place) * shape_.row_dim(); }

  void absorb(const float* q) {
    for (int h = 0; h < shape_.heads; h++, q += shape_.query_dim()) {
      float* out = query(h);
      sums_.assign(static_cast<size_t>(shape_.rank), ChainSum(shape_.dtype));
      for (int i = 0; i < shape_.nope_dim; i++) {
        add_scaled(i, rounded(q[i], shape_.dtype), expansion(h) + static_cast<ptrdiff_t>(i) * shape_.rank);
      }
      for (int r = 0; r < shape_.rank; r++) out[r] = rounded(sums_[static_cast<size_t>(r)].sum(), shape_.dtype);
      for (int i = 0; i < shape_.rope_dim; i++) out[shape_.rank + i] = rounded(q[shape_.nope_dim + i], shape_.dtype);
    }
  }

  // Keys come ascending; those of one chunk are gathered, then all heads see them. `next` < 0: there is none.
  void add_key(int64_t position, int64_t next) {
    const std::byte* row = sequence_row(args_.cache, blocks_, position);
    read_numbers(row, shape_.row_dim(), shape_.dtype, key(static_cast<int>(places_.size())));
    places_.push_back(static_cast<int>(position % kSoftmaxChunk));
    if (next >= 0 && next / kSoftmaxChunk == position / kSoftmaxChunk) return;
    for (int h = 0; h < shape_.heads; h++) attend(h);
    places_.clear();
  }

  // The gathered keys of one chunk; `places_` are theirs in it.
  void attend(int head) {
    const int count = static_cast<int>(places_.size());
    const DType dtype = shape_.dtype;
    float p[kSoftmaxChunk];
    chunk_.clear(shape_.rank);
    bool bad = false;
    for (int i = 0; i < count; i++) {
      p[i] = args_.scale * dot(query(head), key(i), shape_.row_dim(), dtype) * kLog2e;
      bad |= std::isnan(p[i]);
      chunk_.maximum = std::max(chunk_.maximum, p[i]);
    }
    if (bad) chunk_.maximum = 0;  // a score that is NaN makes the row NaN, also beside others that are -infinity
    if (chunk_.maximum == -std::numeric_limits<float>::infinity()) return;
    float lanes[16] = {};
    for (int i = 0; i < count; i++) {
      if (!std::isnan(p[i])) p[i] = exp2(p[i] - chunk_.maximum);
      lanes[places_[static_cast<size_t>(i)] % 16] += p[i];
    }
    chunk_.sum = sum_of_lanes(lanes);
    sums_.assign(static_cast<size_t>(shape_.rank), ChainSum(dtype));
    for (int i = 0; i < count; i++) add_scaled(places_[static_cast<size_t>(i)], rounded(p[i], dtype), key(i));
    for (size_t r = 0; r < sums_.size(); r++) chunk_.out[r] = sums_[r].sum() + 0.0F;
    heads_[static_cast<size_t>(head)].merge(chunk_);
  }

  // Adds the term of this index, x times a vector of the rank, to all sums.
  void add_scaled(int index, float x, const float* vector) {
    for (size_t r = 0; r < sums_.size(); r++) sums_[r].add(index, x, vector[r]);
  }

  void expand(float* out) {
    for (int h = 0; h < shape_.heads; h++, out += shape_.value_dim) {
      Softmax& head = heads_[static_cast<size_t>(h)];
      const float inverse = 1 / head.sum;
      for (float& x : head.out) x = rounded(x * inverse, shape_.dtype);
      const float* w = expansion(h) + static_cast<ptrdiff_t>(shape_.nope_dim) * shape_.rank;
      for (int v = 0; v < shape_.value_dim; v++)
        out[v] = dot(head.out.data(), w + static_cast<ptrdiff_t>(v) * shape_.rank, shape_.rank, shape_.dtype);
    }
  }

  const LatentArgs& args_;
  const LatentShape& shape_;
  const int32_t* blocks_ = nullptr;
  std::vector<float> queries_;  // [heads][row_dim]
  std::vector<float> keys_;     // [kSoftmaxChunk][row_dim]
  std::vector<int> places_;     // of the gathered keys in their chunk
  std::vector<Softmax> heads_;
  Softmax chunk_;
  std::vector<ChainSum> sums_;  // [rank]
};

}  // namespace

Result<void> check_latent_shape(const LatentShape& s) {
  if (auto ok = check_ranges("latent attention", {{"heads", s.heads, 1, 1 << 10},
                                                  {"query dimension without rope", s.nope_dim, 1, 1 << 10},
                                                  {"rope dimension", s.rope_dim, 0, 1 << 10},
                                                  {"value dimension", s.value_dim, 1, 1 << 10},
                                                  {"latent rank", s.rank, 1, 1 << 12}});
      !ok)
    return ok;
  if (s.rope_dim % 2 != 0)
    return fail(ErrorKind::kUnsupported, fmt::format("latent attention: rope dimension {} is odd", s.rope_dim),
                "rope dimension");
  if (s.dtype == DType::kBF16 || s.dtype == DType::kF32) return {};
  return fail(ErrorKind::kUnsupported, fmt::format("latent attention: rows are bf16 or f32, not {}", name_of(s.dtype)),
              "dtype");
}

size_t latent_row_bytes(const LatentShape& shape) {
  const size_t bytes = static_cast<size_t>(shape.row_dim()) * size_of(shape.dtype);
  return (bytes + 3) / 4 * 4;
}

void write_latents(const LatentShape& shape, const RowView& cache, std::span<const int64_t> slots, const float* rows,
                   size_t stride, ThreadPool& pool) {
  pool.split(static_cast<int>(slots.size()), [&](int begin, int end) {
    for (int r = begin; r < end; r++) {
      const int64_t slot = slots[static_cast<size_t>(r)];
      if (slot >= 0)
        write_numbers(rows + static_cast<size_t>(r) * stride, shape.row_dim(), shape.dtype, cache.slot(slot));
    }
  });
}

void attend_latents(const LatentArgs& args, std::span<const AttentionSequence> sequences, ThreadPool& pool) {
  split_rows(sequences, pool, [&] { return Row(args); });
}

}  // namespace quire::kernels
