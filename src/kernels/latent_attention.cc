#include "kernels/latent_attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "kernels/latent_kernels.h"
#include "kernels/shape_check.h"

namespace quire::kernels {
namespace {

constexpr int kRowsAtOnce = 32;      // of a step, whose queries and sums are in memory together
constexpr int kChunksOfAWorker = 8;  // that wait to be merged
constexpr int kMostKeyBlocks = kSoftmaxChunk / kRule1Block;
constexpr int kMostDim = 1 << 10, kMostRank = 1 << 12;
constexpr int kMostTermBlocks = (kMostRank + kMostDim) / kRule1Block;
constexpr float kNothing = -std::numeric_limits<float>::infinity();

size_t product_of(int a, int b) { return static_cast<size_t>(a) * static_cast<size_t>(b); }

// All terms of a sum over n.
class AllTerms {
 public:
  AllTerms(int n, bool one_chain) {
    for (int first = 0; first < n; first += kRule1Block) {
      const int count = std::min(kRule1Block, n - first);
      blocks_[count_++] =
          one_chain ? TermBlock{first, count, 0, 0, 1} : TermBlock{first, (count + 1) / 2, first + 1, count / 2, 2};
    }
  }
  TermBlocks view() const { return {blocks_, count_}; }

 private:
  TermBlock blocks_[kMostTermBlocks];
  int count_ = 0;
};

constexpr int LatentShape::* kDims[] = {&LatentShape::heads, &LatentShape::nope_dim, &LatentShape::rope_dim,
                                        &LatentShape::value_dim, &LatentShape::rank};

// Floats of the parts of a workspace, in whole lines. No dimension of the shape makes any smaller.
struct Room {
  size_t queries = 0;  // of a row: [heads / 16][row_dim][16]
  size_t sums = 0;     // of a row, and of an item: [heads][rank]
  size_t keys = 0;     // of a worker: [kLatentKeyRows][row_dim in whole blocks]
  size_t inputs = 0;   // of a worker's row: a product's x ...
  size_t outputs = 0;  // ... and its sums

  explicit Room(const LatentShape& s) {
    const int rank = rounded_to_lines(s.rank);
    queries = product_of(rounded_to_lines(s.heads), s.row_dim());
    sums = product_of(s.heads, rank);
    keys = product_of(kLatentKeyRows, (s.row_dim() + kRule1Block - 1) / kRule1Block * kRule1Block);
    inputs = static_cast<size_t>(std::max(rounded_to_lines(s.nope_dim), rank));
    outputs = static_cast<size_t>(std::max(rank, rounded_to_lines(s.value_dim)));
  }

  size_t of_worker(int rows) const {
    return keys + size_t{kSoftmaxChunk} * kHeadLanes + static_cast<size_t>(rows) * (inputs + outputs);
  }
};

}  // namespace

// Some keys, all of one chunk, and a row that reads them.
struct LatentItem {
  const AttentionSequence* sequence;
  int row;                  // among those at once
  const int32_t* selected;  // the keys' positions; null: from `first` on
  int64_t first;
  int count;

  int64_t position(int i) const { return selected == nullptr ? first + i : selected[i]; }
};

struct LatentWorkspace::State {
  LatentShape most;  // the greatest of each dimension
  Room room{most};
  int rows = 0, workers = 0;
  Buffer memory;  // queries and sums of the rows, sums of the items, then of each worker
  std::vector<SoftmaxState> states, item_states;
  std::vector<LatentItem> items;

