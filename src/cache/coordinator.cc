#include "cache/coordinator.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "cache/hit_report.h"

namespace quire::cache {
namespace {

constexpr int64_t kMostTokensPerBlock = int64_t{1} << 32;

bool has_checkpoints(const CacheSpec& spec) {
  const auto* state = std::get_if<RecurrentState>(&spec.retention);
  return state != nullptr && state->checkpoints == RecurrentState::Checkpoints::kAlign;
}

Result<void> check_range(const char* name, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return {};
  return fail(ErrorKind::kInvalidRequest, fmt::format("{} is {}, it must be {} to {}", name, value, least, most), name);
}

// The least common multiple of blocks, or 0 if it is absurdly large.
int64_t common_multiple(int64_t a, int64_t b) {
  const int64_t factor = b / std::gcd(a, b);
  return a > kMostTokensPerBlock / factor ? 0 : a * factor;
}

}  // namespace

CoordinatorConfig coordinator_config(const CachePlan& plan, const CacheLimits& limits, bool enable_caching) {
  CoordinatorConfig config{.num_blocks = plan.num_blocks,
                           .max_model_len = plan.max_model_len,
                           .limits = limits,
                           .scheduler_block = plan.scheduler_block_size,
                           .hash_block = plan.hash_block_size,
                           .enable_caching = enable_caching};
  for (const auto& group : plan.groups) {
    config.groups.push_back({.spec = group.spec, .hit = group.hit, .drops_block = group.drops_block});
  }
  return config;
}

Result<Coordinator> Coordinator::create(CoordinatorConfig config) {
  if (auto ok = check_range("num_blocks", config.num_blocks, 1, INT32_MAX); !ok) return std::unexpected(ok.error());
  if (auto ok = check_range("max_model_len", config.max_model_len, 1, int64_t{1} << 40); !ok) {
    return std::unexpected(ok.error());
  }
  if (auto ok = check_range("max_in_flight_tokens", config.limits.max_in_flight_tokens, 1, int64_t{1} << 40); !ok) {
    return std::unexpected(ok.error());
  }
  if (auto ok = check_range("context_parallel_size", config.limits.context_parallel_size, 1, 4096); !ok) {
    return std::unexpected(ok.error());
  }
  if (auto ok = check_range("remembered_evictions", config.remembered_evictions, 0, int64_t{1} << 24); !ok) {
    return std::unexpected(ok.error());
  }
  for (const auto& group : config.groups) {
    if (auto ok = validate(group.spec); !ok) return std::unexpected(ok.error());
  }
  Coordinator coordinator(std::move(config));
  if (auto ok = coordinator.resolve(); !ok) return std::unexpected(ok.error());
  return coordinator;
}

Coordinator::Coordinator(CoordinatorConfig config)
    : config_(std::move(config)),
      pool_(config_.num_blocks, std::ssize(config_.groups)),
      evicted_(config_.remembered_evictions) {
  for (const auto& group : config_.groups) {
    Group resolved;
    resolved.rule = group.hit;
    resolved.block_tokens = tokens_per_block(group.spec, config_.limits.context_parallel_size);
    if (const auto* local = std::get_if<ChunkedLocal>(&group.spec.retention)) resolved.chunk = local->chunk;
    resolved.cacheable = resolved.rule.search != HitRule::Search::kNever;
    resolved.checkpoints = has_checkpoints(group.spec);
    groups_.push_back(resolved);
  }
}

// Fixes the units that all groups share, then what each group can do in them.
Result<void> Coordinator::resolve() {
  int64_t multiple = 1;
  int64_t divisor = 0;
  for (const auto& group : groups_) {
    multiple = multiple == 0 ? 0 : common_multiple(multiple, group.block_tokens);
    if (group.cacheable) divisor = std::gcd(divisor, group.block_tokens);
  }
  if (config_.scheduler_block == 0) config_.scheduler_block = multiple;
  if (config_.hash_block == 0) config_.hash_block = divisor == 0 ? config_.scheduler_block : divisor;
  const auto range = check_range("scheduler_block", config_.scheduler_block, 1, kMostTokensPerBlock);
  if (!range) return range;
  if (config_.hash_block < 1 || config_.scheduler_block % config_.hash_block != 0) {
    return fail(ErrorKind::kInvalidRequest,
                fmt::format("hash_block is {}, it must divide the scheduler block of {} tokens", config_.hash_block,
                            config_.scheduler_block),
                "hash_block");
  }
  classify();
  for (size_t g = 0; g < groups_.size(); ++g) {
    const Group& group = groups_[g];
    if (config_.scheduler_block % group.block_tokens != 0 ||
        (group.cacheable && config_.enable_caching && group.block_tokens % config_.hash_block != 0)) {
      return fail(ErrorKind::kInvalidRequest,
                  fmt::format("group {}: its block of {} tokens must divide the scheduler block ({}) and be a multiple "
                              "of the hash block ({})",
                              g, group.block_tokens, config_.scheduler_block, config_.hash_block),
                  "block_size");
    }
    if (!config_.enable_caching || !group.cacheable) continue;
    if (keeps<RecurrentState>(spec(g)) && !group.checkpoints) {
      return fail(ErrorKind::kUnsupported,
                  fmt::format("group {}: a recurrent state without checkpoints cannot be found again; give it "
                              "checkpoints or switch prefix caching off",
                              g),
                  "enable_prefix_caching");
    }
    if (hit_alignment() % group.rule.alignment_tokens != 0) {
      return fail(ErrorKind::kUnsupported,
                  fmt::format("group {} stores one state for {} tokens, but hits end at multiples of {}", g,
                              group.rule.alignment_tokens, hit_alignment()),
                  "tokens_per_state");
    }
    if (group.rule.search != HitRule::Search::kForwardFromChunk) continue;
    if (group.drops_last || group.block_tokens != hit_alignment()) {
      return fail(ErrorKind::kUnsupported,
                  fmt::format("group {}: chunked local attention needs the same block size in every group, and no "
                              "drafter, when prefixes are cached; switch prefix caching off",
                              g),
                  "enable_prefix_caching");
    }
  }
  const auto& retention = config_.retention;
  if (retention.keep == RetentionPolicy::Keep::kEveryInterval &&
      (retention.interval_tokens < 1 || retention.interval_tokens % config_.scheduler_block != 0)) {
    return fail(ErrorKind::kInvalidRequest,
                fmt::format("the retention interval is {} tokens, it must be a multiple of the scheduler block ({})",
                            retention.interval_tokens, config_.scheduler_block),
                "retention_interval");
  }
  return {};
}

void Coordinator::classify() {
  const auto drops = [&](size_t g) { return config_.all_groups_drop_block || config_.groups[g].drops_block; };
  for (size_t g = 0; g < groups_.size(); ++g) any_drops_last_ |= drops(g);

  const int64_t hash = config_.hash_block;
  const bool sharded = config_.limits.context_parallel_size > 1;
  bool inside = false;
  bool all_can = true;
  for (size_t g = 0; g < groups_.size(); ++g) {
    const Group& group = groups_[g];
    if (!group.cacheable) continue;
    if (group.checkpoints) inside |= sharded ? group.block_tokens >= hash : group.block_tokens > hash;
    all_can &= finds_inside_blocks(group.rule) || group.block_tokens == hash;
  }
  fine_hits_ = inside && all_can;

  for (const bool forward : {true, false}) {
    for (size_t g = 0; g < groups_.size(); ++g) {
      if (!groups_[g].cacheable || (groups_[g].rule.search == HitRule::Search::kForward) != forward) continue;
      const GroupId id{static_cast<int32_t>(g)};
      const auto same = std::ranges::find_if(
          lookups_, [&](const LookupClass& l) { return spec(static_cast<size_t>(l.ids[0].value)) == spec(g); });
      if (same == lookups_.end()) {
        lookups_.push_back({{id}, drops(g)});
      } else {
        same->ids.push_back(id);
        same->drops_last |= drops(g);
      }
    }
  }
  for (const auto& lookup : lookups_) {
    for (const GroupId id : lookup.ids) groups_[static_cast<size_t>(id.value)].drops_last = lookup.drops_last;
  }
  for (const auto& group : groups_) {
    // A token frees at most a chunk's columns.
    scratch_.reserve(static_cast<size_t>(group.chunk / group.block_tokens + 1));
    mask_.reserve(static_cast<size_t>(config_.scheduler_block / group.block_tokens + 1));
  }
}

// A group that drops one unit looks that much further, so that the hit ends where it would without.
GroupHit Coordinator::look_up(const LookupClass& lookup, bool drop, std::span<const BlockHash> hashes,
                              int64_t max_length) const {
  const Group& group = groups_[static_cast<size_t>(lookup.ids[0].value)];
  if (drop && group.rule.search != HitRule::Search::kBackwardSingle) {
    const bool fine = fine_hits_ && finds_inside_blocks(group.rule) && group.block_tokens > config_.hash_block;
    max_length += fine ? config_.hash_block : group.block_tokens;
  }
  const HitQuery query{.rule = group.rule,
                       .groups = lookup.ids,
                       .block_tokens = group.block_tokens,
                       .chunk = group.chunk,
                       .alignment_tokens = hit_alignment(),
                       .hash_block = config_.hash_block,
                       .drop_last = drop};
  return cache::find_hit(pool_.index(), query, hashes, max_length);
}

// Every class of groups either accepts the current length or shortens it; repeat until none does. The length only
// shrinks, so this ends.
PrefixHit Coordinator::find_hit(std::span<const BlockHash> hashes, int64_t max_length) const {
  PrefixHit hit;
  hit.rows.resize(groups_.size());
  if (!config_.enable_caching || lookups_.empty()) return hit;

  hit.length = max_length;
  int64_t longest = 0;
  std::vector<std::optional<int64_t>> forward_length(lookups_.size());
  std::vector<bool> dropped(lookups_.size(), false);  // at most once for a candidate length
  while (true) {
    int64_t current = hit.length;
    for (size_t i = 0; i < lookups_.size(); ++i) {
      const LookupClass& lookup = lookups_[i];
      const Group& group = groups_[static_cast<size_t>(lookup.ids[0].value)];
      if (forward_length[i]) {  // a forward hit holds for every shorter length
        current = std::min(current, *forward_length[i]);
        continue;
      }
      const bool drop = lookup.drops_last && !dropped[i];
      GroupHit found = look_up(lookup, drop, hashes, current);
      if (drop) {
        dropped[i] = true;
      } else if (found.length < current) {
        dropped.assign(dropped.size(), false);
      }
      current = found.length;
      longest = std::max(longest, current);
      if (group.rule.search == HitRule::Search::kForward) forward_length[i] = current;
      for (size_t k = 0; k < lookup.ids.size(); ++k) {
        hit.rows[static_cast<size_t>(lookup.ids[k].value)] = std::move(found.rows[k]);
      }
    }
    if (current >= hit.length) break;
    hit.length = current;
  }
  for (size_t g = 0; g < groups_.size(); ++g) {
    if (groups_[g].rule.search != HitRule::Search::kForward) continue;
    hit.rows[g].resize(static_cast<size_t>(ceil_div(hit.length, groups_[g].block_tokens)));
  }
  hit.uncached_common = longest - hit.length;
  return hit;
}

std::vector<int64_t> Coordinator::hit_lengths(std::span<const BlockHash> hashes, int64_t max_length) const {
  std::vector<int64_t> lengths(groups_.size(), 0);
  if (!config_.enable_caching) return lengths;
  for (const auto& lookup : lookups_) {
    const auto found = look_up(lookup, lookup.drops_last, hashes, max_length);
    for (const GroupId id : lookup.ids) lengths[static_cast<size_t>(id.value)] = found.length;
  }
  return lengths;
}

CacheReport Coordinator::report(const SlotRequest& request) const {
  const HashKeys* keys = request.tokens.keys;
  std::vector<ReportedGroup> reported;
  for (size_t g = 0; g < groups_.size(); ++g) {
    reported.push_back({.id = GroupId{static_cast<int32_t>(g)},
                        .kind = name_of(spec(g)),
                        .rule = groups_[g].rule,
                        .block_tokens = groups_[g].block_tokens,
                        .chunk = groups_[g].chunk,
                        .drops_last = groups_[g].drops_last});
  }
  CacheReport report = report_hit(pool_.index(), evicted_,
                                  {.groups = reported,
                                   .hashes = request.tokens.hashes,
                                   .hash_block = config_.hash_block,
                                   .alignment_tokens = hit_alignment(),
                                   .num_tokens = request.tokens.num_tokens(),
                                   .hit_length = request.hit == nullptr ? 0 : request.hit->length,
                                   .looked_up = request.hit != nullptr && config_.enable_caching,
                                   .own_keys = keys != nullptr && (keys->adapter || !keys->cache_salt.empty()),
                                   .now = now_});
  report.minimum_reuse_tokens = minimum_reuse();
  return report;
}

GroupStats Coordinator::stats(GroupId group) const {
  return {.blocks = pool_.of_group(group), .hit_tokens = groups_[static_cast<size_t>(group.value)].hit_tokens};
}

int64_t Coordinator::minimum_reuse() const { return config_.enable_caching && !lookups_.empty() ? hit_alignment() : 0; }

int64_t Coordinator::checkpoint_block() const {
  int64_t tokens = 0;
  for (const auto& group : groups_) {
    if (group.checkpoints && group.cacheable) tokens = std::lcm(std::max(tokens, hit_alignment()), group.block_tokens);
  }
  return config_.enable_caching ? tokens : 0;
}

// The bound of the spec, with the slots for drafts; a state still read by the step in flight stays one step longer.
int64_t Coordinator::most_held(size_t g, int64_t length) const {
  CacheLimits limits = config_.limits;
  limits.max_in_flight_tokens += config_.lookahead_tokens;
  return max_blocks(spec(g), length, limits) + (groups_[g].checkpoints && config_.overlapped_steps ? 1 : 0);
}

int64_t Coordinator::max_blocks_held(int64_t length) const {
  int64_t blocks = 0;
  for (size_t g = 0; g < groups_.size(); ++g) blocks += most_held(g, length);
  return blocks;
}

std::span<const BlockId> Coordinator::row(const RequestCache& cache, GroupId group) const {
  if (!cache.admitted_) return {};
  return cache.groups_[static_cast<size_t>(group.value)].row;
}

Result<void> Coordinator::integrity(std::span<const RequestCache* const> caches) const {
  std::vector<int> references(static_cast<size_t>(pool_.total()), 0);
  for (const auto& copy : copies_) {
    ++references[static_cast<size_t>(copy.source.value)];
    ++references[static_cast<size_t>(copy.target.value)];
  }
  for (const RequestCache* cache : caches) {
    if (!cache->admitted_) continue;
    for (size_t g = 0; g < groups_.size(); ++g) {
      int64_t held = 0;
      for (const BlockId block : cache->groups_[g].row) {
        if (block == kNullBlock) continue;
        ++held;
        ++references[static_cast<size_t>(block.value)];
      }
      const int64_t bound = most_held(g, config_.max_model_len);
      if (held > bound) {
        return fail(ErrorKind::kInternal,
                    fmt::format("group {}: a request holds {} blocks, its bound is {}", g, held, bound));
      }
    }
  }
  return pool_.integrity(references);
}

}  // namespace quire::cache
