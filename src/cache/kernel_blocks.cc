#include "cache/kernel_blocks.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>

#include "base/check.h"

namespace quire::cache {
namespace {

constexpr int64_t kMaxPages = std::numeric_limits<int32_t>::max();
constexpr int64_t kMaxEntries = int64_t{1} << 31;

std::string describe(const KernelBlockSizes& sizes) {
  std::vector<std::string> parts;
  for (const int64_t s : sizes.exact) parts.push_back(std::to_string(s));
  for (const int64_t s : sizes.multiples_of) parts.push_back("multiples of " + std::to_string(s));
  return parts.empty() ? "none" : fmt::format("{}", fmt::join(parts, ", "));
}

std::unexpected<Error> cannot_split(const LayerPlace& place, int64_t kernel_block, const std::string& why) {
  return fail(
      ErrorKind::kUnsupported,
      fmt::format("cache blocks of {} tokens cannot be split into kernel blocks of {}: {}; use --block-size {} or a "
                  "layer-outermost layout such as LBHNC",
                  place.spec.block_size, kernel_block, why, kernel_block),
      "block_size");
}

void map_any(std::span<const int32_t> blocks, int32_t ratio, int32_t between, int32_t* page) {
  for (const int32_t block : blocks) {
    for (int32_t j = 0; j < ratio; ++j) *page++ = block * between + j;
  }
}

template <int32_t kRatio>
void map_with(std::span<const int32_t> blocks, int32_t between, int32_t* page) {
  map_any(blocks, kRatio, between, page);
}

}  // namespace

bool KernelBlockSizes::takes(int64_t tokens) const {
  return std::ranges::find(exact, tokens) != exact.end() ||
         std::ranges::any_of(multiples_of, [&](int64_t m) { return tokens % m == 0; });
}

Result<int64_t> select_kernel_block(int64_t block_size, std::span<const KernelBlockSizes> kernels) {
  const auto all_take = [&](int64_t tokens) {
    return std::ranges::all_of(kernels, [&](const KernelBlockSizes& k) { return k.takes(tokens); });
  };
  if (all_take(block_size)) return block_size;
  int64_t best = 0;
  for (const KernelBlockSizes& kernel : kernels) {
    for (const int64_t tokens : kernel.exact) {
      if (tokens > best && block_size % tokens == 0 && all_take(tokens)) best = tokens;
    }
  }
  if (best > 0) return best;
  std::vector<std::string> taken;
  for (const KernelBlockSizes& kernel : kernels) taken.push_back(describe(kernel));
  return fail(
      ErrorKind::kUnsupported,
      fmt::format("no kernel block size divides cache blocks of {} tokens and suits all kernels of the attention "
                  "group, which take: {}",
                  block_size, fmt::join(taken, "; ")),
      "block_size");
}

StrideAlignment stride_alignment_for(const KernelBlockSizes& kernel, const StrideAlignment& current) {
  if (current != StrideAlignment{} || kernel.exact.empty() || !kernel.multiples_of.empty()) return current;
  int64_t tokens = 1;
  for (const int64_t size : kernel.exact) tokens = std::lcm(tokens, size);
  return {StrideAlignment::Unit::kTokens, tokens};
}

Result<KernelView> view_kernel_blocks(Layout layout, const LayerPlace& place, int64_t num_blocks,
                                      int64_t kernel_block) {
  const CacheSpec& spec = place.spec;
  if (kernel_block < 1 || spec.block_size % kernel_block != 0 || kernel_block % spec.tokens_per_state != 0) {
    return cannot_split(
        place, kernel_block,
        fmt::format("the block must be a multiple of it, and it a multiple of {}", spec.tokens_per_state));
  }
  KernelView view;
  view.pages_per_block = spec.block_size / kernel_block;
  view.page_states = states_per_block(spec) / view.pages_per_block;
  const int64_t rows_bytes = view.page_states * spec.state_bytes;
  const bool heads_apart = splits_page_by_head(layout) && spec.num_kv_heads > 1;
  view.page_bytes = heads_apart ? rows_bytes : rows_bytes * spec.num_kv_heads;
  view.head_bytes = heads_apart ? place.strides.head : rows_bytes;
  if (view.pages_per_block == 1) {  // the block is the page, wherever the next one begins
    view.page_bytes = place.strides.block;
  } else {
    if (keeps<RecurrentState>(spec)) return cannot_split(place, kernel_block, "a recurrent state is one piece");
    if (spec.num_kv_heads > 1 && interleaves_heads(layout)) {
      return cannot_split(place, kernel_block, fmt::format("{} interleaves the heads' rows", name_of(layout)));
    }
    if (spec.num_kv_heads > 1 && spec.tokens_per_state > 1) {
      return cannot_split(place, kernel_block, "a compressed state of several heads is written row by row");
    }
    if (place.strides.block % view.page_bytes != 0) {
      return cannot_split(place, kernel_block,
                          fmt::format("blocks begin {} bytes apart, no multiple of the page's {} bytes",
                                      place.strides.block, view.page_bytes));
    }
    view.pages_between_blocks = place.strides.block / view.page_bytes;
  }
  if (num_blocks < 1 || view.pages_per_block > kMaxPages ||
      num_blocks - 1 > (kMaxPages - view.pages_per_block) / view.pages_between_blocks) {
    return cannot_split(place, kernel_block, fmt::format("{} blocks would need page ids above 2^31", num_blocks));
  }
  view.num_pages = (num_blocks - 1) * view.pages_between_blocks + view.pages_per_block;
  return view;
}

void map_kernel_blocks(std::span<const int32_t> blocks, const KernelView& view, std::span<int32_t> out) {
  QUIRE_CHECK(out.size() == blocks.size() * static_cast<size_t>(view.pages_per_block));
  const auto between = static_cast<int32_t>(view.pages_between_blocks);
  switch (view.pages_per_block) {  // the usual ratios, unrolled: this runs over whole tables every step
    case 1:
      std::ranges::copy(blocks, out.begin());
      return;
    case 2:
      map_with<2>(blocks, between, out.data());
      return;
    case 4:
      map_with<4>(blocks, between, out.data());
      return;
    default:
      map_any(blocks, static_cast<int32_t>(view.pages_per_block), between, out.data());
  }
}

Result<MappedTable> MappedTable::create(int64_t max_rows, int64_t columns, const KernelView& view) {
  if (max_rows < 1 || columns < 1 || columns > kMaxEntries / view.pages_per_block ||
      max_rows > kMaxEntries / (columns * view.pages_per_block)) {
    return fail(
        ErrorKind::kInvalidRequest,
        fmt::format("mapped block table of {} requests by {} blocks of {} pages: their product must be between 1 "
                    "and {}",
                    max_rows, columns, view.pages_per_block, kMaxEntries),
        "max_num_seqs");
  }
  return MappedTable(max_rows, columns, view);
}

MappedTable::MappedTable(int64_t max_rows, int64_t columns, const KernelView& view)
    : columns_(columns), view_(view), pages_(static_cast<size_t>(max_rows * columns * view.pages_per_block)) {}

void MappedTable::update(std::span<const int32_t> blocks, std::span<const int32_t> used) {
  QUIRE_CHECK(std::ssize(blocks) == std::ssize(used) * columns_ && std::ssize(used) <= max_rows());
  const auto columns = static_cast<size_t>(columns_);
  const auto ratio = static_cast<size_t>(view_.pages_per_block);
  for (size_t r = 0; r < used.size(); ++r) {
    const auto count = static_cast<size_t>(used[r]);
    QUIRE_CHECK(count <= columns);
    map_kernel_blocks(blocks.subspan(r * columns, count), view_,
                      std::span(pages_).subspan(r * columns * ratio, count * ratio));
  }
}

std::span<const int32_t> MappedTable::row(int64_t row) const {
  QUIRE_CHECK(row >= 0 && row < max_rows());
  return {pages_.data() + row * width(), static_cast<size_t>(width())};
}

}  // namespace quire::cache
