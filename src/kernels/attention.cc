#include "kernels/attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "kernels/attention_kernels.h"
#include "kernels/attention_plan.h"
#include "kernels/math.h"

namespace quire::kernels {
namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();

// Bytes of a word: one fp32 number, or two of the others.
size_t word_bytes(DType dtype) { return dtype == DType::kI8 ? 2 : 4; }

bool aligned(const KvView& view) {
  constexpr uintptr_t kLine = 64;
  return reinterpret_cast<uintptr_t>(view.base) % kLine == 0 && view.page_stride % kLine == 0 &&
         view.head_stride % kLine == 0;
}

std::byte* k_tile(const KvView& view, int64_t page, int head) {
  return view.base + static_cast<size_t>(page) * view.page_stride + static_cast<size_t>(head) * view.head_stride;
}

// Of K, and of V.
size_t tile_bytes(const AttentionShape& shape) {
  return size_of(shape.dtype) * static_cast<size_t>(shape.page_tokens) * static_cast<size_t>(shape.head_dim);
}

}  // namespace

std::string_view kv_layout_id(DType dtype) {
  if (dtype == DType::kI8) return "quire-kv-1-i8";
  return dtype == DType::kF32 ? "quire-kv-1-f32" : "quire-kv-1-bf16";
}

size_t kv_head_bytes(DType dtype, int page_tokens, int head_dim) {
  const size_t scale = dtype == DType::kI8 ? sizeof(float) : 0;
  return 2 * static_cast<size_t>(page_tokens) * (size_of(dtype) * static_cast<size_t>(head_dim) + scale);
}

float query_factor(int step, double strength, int position) {
  const int64_t steps = (int64_t{position} + 1) / step;
  return static_cast<float>(1 + strength * kernels::ln(1 + static_cast<double>(steps)));
}

Result<void> check_attention_shape(const AttentionShape& s) {
  const auto bad = [](std::string_view name, int64_t value, std::string_view right) {
    return fail(ErrorKind::kUnsupported, fmt::format("attention {} is {}, must be {}", name, value, right),
                std::string(name));
  };
  if (s.kv_heads < 1) return bad("kv heads", s.kv_heads, "at least 1");
  if (s.q_heads < 1 || s.q_heads % s.kv_heads != 0) return bad("q heads", s.q_heads, "a multiple of the kv heads");
  if (s.head_dim < 8 || s.head_dim > kMaxHeadDim || s.head_dim % 8 != 0) {
    return bad("head dimension", s.head_dim, "a multiple of 8, at most 256");
  }
  if (s.page_tokens != 16 && s.page_tokens != 32 && s.page_tokens != 64) {
    return bad("page tokens", s.page_tokens, "16, 32 or 64");
  }
  if (s.dtype != DType::kBF16 && s.dtype != DType::kF32 && s.dtype != DType::kI8) {
    return fail(ErrorKind::kUnsupported, fmt::format("a KV cache of {}; must be bf16, f32 or i8", name_of(s.dtype)),
                "kv_cache_dtype");
  }
  if (s.window < 0) return bad("window", s.window, "at least 1, or 0 for none");
  if (s.chunk < 0) return bad("chunk", s.chunk, "at least 1, or 0 for none");
  return {};
}

void write_kv(const KernelTable& table, const AttentionShape& shape, const KvView& view, const KvRows& rows,
              ThreadPool& pool) {
  QUIRE_CHECK(aligned(view) && view.block_tokens % shape.page_tokens == 0);
  const auto write = cache_kernels(table, shape.dtype).write;
  const int64_t page_tokens = shape.page_tokens;
  const auto write_part = [&](int begin, int end) {
    for (int t = begin; t < end;) {
      const int64_t slot = rows.slots[static_cast<size_t>(t)];
      int count = 1;
      if (slot >= 0) {
        // Manager blocks hold whole pages, so slots of one page are neighbours.
        const int64_t room = page_tokens - slot % page_tokens;
        while (t + count < end && count < room && rows.slots[static_cast<size_t>(t + count)] == slot + count) count++;
        const int64_t offset = slot % view.block_tokens;
        const int64_t page = slot / view.block_tokens * view.pages_per_block + offset / page_tokens;
        for (int head = 0; head < shape.kv_heads; head++) {
          const size_t column = static_cast<size_t>(head) * static_cast<size_t>(shape.head_dim);
          std::byte* tile = k_tile(view, page, head);
          write({.k_tile = tile,
                 .v_tile = tile + tile_bytes(shape),
                 .page_tokens = shape.page_tokens,
                 .head_dim = shape.head_dim,
                 .place = static_cast<int>(offset % page_tokens),
                 .count = count,
                 .k = rows.k + static_cast<size_t>(t) * rows.k_stride + column,
                 .v = rows.v + static_cast<size_t>(t) * rows.v_stride + column,
                 .k_stride = rows.k_stride,
                 .v_stride = rows.v_stride,
                 .scales = reinterpret_cast<float*>(tile + 2 * tile_bytes(shape))});
        }
      }
      t += count;
    }
  };
  pool.split(static_cast<int>(rows.slots.size()), write_part);
}

