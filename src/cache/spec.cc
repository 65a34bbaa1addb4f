#include "cache/spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <numeric>

#include "base/check.h"
#include "base/overloaded.h"

namespace quire::cache {
namespace {

template <class... Fs>
auto visit_retention(const CacheSpec& spec, Fs... cases) {
  return std::visit(Overloaded<Fs...>{cases...}, spec.retention);
}

constexpr int64_t kMaxTokens = int64_t{1} << 31;
constexpr int64_t kMaxBlockSize = int64_t{1} << 20;
constexpr int64_t kMaxPageBytes = int64_t{1} << 40;

Result<void> check_range(const char* field, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return {};
  return fail(ErrorKind::kInvalidRequest,
              fmt::format("cache spec: {} is {}, must be between {} and {}", field, value, low, high), field);
}

Result<void> check_retention(const CacheSpec& spec) {
  return visit_retention(
      spec,
      [](const FullRetention& r) -> Result<void> {
        if (auto ok = check_range("mask_window", r.mask_window, 0, kMaxTokens); !ok) return ok;
        return check_range("mask_chunk", r.mask_chunk, 0, kMaxTokens);
      },
      [](const SlidingWindow& r) -> Result<void> {
        if (auto ok = check_range("window", r.window, 1, kMaxTokens); !ok) return ok;
        return check_range("extra_retained", r.extra_retained, 0, kMaxTokens);
      },
      [](const ChunkedLocal& r) { return check_range("chunk", r.chunk, 1, kMaxTokens); },
      [](const CircularBuffer&) { return Result<void>{}; },
      [](const RecurrentState& r) { return check_range("speculative_blocks", r.speculative_blocks, 0, 1 << 16); });
}

}  // namespace

bool CacheSpec::operator==(const CacheSpec& o) const {
  return storage == o.storage && retention == o.retention && dtype == o.dtype && block_size == o.block_size &&
         num_kv_heads == o.num_kv_heads && state_bytes == o.state_bytes && tokens_per_state == o.tokens_per_state &&
         block_stride_alignment == o.block_stride_alignment && padded_page_bytes == o.padded_page_bytes &&
         prefix_cacheable == o.prefix_cacheable && uses_slot_mapping == o.uses_slot_mapping &&
         context_parallel_sharded == o.context_parallel_sharded;
}

Result<void> validate(const CacheSpec& spec) {
  if (auto ok = check_range("block_size", spec.block_size, 1, kMaxBlockSize); !ok) return ok;
  if (auto ok = check_range("num_kv_heads", spec.num_kv_heads, 1, 1 << 20); !ok) return ok;
  if (auto ok = check_range("tokens_per_state", spec.tokens_per_state, 1, kMaxTokens); !ok) return ok;
  if (spec.block_size % spec.tokens_per_state != 0) {
    return fail(ErrorKind::kInvalidRequest,
                fmt::format("cache spec: block_size {} must be a multiple of tokens_per_state {}", spec.block_size,
                            spec.tokens_per_state),
                "block_size");
  }
  const int64_t rows = states_per_block(spec) * spec.num_kv_heads;  // below 2^51
  if (auto ok = check_range("state_bytes", spec.state_bytes, 1, std::max<int64_t>(1, kMaxPageBytes / rows)); !ok) {
    return ok;
  }
  if (auto ok = check_range("page bytes", unpadded_page_bytes(spec), 1, kMaxPageBytes); !ok) return ok;
  if (spec.padded_page_bytes != 0) {
    if (auto ok = check_range("padded_page_bytes", spec.padded_page_bytes, unpadded_page_bytes(spec), kMaxPageBytes);
        !ok) {
      return ok;
    }
  }
  const StrideAlignment& alignment = spec.block_stride_alignment;
  if (auto ok = check_range("block_stride_alignment", alignment.value, 1, kMaxTokens); !ok) return ok;
  if (alignment.unit == StrideAlignment::Unit::kTokens &&
      std::gcd(alignment.value, spec.block_size) % spec.tokens_per_state != 0) {
    return fail(ErrorKind::kInvalidRequest,
                fmt::format("cache spec: block_stride_alignment of {} tokens must be a multiple of tokens_per_state {}",
                            alignment.value, spec.tokens_per_state),
                "block_stride_alignment");
  }
  return check_retention(spec);
}

int64_t ring_capacity(int64_t pooled, int64_t drafts) {
  const auto pools = static_cast<uint64_t>(ceil_div(pooled + drafts, pooled));
  return pooled * static_cast<int64_t>(std::bit_ceil(pools));
}

std::string_view name_of(const CacheSpec& spec) {
  const bool latent = spec.storage == Storage::kLatent;
  return visit_retention(
      spec, [&](const FullRetention&) { return std::string_view(latent ? "mla" : "full"); },
      [&](const SlidingWindow&) { return std::string_view(latent ? "mla sliding window" : "sliding window"); },
      [&](const ChunkedLocal&) { return std::string_view(latent ? "mla chunked local" : "chunked local"); },
      [](const CircularBuffer&) { return std::string_view("circular buffer"); },
      [](const RecurrentState&) { return std::string_view("recurrent"); });
}

bool holds_fixed_blocks(const CacheSpec& spec) {
  const auto* state = std::get_if<RecurrentState>(&spec.retention);
  return keeps<CircularBuffer>(spec) || (state != nullptr && state->checkpoints == RecurrentState::Checkpoints::kNone);
}

int64_t states_per_block(const CacheSpec& spec) {
  if (keeps<RecurrentState>(spec)) return 1;
  return spec.block_size / spec.tokens_per_state;
}

int64_t unpadded_page_bytes(const CacheSpec& spec) {
  return states_per_block(spec) * spec.num_kv_heads * spec.state_bytes;
}

int64_t page_size_bytes(const CacheSpec& spec) { return std::max(spec.padded_page_bytes, unpadded_page_bytes(spec)); }

int64_t resolved_stride_alignment(const CacheSpec& spec) {
  const StrideAlignment& want = spec.block_stride_alignment;
  if (want.unit == StrideAlignment::Unit::kBytes) return want.value;
  const int64_t tokens = std::gcd(want.value, spec.block_size);
  if (tokens == spec.block_size) return 1;
  return tokens / spec.tokens_per_state * spec.num_kv_heads * spec.state_bytes;
}

int64_t tokens_per_block(const CacheSpec& spec, int64_t context_parallel_size) {
  return spec.context_parallel_sharded ? spec.block_size * context_parallel_size : spec.block_size;
}

int64_t skipped_tokens(const CacheSpec& spec, int64_t num_processed) {
  QUIRE_CHECK(num_processed >= 0);
  if (holds_fixed_blocks(spec)) return 0;
  return visit_retention(
      spec, [](const FullRetention&) { return int64_t{0}; },
      [=](const SlidingWindow& r) { return std::max<int64_t>(0, num_processed - r.window + 1 - r.extra_retained); },
      [=](const ChunkedLocal& r) { return num_processed / r.chunk * r.chunk; },
      [](const CircularBuffer&) { return int64_t{0}; },
      [=](const RecurrentState&) { return std::max<int64_t>(0, num_processed - 1); });
}

int64_t max_blocks(const CacheSpec& spec, int64_t length, const CacheLimits& limits) {
  const int64_t block = tokens_per_block(spec, limits.context_parallel_size);
  return visit_retention(
      spec, [=](const FullRetention&) { return ceil_div(length, block); },
      [&](const SlidingWindow& r) {
        const int64_t held = r.window - 1 + r.extra_retained + limits.max_in_flight_tokens;
        return ceil_div(std::min(held, length), block) + 1;  // + 1: the window may start inside a block
      },
      [&](const ChunkedLocal& r) { return ceil_div(std::min(r.chunk + limits.max_in_flight_tokens, length), block); },
      [](const CircularBuffer&) { return int64_t{1}; },
      [](const RecurrentState& r) {
        const int64_t own = r.checkpoints == RecurrentState::Checkpoints::kAlign ? 2 : 1;
        return own + r.speculative_blocks;
      });
}

int64_t table_columns(const CacheSpec& spec, int64_t length, const CacheLimits& limits) {
  if (holds_fixed_blocks(spec)) return max_blocks(spec, length, limits);
  const int64_t columns = ceil_div(length, tokens_per_block(spec, limits.context_parallel_size));
  const auto* state = std::get_if<RecurrentState>(&spec.retention);
  return columns + (state == nullptr ? 0 : state->speculative_blocks);
}

HitRule hit_rule(const CacheSpec& spec, int64_t context_parallel_size) {
  HitRule rule{.alignment_tokens = spec.tokens_per_state};
  if (!spec.prefix_cacheable) {
    rule.search = HitRule::Search::kNever;
    return rule;
  }
  rule.search = visit_retention(
      spec, [](const FullRetention&) { return HitRule::Search::kForward; },
      [](const SlidingWindow&) { return HitRule::Search::kBackward; },
      [](const ChunkedLocal&) { return HitRule::Search::kForwardFromChunk; },
      [](const CircularBuffer&) { return HitRule::Search::kNever; },
      [](const RecurrentState&) { return HitRule::Search::kBackwardSingle; });
  if (const auto* window = std::get_if<SlidingWindow>(&spec.retention)) {
    rule.contiguous_blocks = ceil_div(window->window - 1, tokens_per_block(spec, context_parallel_size));
  }
  return rule;
}

bool mergeable(const CacheSpec& a, const CacheSpec& b) {
  CacheSpec unmasked_a = a;
  CacheSpec unmasked_b = b;
  if (keeps<FullRetention>(a)) unmasked_a.retention = FullRetention{};
  if (keeps<FullRetention>(b)) unmasked_b.retention = FullRetention{};
  return unmasked_a == unmasked_b;
}

bool same_uniform_type(const CacheSpec& a, const CacheSpec& b) {
  if (a.block_size != b.block_size || a.retention.index() != b.retention.index()) return false;
  if (a.prefix_cacheable != b.prefix_cacheable || a.context_parallel_sharded != b.context_parallel_sharded)
    return false;
  if (keeps<FullRetention>(a)) return true;
  return a.retention == b.retention && (a.storage == Storage::kLatent) == (b.storage == Storage::kLatent);
}

}  // namespace quire::cache
