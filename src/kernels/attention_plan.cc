#include "kernels/attention_plan.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "kernels/attention_kernels.h"

namespace quire::kernels {
namespace {

// Rows of a block: so many that a chunk of K and V, once in the second-level cache, serves several tiles.
constexpr int kBlockRows = 3 * kAttentionTileRows;
// Sequences with more rows than this per kv head use a chunk well enough alone.
constexpr int kMaxSharedRows = kBlockRows / 2;
// What a run of keys costs: bringing it from memory, or from a cache where a neighbouring step has read it, and the
// arithmetic of a row.
constexpr int kColdRun = 32;
constexpr int kWarmRun = 8;
constexpr int kRow = 4;
constexpr int kCheapRow = 1;

using State = AttentionPlan::State;

class Builder {
 public:
  // Blocks of `least_tile_rows` rows and more compute cheaply; 0: none.
  Builder(State& state, int least_tile_rows) : s_(state), least_tile_rows_(least_tile_rows) {}

  void steps() {
    s_.order.clear();
    for (int i = 0; i < static_cast<int>(s_.sequences.size()); i++) {
      const AttentionSequence& sequence = s_.sequences[static_cast<size_t>(i)];
      if (sequence.num_rows == 0) continue;
      if (sequence.num_rows * s_.group() <= kMaxSharedRows) {
        s_.order.push_back(i);
      } else {
        walk_alone(i, 0);
      }
    }
    sort_by_pages();
    if (!s_.order.empty()) walk_run(0, s_.order.size(), 0);
  }

 private:
  // Whole chunks that no row of the sequence sees the end of.
  int64_t whole_chunks(int sequence) const {
    return (s_.sequences[static_cast<size_t>(sequence)].first_position + 1) / kSoftmaxChunk;
  }

  std::span<const int32_t> whole_pages(int sequence) const {
    const auto pages =
        static_cast<size_t>(whole_chunks(sequence)) * static_cast<size_t>(kSoftmaxChunk / s_.shape.page_tokens);
    return s_.sequences[static_cast<size_t>(sequence)].pages.first(pages);
  }

  // Brings sequences with equal pages together; alike[i] whole chunks are the same for order[i - 1] and
  // order[i].
  void sort_by_pages() {
    std::ranges::sort(s_.order, [&](int a, int b) {
      const auto x = whole_pages(a), y = whole_pages(b);
      const auto order = std::lexicographical_compare_three_way(x.begin(), x.end(), y.begin(), y.end());
      return order != 0 ? order < 0 : a < b;
    });
    s_.alike.assign(s_.order.size(), 0);
    for (size_t i = 1; i < s_.order.size(); i++) {
      const auto a = whole_pages(s_.order[i - 1]), b = whole_pages(s_.order[i]);
      const auto pages = std::ranges::mismatch(a, b).in1 - a.begin();
      s_.alike[i] = pages / (kSoftmaxChunk / s_.shape.page_tokens);
    }
  }

  // order[begin, end) share the chunks before `chunk`, which have their steps. A walk through the tree of prefixes.
  void walk_run(size_t begin, size_t end, int64_t chunk) {
    if (end - begin == 1) return walk_alone(s_.order[begin], chunk);
    const int64_t shared = *std::min_element(s_.alike.begin() + static_cast<ptrdiff_t>(begin) + 1,
                                             s_.alike.begin() + static_cast<ptrdiff_t>(end));
    if (shared > chunk) walk_together(begin, end, chunk, shared);
    for (size_t first = begin, i = begin + 1; i <= end; i++) {
      if (i < end && s_.alike[i] > shared) continue;
      walk_run(first, i, std::max(shared, chunk));
      first = i;
    }
  }

  void walk_together(size_t begin, size_t end, int64_t from, int64_t to) {
    const int first_block = static_cast<int>(s_.blocks.size());
    for (size_t i = begin; i < end; i++) {
      const int tokens = s_.sequences[static_cast<size_t>(s_.order[i])].num_rows;
      const bool full = i > begin && (s_.blocks.back().tokens + tokens) * s_.group() > kBlockRows;
      if (i == begin || full) s_.blocks.push_back({static_cast<int>(s_.spans.size()), 0, 0});
      s_.spans.push_back({s_.order[i], 0, tokens});
      s_.blocks.back().spans++;
      s_.blocks.back().tokens += tokens;
    }
    for (int64_t chunk = from; chunk < to; chunk++)
      for (int b = first_block; b < static_cast<int>(s_.blocks.size()); b++) add_step(b, chunk, b == first_block);
  }