// ---------------------------------------------------------------- attend

// A state that its worker could not merge yet.
struct KeptState {
  int row;
  int q_head;
  bool last;  // of the row
  SoftmaxState state;
};

struct AttentionWorkspace::State {
  std::vector<std::byte> q;          // [rows][q_heads] encoded
  std::vector<SoftmaxState> states;  // [rows][q_heads]
  struct Worker {
    std::vector<KeptState> kept;
    std::vector<float> kept_o;  // [kept][head_dim rounded up to 16]
    int count = 0;
    struct Row {
      QueryRow query;
      int row;
      int q_head;
    };
    std::vector<Row> rows;  // of the current block
  };
  std::vector<Worker> workers;
};

AttentionWorkspace::AttentionWorkspace() : state_(std::make_unique<State>()) {}
AttentionWorkspace::~AttentionWorkspace() = default;
AttentionWorkspace::AttentionWorkspace(AttentionWorkspace&&) noexcept = default;
AttentionWorkspace& AttentionWorkspace::operator=(AttentionWorkspace&&) noexcept = default;

// One call of attend().
class AttentionRun {
 public:
  using Worker = AttentionWorkspace::State::Worker;

  AttentionRun(const KernelTable& table, const AttentionPlan& plan, const KvView& view, const AttentionRows& rows,
               AttentionWorkspace& workspace)
      : kernels_(*table.attention),
        cache_(cache_kernels(table, plan.state().shape.dtype)),
        plan_(plan.state()),
        view_(view),
        rows_(rows),
        work_(workspace.state()),
        head_dim_(static_cast<size_t>(plan_.shape.head_dim)),
        q_heads_(static_cast<size_t>(plan_.shape.q_heads)) {}

  void operator()(ThreadPool& pool) {
    reserve();
    if (cache_.encode != nullptr) encode(pool);
    pool.run([&](int worker) { compute(worker); });
    if (std::ranges::any_of(plan_.kept_states, [](int n) { return n > 0; }))
      pool.run([&](int worker) { merge_kept(worker); });
  }

 private:
  void reserve() {
    const auto rows = static_cast<size_t>(plan_.rows);
    if (cache_.encode != nullptr) work_.q.resize(std::max(work_.q.size(), rows * q_heads_ * encoded_bytes()));
    work_.states.resize(std::max(work_.states.size(), rows * q_heads_));
    work_.workers.resize(std::max(work_.workers.size(), plan_.part_end.size()));
    for (size_t w = 0; w < plan_.part_end.size(); w++) {
      Worker& worker = work_.workers[w];
      const auto kept = static_cast<size_t>(plan_.kept_states[w]), most = static_cast<size_t>(plan_.most_kept);
      worker.kept.reserve(most);
      worker.kept_o.reserve(most * kept_width());
      worker.kept.resize(std::max(worker.kept.size(), kept));
      worker.kept_o.resize(std::max(worker.kept_o.size(), kept * kept_width()));
      worker.count = 0;
      worker.rows.resize(std::max(worker.rows.size(), static_cast<size_t>(plan_.block_rows)));
    }
  }

  // Rows of no sequence lie in between at most as padding; they are skipped.
  void encode(ThreadPool& pool) {
    pool.split(plan_.rows, [&](int begin, int end) {
      for (int row = begin; row < end; row++) {
        if (plan_.first_step[static_cast<size_t>(row)] < 0) continue;
        for (size_t h = 0; h < q_heads_; h++)
          cache_.encode(q_row(row, h), plan_.shape.head_dim, work_.q.data() + encoded_at(row, h));
      }
    });
  }

  const float* q_row(int row, size_t q_head) const {
    return rows_.q + static_cast<size_t>(row) * rows_.q_stride + q_head * head_dim_;
  }
  size_t encoded_at(int row, size_t q_head) const {
    return (static_cast<size_t>(row) * q_heads_ + q_head) * encoded_bytes();
  }
  size_t encoded_bytes() const { return (head_dim_ + kRule1Block - 1) / kRule1Block * kRule1Block * cache_.q_bytes; }
  float* out_row(int row, int q_head) const {
    return rows_.out + static_cast<size_t>(row) * rows_.out_stride + static_cast<size_t>(q_head) * head_dim_;
  }
  SoftmaxState& state(int row, int q_head) const {
    return work_.states[static_cast<size_t>(row) * q_heads_ + static_cast<size_t>(q_head)];
  }
  size_t kept_width() const { return (head_dim_ + 15) / 16 * 16; }
  const float* sink(int q_head) const { return rows_.sinks == nullptr ? nullptr : rows_.sinks + q_head; }