  size_t most_items() const { return product_of(workers, kChunksOfAWorker); }
  bool holds(const LatentShape& shape, int more_rows, int more_workers) const {
    return rows >= more_rows && workers >= more_workers &&
           std::ranges::all_of(kDims, [&](auto dim) { return most.*dim >= shape.*dim; });
  }
  float* queries() { return reinterpret_cast<float*>(memory.data()); }
  float* sums() { return queries() + static_cast<size_t>(rows) * room.queries; }
  float* item_sums() { return sums() + static_cast<size_t>(rows) * room.sums; }
  float* keys(int worker) {
    return item_sums() + most_items() * room.sums + static_cast<size_t>(worker) * room.of_worker(rows);
  }
  float* weights(int worker) { return keys(worker) + room.keys; }
  float* inputs(int worker) { return weights(worker) + size_t{kSoftmaxChunk} * kHeadLanes; }
  float* outputs(int worker) { return inputs(worker) + static_cast<size_t>(rows) * room.inputs; }
  size_t size() const {
    return static_cast<size_t>(rows) * (room.queries + room.sums) + most_items() * room.sums +
           static_cast<size_t>(workers) * room.of_worker(rows);
  }
};

Result<void> LatentWorkspace::reserve(const LatentShape& shape, int rows, int workers, Allocator& allocator) {
  rows = std::min(rows, kRowsAtOnce);
  if (state_->holds(shape, rows, workers)) return {};
  State more;
  for (const auto dim : kDims) more.most.*dim = std::max(state_->most.*dim, shape.*dim);
  more.room = Room(more.most);
  more.rows = std::max(state_->rows, rows);
  more.workers = std::max(state_->workers, workers);
  auto memory = allocator.allocate(more.size() * sizeof(float));
  if (!memory) return std::unexpected(memory.error());
  more.memory = std::move(*memory);
  more.states.resize(product_of(more.rows, rounded_to_lines(more.most.heads)));
  more.item_states.resize(more.most_items() * static_cast<size_t>(rounded_to_lines(more.most.heads)));
  more.items.reserve(more.most_items());
  *state_ = std::move(more);
  return {};
}

LatentWorkspace::LatentWorkspace() : state_(std::make_unique<State>()) {}
LatentWorkspace::~LatentWorkspace() = default;
LatentWorkspace::LatentWorkspace(LatentWorkspace&&) noexcept = default;
LatentWorkspace& LatentWorkspace::operator=(LatentWorkspace&&) noexcept = default;

namespace {

// One layer of a step: some rows at once, and of their chunks as many at once as the workspace has room for.
class LatentRun {
 public:
  LatentRun(const KernelTable& table, const LatentArgs& args, std::span<const AttentionSequence> sequences,
            LatentWorkspace::State& work, ThreadPool& pool)
      : args_(args),
        shape_(args.shape),
        chunk_(shape_.dtype == DType::kF32 ? table.latent->f32 : table.latent->bf16),
        maps_(maps(*table.latent, shape_.dtype, args.expansion->dtype())),
        merge_(table.latent->merge),
        sequences_(sequences),
        work_(work),
        pool_(pool),
        rank_(rounded_to_lines(shape_.rank)),
        heads_(rounded_to_lines(shape_.heads)),
        nopes_(shape_.nope_dim, shape_.dtype == DType::kF32),
        dims_(shape_.row_dim(), shape_.dtype == DType::kF32),
        ranks_(shape_.rank, shape_.dtype == DType::kF32) {
    QUIRE_CHECK(work_.holds(shape_, 1, pool_.size()));
    QUIRE_CHECK(shape_.dtype == DType::kBF16 || args_.expansion->dtype() == DType::kF32);
  }

  void operator()() {
    const int end = sequences_.back().first_row + sequences_.back().num_rows;
    for (first_ = sequences_.front().first_row; first_ < end; first_ += rows_) {
      rows_ = std::min(kRowsAtOnce, end - first_);
      QUIRE_CHECK(rows_ <= work_.rows);
      std::fill_n(work_.states.begin(), product_of(rows_, shape_.heads), SoftmaxState{kNothing, 0});
      pool_.split(rank_ / kLineFloats, [&](int worker, int begin, int last) { absorb(worker, begin, last); });
      row_ = 0;
      at_ = 0;
      for (bool more = true; more;) {
        more = list_items();
        pool_.split(static_cast<int>(work_.items.size()), [&](int worker, int begin, int last) {
          compute(worker, static_cast<size_t>(begin), static_cast<size_t>(last));
        });
        pool_.split(shape_.heads, [&](int worker, int begin, int last) {
          for (int h = begin; h < last; h++) {
            merge(h);
            if (!more) expand(worker, h);
          }
        });
      }
    }
  }

 private:
  size_t query_size() const { return product_of(heads_, shape_.row_dim()); }
  size_t sums_size() const { return product_of(shape_.heads, rank_); }
  static const LatentMapKernels& maps(const LatentKernels& kernels, DType rows, DType expansion) {
    if (rows == DType::kF32) return kernels.f32_by_f32;
    return expansion == DType::kF32 ? kernels.bf16_by_f32 : kernels.bf16_by_bf16;
  }
  // From a number on.
  const void* expansion(size_t number) const {
    return args_.expansion->data() + number * size_of(args_.expansion->dtype());
  }