  void walk_alone(int sequence, int64_t from_chunk) {
    const AttentionSequence& q = s_.sequences[static_cast<size_t>(sequence)];
    const int step = std::max(1, kBlockRows / s_.group());
    for (int first = 0; first < q.num_rows; first += step) {
      const int count = std::min(step, q.num_rows - first);
      const int block = static_cast<int>(s_.blocks.size());
      s_.blocks.push_back({static_cast<int>(s_.spans.size()), 1, count});
      s_.spans.push_back({sequence, first, count});
      const KeyRange seen = s_.visible(s_.blocks.back());
      for (int64_t chunk = std::max(from_chunk, seen.lo / kSoftmaxChunk); chunk * kSoftmaxChunk < seen.hi; chunk++)
        add_step(block, chunk, first == 0);
    }
  }

  void add_step(int block, int64_t chunk, bool cold) {
    const AttentionBlock& b = s_.blocks[static_cast<size_t>(block)];
    const KeyRange seen = s_.visible(b);
    const int64_t lo = std::max(seen.lo, chunk * kSoftmaxChunk), hi = std::min(seen.hi, (chunk + 1) * kSoftmaxChunk);
    if (lo >= hi) return;
    const int index = static_cast<int>(s_.steps.size());
    s_.steps.push_back({block, static_cast<int>(chunk), cold});
    const int64_t runs = (hi - 1) / kKeyRun - lo / kKeyRun + 1;
    const int rows = b.tokens * s_.group();
    const bool cheap = least_tile_rows_ > 0 && rows >= least_tile_rows_;
    const int64_t run_cost = rows * (cheap ? kCheapRow : kRow) + (cold ? kColdRun : kWarmRun);
    s_.cost.push_back((s_.cost.empty() ? 0 : s_.cost.back()) + runs * run_cost);
    s_.block_rows = std::max(s_.block_rows, rows);
    for (int i = b.first_span; i < b.first_span + b.spans; i++) {
      const AttentionSpan& span = s_.spans[static_cast<size_t>(i)];
      const int row = s_.sequences[static_cast<size_t>(span.sequence)].first_row + span.first;
      for (int r = row; r < row + span.count; r++) {
        int& first = s_.first_step[static_cast<size_t>(r)];
        if (first < 0) first = index;
        s_.last_step[static_cast<size_t>(r)] = index;
      }
    }
  }