  void compute(int w) {
    const auto steps = static_cast<int64_t>(plan_.steps.size());
    const int64_t begin = plan_.part_begin(w), end = plan_.part_end[static_cast<size_t>(w)];
    KeyRuns next;
    for (int64_t item = begin; item < end; item++) {
      const AttentionStep& step = plan_.steps[static_cast<size_t>(item % steps)];
      if (step.cold) find_next(item + 1, end, next);
      compute_item(w, item, step.cold ? &next : nullptr);
    }
  }

  // The runs of the next item that will wait for memory.
  void find_next(int64_t item, int64_t end, KeyRuns& next) const {
    const auto steps = static_cast<int64_t>(plan_.steps.size());
    next.count = 0;
    next.k_stride = 0;
    constexpr int kLook = 16;
    for (int64_t i = item; i < std::min(end, item + kLook); i++) {
      const AttentionStep& step = plan_.steps[static_cast<size_t>(i % steps)];
      if (!step.cold) continue;
      const AttentionBlock& block = plan_.blocks[static_cast<size_t>(step.block)];
      const KeyRange seen = plan_.visible(block);
      const int64_t start = static_cast<int64_t>(step.chunk) * kSoftmaxChunk;
      const int lo = static_cast<int>(std::max<int64_t>(seen.lo - start, 0));
      const int hi = static_cast<int>(std::min<int64_t>(seen.hi - start, kSoftmaxChunk));
      find_runs(block, static_cast<int>(i / steps), step.chunk, lo, hi, next);
      return;
    }
  }

  // Runs that hold keys [lo, hi) of the chunk. All sequences of a block have the same pages there.
  void find_runs(const AttentionBlock& block, int head, int chunk, int lo, int hi, KeyRuns& runs) const {
    const int sequence = plan_.spans[static_cast<size_t>(block.first_span)].sequence;
    const int page_tokens = plan_.shape.page_tokens;
    const size_t k_bytes = tile_bytes(plan_.shape);
    const size_t word = word_bytes(plan_.shape.dtype);
    runs.count = 0;
    runs.k_stride = static_cast<size_t>(page_tokens) * word;
    for (int i = lo / kKeyRun; i <= (hi - 1) / kKeyRun; i++) {
      const int64_t position = static_cast<int64_t>(chunk) * kSoftmaxChunk + i * kKeyRun;
      const int place = static_cast<int>(position % page_tokens);
      const std::byte* tile = k_tile(view_, plan_.page(sequence, position), head);
      const auto* scales = reinterpret_cast<const float*>(tile + 2 * k_bytes) + place;
      runs.run[runs.count++] = {
          .index = i,
          .v_place = place,
          .k = tile + static_cast<size_t>(place) * word,
          .v = tile + k_bytes,
          .v_block_stride = static_cast<size_t>(page_tokens) * kValueBlock * size_of(plan_.shape.dtype),
          .k_scales = scales,
          .v_scales = scales + page_tokens};
    }
  }

  // The rows of a block at a chunk, in order; all q heads of a token are neighbours.
  int list_rows(Worker& worker, const AttentionBlock& block, int head, int chunk) const {
    int n = 0;
    const int64_t start = static_cast<int64_t>(chunk) * kSoftmaxChunk;
    for (int i = block.first_span; i < block.first_span + block.spans; i++) {
      const AttentionSpan& span = plan_.spans[static_cast<size_t>(i)];
      const AttentionSequence& sequence = plan_.sequences[static_cast<size_t>(span.sequence)];
      for (int t = span.first; t < span.first + span.count; t++) {
        const KeyRange seen = plan_.visible(sequence.first_position + t);
        const int lo = static_cast<int>(std::clamp<int64_t>(seen.lo - start, 0, kSoftmaxChunk));
        const int hi = static_cast<int>(std::clamp<int64_t>(seen.hi - start, 0, kSoftmaxChunk));
        for (int g = 0; g < plan_.group(); g++) {
          const int row = sequence.first_row + t, q_head = head * plan_.group() + g;
          const void* q = cache_.encode == nullptr ? static_cast<const void*>(q_row(row, static_cast<size_t>(q_head)))
                                                   : work_.q.data() + encoded_at(row, static_cast<size_t>(q_head));
          worker.rows[static_cast<size_t>(n++)] = {{q, lo, hi}, row, q_head};
        }
      }
    }
    return n;
  }