  void absorb(int worker, int begin, int end) {
    maps_.absorb({.rows = rows_,
                  .heads = shape_.heads,
                  .nope_dim = shape_.nope_dim,
                  .rope_dim = shape_.rope_dim,
                  .rank = shape_.rank,
                  .begin = begin,
                  .end = end,
                  .q = args_.q + static_cast<size_t>(first_) * args_.q_stride,
                  .q_stride = args_.q_stride,
                  .expansion = expansion(0),
                  .expansion_stride = packed_head_size(shape_),
                  .blocks = nopes_.view(),
                  .x = work_.inputs(worker),
                  .sums = work_.outputs(worker),
                  .queries = work_.queries()});
  }

  // The next items, rows and chunks ascending; whether others follow.
  bool list_items() {
    work_.items.clear();
    for (; row_ < rows_; row_++, at_ = 0) {
      const int row = first_ + row_;
      const AttentionSequence& sequence =
          *(std::ranges::upper_bound(sequences_, row, {}, &AttentionSequence::first_row) - 1);
      const bool all = args_.selected == nullptr;
      const auto keys = all ? std::span<const int32_t>() : args_.selected->row(row);
      const int64_t count = all ? sequence.first_position + row - sequence.first_row + 1 : std::ssize(keys);
      while (at_ < count) {
        if (work_.items.size() == work_.most_items()) return true;
        LatentItem item = {&sequence, row_, all ? nullptr : keys.data() + at_, at_, 0};
        const int64_t chunk = item.position(0) / kSoftmaxChunk;
        const int64_t end = std::min<int64_t>(count, at_ + kSoftmaxChunk);
        for (; at_ < end && item.position(item.count) / kSoftmaxChunk == chunk; at_++) item.count++;
        work_.items.push_back(item);
      }
    }
    return false;
  }

  // Where an item's keys lie, in the order of rule 1's chains.
  struct Keys {
    const std::byte* rows[kSoftmaxChunk];
    int places[kSoftmaxChunk];
    TermBlock blocks[kMostKeyBlocks];
    int count = 0;
    int block_count = 0;
  };
  void add_key(const LatentItem& item, int64_t position, Keys& keys) const {
    keys.rows[keys.count] = sequence_row(args_.cache, item.sequence->pages.data(), position);
    keys.places[keys.count++] = static_cast<int>(position % kSoftmaxChunk);
  }
  void find_keys(const LatentItem& item, Keys& keys) const {
    const bool one_chain = shape_.dtype == DType::kF32;
    keys.count = keys.block_count = 0;
    for (int begin = 0, end = 0; begin < item.count; begin = end) {
      const int64_t block = item.position(begin) / kRule1Block;
      while (end < item.count && item.position(end) / kRule1Block == block) end++;
      const int first = keys.count;
      for (int i = begin; i < end; i++)
        if (one_chain || item.position(i) % 2 == 0) add_key(item, item.position(i), keys);
      const int second = keys.count;
      for (int i = begin; i < end && !one_chain; i++)
        if (item.position(i) % 2 != 0) add_key(item, item.position(i), keys);
      keys.blocks[keys.block_count++] = {first, second - first, second, keys.count - second, 1};
    }
  }

  void compute(int worker, size_t begin, size_t end) {
    Keys keys[2];
    find_keys(work_.items[begin], keys[begin % 2]);
    for (size_t i = begin; i < end; i++) {
      Keys& next = keys[(i + 1) % 2];
      if (i + 1 < end) find_keys(work_.items[i + 1], next);
      compute(worker, i, keys[i % 2], {next.rows, i + 1 < end ? static_cast<size_t>(next.count) : 0});
    }
  }

  void compute(int worker, size_t index, const Keys& keys, std::span<const std::byte* const> next) {
    const LatentItem& item = work_.items[index];
    chunk_({.heads = shape_.heads,
            .rank = shape_.rank,
            .row_dim = shape_.row_dim(),
            .count = keys.count,
            .rows = keys.rows,
            .places = keys.places,
            .key_blocks = {keys.blocks, keys.block_count},
            .dim_blocks = dims_.view(),
            .queries = work_.queries() + static_cast<size_t>(item.row) * query_size(),
            .scale = args_.scale,
            .keys = work_.keys(worker),
            .weights = work_.weights(worker),
            .state = work_.item_states.data() + index * static_cast<size_t>(heads_),
            .out = work_.item_sums() + index * sums_size(),
            .next = next.data(),
            .next_count = static_cast<int>(next.size())});
  }

