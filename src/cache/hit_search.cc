#include "cache/hit_search.h"

#include <algorithm>

namespace quire::cache {
namespace {

// Looks up blocks of one query and collects them in rows.
class Search {
 public:
  Search(const PrefixIndex& index, const HitQuery& query, std::span<const BlockHash> hashes)
      : index_(index), query_(query), hashes_(hashes), found_(query.groups.size()) {
    hit.rows.resize(query.groups.size());
  }

  int64_t columns() const { return hit.rows.empty() ? 0 : static_cast<int64_t>(hit.rows[0].size()); }
  int64_t hash_blocks() const { return static_cast<int64_t>(hashes_.size()); }

  // True if every group has the block that ends with hash block `last`; found() then are its ids.
  bool look_up(int64_t last_hash_block) {
    for (size_t g = 0; g < query_.groups.size(); ++g) {
      found_[g] = index_.find({hashes_[static_cast<size_t>(last_hash_block)], query_.groups[g]});
      if (found_[g] == kNullBlock) return false;
    }
    return true;
  }
  bool look_up_column(int64_t column) { return look_up((column + 1) * per_block() - 1); }
  int64_t per_block() const { return query_.block_tokens / query_.hash_block; }

  void append_found() {
    for (size_t g = 0; g < hit.rows.size(); ++g) hit.rows[g].push_back(found_[g]);
  }
  void set_found(int64_t column) {
    for (size_t g = 0; g < hit.rows.size(); ++g) hit.rows[g][static_cast<size_t>(column)] = found_[g];
  }
  void resize(int64_t columns) {
    for (auto& row : hit.rows) row.resize(static_cast<size_t>(columns), kNullBlock);
  }

  GroupHit hit;

 private:
  const PrefixIndex& index_;
  const HitQuery& query_;
  std::span<const BlockHash> hashes_;
  std::vector<BlockId> found_;
};

bool fine_grained(const HitQuery& q) {
  return q.alignment_tokens < q.block_tokens && q.block_tokens % q.alignment_tokens == 0;
}

int64_t whole_columns(const HitQuery& q, std::span<const BlockHash> hashes, int64_t max_length) {
  const auto hashed = static_cast<int64_t>(hashes.size()) * q.hash_block;
  return std::max<int64_t>(0, std::min(max_length, hashed)) / q.block_tokens;
}

// From the first block on; a missing block means that all later ones miss, for hashes are chained. Then, if hits may
// end inside blocks, the longest published boundary inside the first missing block.
GroupHit find_forward(Search& search, const HitQuery& q, std::span<const BlockHash> hashes, int64_t max_length) {
  const int64_t limit = whole_columns(q, hashes, max_length);
  for (int64_t column = 0; column < limit && search.look_up_column(column); ++column) search.append_found();
  search.hit.length = search.columns() * q.block_tokens;
  if (fine_grained(q)) {
    const int64_t unit = q.alignment_tokens;
    const int64_t first = search.hit.length / unit;
    const int64_t last = std::min({first + q.block_tokens / unit - 1, max_length / unit, search.hash_blocks()});
    for (int64_t units = last; units > first; --units) {
      if (!search.look_up(units - 1)) continue;
      search.append_found();
      search.hit.length = units * unit;
      break;
    }
  }
  if (q.drop_last && search.hit.length > 0) search.hit.length -= std::min(q.alignment_tokens, q.block_tokens);
  search.hit.length -= search.hit.length % q.alignment_tokens;
  search.resize(ceil_div(search.hit.length, q.block_tokens));
  return std::move(search.hit);
}

// Blocks before the current chunk are never read again: they count as hit, as null.
GroupHit find_from_chunk(Search& search, const HitQuery& q, std::span<const BlockHash> hashes, int64_t max_length) {
  const int64_t limit = whole_columns(q, hashes, max_length);
  const int64_t first = max_length / q.chunk * q.chunk / q.block_tokens;
  search.resize(first);
  for (int64_t column = first; column < limit && search.look_up_column(column); ++column) search.append_found();
  search.hit.length = search.columns() * q.block_tokens;
  return std::move(search.hit);
}

// From the end back, until enough blocks in a row fill the window before an aligned end. A run that reaches the start
// counts whatever its length.
GroupHit find_backward(Search& search, const HitQuery& q, std::span<const BlockHash> hashes, int64_t max_length) {
  const int64_t need = q.rule.contiguous_blocks + (q.drop_last ? 1 : 0);
  const int64_t limit = whole_columns(q, hashes, max_length);
  search.resize(limit);
  int64_t run = 0;
  int64_t kept = -1;
  for (int64_t column = limit - 1; column >= 0; --column) {
    if (!search.look_up_column(column)) {
      run = 0;
      continue;
    }
    const int64_t end = q.drop_last ? column : column + 1;
    if (run == 0 && end * q.block_tokens % q.alignment_tokens != 0) continue;
    search.set_found(column);
    if (++run >= need) {
      kept = column + run;
      break;
    }
  }
  int64_t columns = kept >= 0 ? kept : run;
  const auto align = [&] {
    while (columns * q.block_tokens % q.alignment_tokens != 0) --columns;
  };
  if (kept < 0) align();
  if (q.drop_last && columns > 0) {
    --columns;
    align();
  }
  search.resize(columns);
  search.hit.length = columns * q.block_tokens;
  return std::move(search.hit);
}

// From the end back to one state at an aligned boundary. Never drops: drafts have no recurrent layers.
GroupHit find_backward_single(Search& search, const HitQuery& q, int64_t max_length) {
  const int64_t unit = fine_grained(q) ? q.alignment_tokens : q.block_tokens;
  const int64_t hashed = search.hash_blocks() * q.hash_block;
  for (int64_t units = std::min(max_length, hashed) / unit; units > 0; --units) {
    const int64_t length = units * unit;
    if (length % q.alignment_tokens != 0 || !search.look_up(length / q.hash_block - 1)) continue;
    search.resize((length - 1) / q.block_tokens);
    search.append_found();
    search.hit.length = length;
    break;
  }
  return std::move(search.hit);
}

}  // namespace

GroupHit find_hit(const PrefixIndex& index, const HitQuery& query, std::span<const BlockHash> hashes,
                  int64_t max_length) {
  Search search(index, query, hashes);
  switch (query.rule.search) {
    case HitRule::Search::kNever:
      break;
    case HitRule::Search::kForward:
      return find_forward(search, query, hashes, max_length);
    case HitRule::Search::kForwardFromChunk:
      return find_from_chunk(search, query, hashes, max_length);
    case HitRule::Search::kBackward:
      return find_backward(search, query, hashes, max_length);
    case HitRule::Search::kBackwardSingle:
      return find_backward_single(search, query, max_length);
  }
  return std::move(search.hit);
}

}  // namespace quire::cache