  void compute_item(int w, int64_t item, const KeyRuns* next) {
    const auto steps = static_cast<int64_t>(plan_.steps.size());
    const int head = static_cast<int>(item / steps), step_index = static_cast<int>(item % steps);
    const AttentionStep& step = plan_.steps[static_cast<size_t>(step_index)];
    const AttentionBlock& block = plan_.blocks[static_cast<size_t>(step.block)];
    Worker& worker = work_.workers[static_cast<size_t>(w)];
    const int rows = list_rows(worker, block, head, step.chunk);
    const int tiles = (rows + cache_.tile_rows - 1) / cache_.tile_rows;
    for (int t = 0; t < tiles; t++) {
      const int begin = rows * t / tiles, end = rows * (t + 1) / tiles;
      compute_tile(w, {worker.rows.data() + begin, static_cast<size_t>(end - begin)}, head, step_index,
                   t == 0 ? next : nullptr);
    }
  }

  void compute_tile(int w, std::span<const Worker::Row> rows, int head, int step_index, const KeyRuns* next) {
    const AttentionStep& step = plan_.steps[static_cast<size_t>(step_index)];
    alignas(64) float o[kAttentionTileRows][kMaxHeadDim];
    SoftmaxState states[kAttentionTileRows];
    KeyRuns runs;
    ChunkArgs args = {.rows = static_cast<int>(rows.size()),
                      .row = {},
                      .lo = kSoftmaxChunk,
                      .hi = 0,
                      .runs = &runs,
                      .next = next,
                      .head_dim = plan_.shape.head_dim,
                      .scale = rows_.scale,
                      .soft_cap = rows_.soft_cap,
                      .o = o[0],
                      .state = states};
    for (size_t r = 0; r < rows.size(); r++) {
      const QueryRow& q = args.row[r] = rows[r].query;
      if (q.lo >= q.hi) continue;
      args.lo = std::min(args.lo, q.lo);
      args.hi = std::max(args.hi, q.hi);
    }
    if (args.lo < args.hi) {
      find_runs(plan_.blocks[static_cast<size_t>(step.block)], head, step.chunk, args.lo, args.hi, runs);
      cache_.chunk(args);
    } else {
      for (SoftmaxState& s : states) s = {kNothing, 0};
    }
    for (size_t r = 0; r < rows.size(); r++) take(w, rows[r], head, step_index, o[r], states[r]);
  }

  // Merges a row's new state, or keeps it until all workers are done.
  void take(int w, const Worker::Row& at, int head, int step, const float* o, const SoftmaxState& more) {
    const bool last = plan_.last_step[static_cast<size_t>(at.row)] == step;
    if (!plan_.owns(plan_.part_begin(w), head, at.row)) {
      Worker& worker = work_.workers[static_cast<size_t>(w)];
      const auto i = static_cast<size_t>(worker.count++);
      worker.kept[i] = {at.row, at.q_head, last, more};
      std::copy_n(o, head_dim_, worker.kept_o.data() + i * kept_width());
      return;
    }
    SoftmaxState& own = state(at.row, at.q_head);
    if (plan_.first_step[static_cast<size_t>(at.row)] == step) own = {kNothing, 0};
    merge(at.row, at.q_head, o, more, last);
  }

  void merge(int row, int q_head, const float* o, const SoftmaxState& more, bool last) {
    SoftmaxState& own = state(row, q_head);
    kernels_.merge(out_row(row, q_head), &own, o, &more, plan_.shape.head_dim);
    if (last) kernels_.finish(out_row(row, q_head), &own, sink(q_head), plan_.shape.head_dim);
  }

  // Workers hold ascending parts of the list, so this order is ascending for every row. Each takes some rows.
  void merge_kept(int w) {
    const auto workers = static_cast<size_t>(plan_.workers());
    for (size_t from = 0; from < workers; from++) {
      const Worker& worker = work_.workers[from];
      for (size_t i = 0; i < static_cast<size_t>(worker.count); i++) {
        const KeptState& k = worker.kept[i];
        if (static_cast<size_t>(k.row + k.q_head) % workers != static_cast<size_t>(w)) continue;
        merge(k.row, k.q_head, worker.kept_o.data() + i * kept_width(), k.state, k.last);
      }
    }
  }

  const AttentionKernels& kernels_;
  const CacheKernels& cache_;
  const AttentionPlan::State& plan_;
  const KvView& view_;
  const AttentionRows& rows_;
  AttentionWorkspace::State& work_;
  size_t head_dim_;
  size_t q_heads_;
};

void attend(const KernelTable& table, const AttentionPlan& plan, const KvView& view, const AttentionRows& rows,
            AttentionWorkspace& workspace, ThreadPool& pool) {
  QUIRE_CHECK(aligned(view) && pool.size() == plan.state().workers());
  AttentionRun(table, plan, view, rows, workspace)(pool);
}

}  // namespace quire::kernels