  State& s_;
  int least_tile_rows_;
};

// Parts of about equal cost. A cut lies between two items, anywhere.
void cut(State& s, int workers) {
  s.part_end.assign(static_cast<size_t>(workers), s.item_count());
  const auto steps = static_cast<int64_t>(s.steps.size());
  if (steps == 0) return;
  const int64_t total = s.cost.back() * s.shape.kv_heads;
  for (int w = 0; w + 1 < workers; w++) {
    const int64_t target = total * (w + 1) / workers;
    const int64_t head = target / s.cost.back();
    const auto step = std::ranges::lower_bound(s.cost, target % s.cost.back()) - s.cost.begin();
    s.part_end[static_cast<size_t>(w)] = std::min(s.item_count(), head * steps + step);
  }
}

void count_kept_states(State& s) {
  s.kept_states.assign(s.part_end.size(), 0);
  const auto steps = static_cast<int64_t>(s.steps.size());
  for (int w = 1; w < s.workers(); w++) {
    const int64_t begin = s.part_begin(w);
    for (int64_t item = begin; item < s.part_end[static_cast<size_t>(w)]; item++) {
      const int head = static_cast<int>(item / steps);
      // Rows of later heads start here, so nothing more is kept apart.
      if (static_cast<int64_t>(head) * steps >= begin) break;
      const AttentionBlock& b = s.blocks[static_cast<size_t>(s.steps[static_cast<size_t>(item % steps)].block)];
      for (int i = b.first_span; i < b.first_span + b.spans; i++) {
        const AttentionSpan& span = s.spans[static_cast<size_t>(i)];
        const int row = s.sequences[static_cast<size_t>(span.sequence)].first_row + span.first;
        for (int r = row; r < row + span.count; r++)
          if (!s.owns(begin, head, r)) s.kept_states[static_cast<size_t>(w)] += s.group();
      }
    }
  }
}

void check_sequences(const State& s) {
  for (const AttentionSequence& q : s.sequences) {
    QUIRE_CHECK(q.num_rows >= 0 && q.first_row >= 0 && q.first_position >= 0);
    const int64_t end = q.first_position + q.num_rows;
    QUIRE_CHECK(end <= std::numeric_limits<int>::max());
    QUIRE_CHECK(q.num_rows == 0 || (end - 1) / s.shape.page_tokens < static_cast<int64_t>(q.pages.size()));
  }
}

}  // namespace

KeyRange AttentionPlan::State::visible(int64_t position) const {
  int64_t lo = 0;
  if (shape.window > 0) lo = std::max(lo, position + 1 - shape.window);
  if (shape.chunk > 0) lo = std::max(lo, position / shape.chunk * shape.chunk);
  return {lo, position + 1};
}

KeyRange AttentionPlan::State::visible(const AttentionBlock& block) const {
  KeyRange all = {std::numeric_limits<int64_t>::max(), 0};
  for (int i = block.first_span; i < block.first_span + block.spans; i++) {
    const AttentionSpan& span = spans[static_cast<size_t>(i)];
    const int64_t position = sequences[static_cast<size_t>(span.sequence)].first_position + span.first;
    all.lo = std::min(all.lo, visible(position).lo);
    all.hi = std::max(all.hi, position + span.count);
  }
  return all;
}

AttentionPlan::AttentionPlan() : state_(std::make_unique<State>()) {}
AttentionPlan::~AttentionPlan() = default;
AttentionPlan::AttentionPlan(AttentionPlan&&) noexcept = default;
AttentionPlan& AttentionPlan::operator=(AttentionPlan&&) noexcept = default;

void AttentionPlan::reserve(const AttentionShape& shape, int64_t sequences, int64_t longest, int64_t pool_tokens) {
  State& s = *state_;
  for (const int reach : {shape.window, shape.chunk})
    if (reach > 0) longest = std::min<int64_t>(longest, reach + kSoftmaxChunk);
  const int64_t group = shape.q_heads / shape.kv_heads;
  const int64_t met = sequences * (longest / kSoftmaxChunk + 1);  // chunks by all sequences
  const int64_t chunks = pool_tokens / kSoftmaxChunk + sequences;
  const int64_t together = std::max<int64_t>(1, kBlockRows / group);  // sequences in a block
  const int64_t blocks = (sequences + together - 1) / together;       // that walk a shared chunk
  s.steps.reserve(static_cast<size_t>(std::min(met, chunks * blocks)));
  s.cost.reserve(s.steps.capacity());
  s.most_kept = std::min(met, chunks) * group;
}

void AttentionPlan::build(const KernelTable& table, const AttentionShape& shape,
                          std::span<const AttentionSequence> sequences, int workers) {
  QUIRE_CHECK(workers >= 1 && check_attention_shape(shape));
  State& s = *state_;
  s.shape = shape;
  s.sequences.assign(sequences.begin(), sequences.end());
  check_sequences(s);
  s.spans.clear();
  s.blocks.clear();
  s.steps.clear();
  s.cost.clear();
  s.rows = s.block_rows = 0;
  for (const AttentionSequence& q : sequences) s.rows = std::max(s.rows, q.first_row + q.num_rows);
  s.first_step.assign(static_cast<size_t>(s.rows), -1);
  s.last_step.assign(static_cast<size_t>(s.rows), -1);
  Builder(s, cache_kernels(table, shape.dtype).least_tile_rows).steps();
  cut(s, workers);
  count_kept_states(s);
}

}  // namespace quire::kernels