  size_t place(int row, int head) const {
    return static_cast<size_t>(row) * static_cast<size_t>(shape_.heads) + static_cast<size_t>(head);
  }

  void merge(int head) {
    for (size_t i = 0; i < work_.items.size(); i++) {
      const size_t to = place(work_.items[i].row, head);
      merge_(work_.states[to], work_.sums() + to * static_cast<size_t>(rank_),
             work_.item_states[i * static_cast<size_t>(heads_) + static_cast<size_t>(head)],
             work_.item_sums() + i * sums_size() + product_of(head, rank_), rank_);
    }
  }

  void expand(int worker, int head) {
    maps_.expand(
        {.rows = rows_,
         .rank = shape_.rank,
         .value_dim = shape_.value_dim,
         .blocks = ranks_.view(),
         .state = work_.states.data() + head,
         .state_stride = static_cast<size_t>(shape_.heads),
         .sums = work_.sums() + product_of(head, rank_),
         .sums_stride = sums_size(),
         .expansion =
             expansion(static_cast<size_t>(head) * packed_head_size(shape_) + product_of(shape_.nope_dim, rank_)),
         .x = work_.inputs(worker),
         .padded = work_.outputs(worker),
         .out = args_.out + static_cast<size_t>(first_) * args_.out_stride + product_of(head, shape_.value_dim),
         .out_stride = args_.out_stride});
  }

  const LatentArgs& args_;
  const LatentShape& shape_;
  void (*chunk_)(const LatentChunkArgs&);
  const LatentMapKernels& maps_;
  void (*merge_)(SoftmaxState&, float*, const SoftmaxState&, const float*, int);
  std::span<const AttentionSequence> sequences_;
  LatentWorkspace::State& work_;
  ThreadPool& pool_;
  int rank_, heads_;  // rounded up to sixteen
  AllTerms nopes_, dims_, ranks_;
  int first_ = 0, rows_ = 0;  // of the step: those at once
  int row_ = 0;               // of these: where the next item begins
  int64_t at_ = 0;            // ... and which of its keys
};

}  // namespace

Result<void> check_latent_shape(const LatentShape& s) {
  if (auto ok = check_ranges("latent attention", {{"heads", s.heads, 1, 1 << 10},
                                                  {"query dimension without rope", s.nope_dim, 1, kMostDim},
                                                  {"rope dimension", s.rope_dim, 0, kMostDim},
                                                  {"value dimension", s.value_dim, 1, kMostDim},
                                                  {"latent rank", s.rank, 1, kMostRank}});
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

size_t packed_head_size(const LatentShape& s) {
  return product_of(s.nope_dim, rounded_to_lines(s.rank)) + product_of(s.rank, rounded_to_lines(s.value_dim));
}

Expansion::Expansion(const LatentShape& s, std::span<const float> rows, DType dtype) : dtype_(dtype) {
  QUIRE_CHECK(rows.size() == product_of(s.expansion_rows(), s.rank));
  const size_t bytes = static_cast<size_t>(s.heads) * packed_head_size(s) * size_of(dtype);
  lines_.resize((bytes + sizeof(Line) - 1) / sizeof(Line));
  const auto rank = static_cast<size_t>(s.rank), line = static_cast<size_t>(rounded_to_lines(s.rank)),
             value_line = static_cast<size_t>(rounded_to_lines(s.value_dim));
  const auto put = [&](size_t number, float x) { write_numbers(&x, 1, dtype, data() + number * size_of(dtype)); };
  const float* from = rows.data();
  for (int h = 0; h < s.heads; h++) {
    size_t to = static_cast<size_t>(h) * packed_head_size(s);
    for (int i = 0; i < s.nope_dim; i++, from += rank, to += line)
      write_numbers(from, s.rank, dtype, data() + to * size_of(dtype));
    for (int v = 0; v < s.value_dim; v++, from += rank)
      for (size_t r = 0; r < rank; r++) put(to + r * value_line + static_cast<size_t>(v), from[r]);
  }
}

void attend_latents(const KernelTable& table, const LatentArgs& args, std::span<const AttentionSequence> sequences,
                    LatentWorkspace& workspace, ThreadPool& pool) {
  if (!sequences.empty()) LatentRun(table, args, sequences, workspace.state(), pool)();
}

}  // namespace quire::kernels
