#include "cache/kernel_blocks.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <map>
#include <set>

#include "cache/block_table.h"
#include "support/cache_vectors.h"

namespace quire::cache {
namespace {

using nlohmann::json;
using Ints = std::vector<int32_t>;

KernelBlockSizes sizes_from_json(const json& list) {
  KernelBlockSizes sizes;
  for (const json& size : list) {
    if (size.is_object()) {
      sizes.multiples_of.push_back(size["multiple_of"]);
    } else {
      sizes.exact.push_back(size);
    }
  }
  return sizes;
}

// One layer alone, with blocks `block_stride` bytes apart as in a packed layout.
LayerPlace packed_place(const CacheSpec& spec, int64_t offset, int64_t block_stride) {
  const Strides strides =
      strides_of(Layout::kBLHNC, spec, {.num_layers = 1, .num_blocks = 0, .block_bytes = block_stride});
  return {.group = GroupId{0}, .spec = spec, .offset = offset, .strides = strides};
}

void expect_mapped(const MappedTable& table, const json& want) {
  for (size_t r = 0; r < want.size(); ++r) {
    const auto row = table.row(static_cast<int64_t>(r));
    auto pages = want[r].get<Ints>();
    EXPECT_EQ(Ints(row.begin(), row.end()), pages) << "row " << r;
  }
}

void run_dense_split(const json& c) {
  const json& want = c["expected"];
  const CacheSpec spec{.block_size = c["block_size"], .num_kv_heads = 2, .state_bytes = 64};
  const KernelBlockSizes sizes = sizes_from_json(c["backend_kernel_block_sizes"]);
  const auto kernel = select_kernel_block(spec.block_size, {&sizes, 1});
  ASSERT_TRUE(kernel.has_value());
  EXPECT_EQ(*kernel, want["builder_block_size"]);
  EXPECT_EQ(*kernel == spec.block_size, want["kernel_block_size"].is_null());

  const int64_t num_blocks = 3000;
  const Strides strides = strides_of(Layout::kLBHNC, spec, {.num_layers = 1, .num_blocks = num_blocks});
  const LayerPlace place{.group = GroupId{0}, .spec = spec, .offset = 0, .strides = strides};
  const auto view = view_kernel_blocks(Layout::kLBHNC, place, num_blocks, *kernel);
  ASSERT_TRUE(view.has_value()) << view.error().message;
  EXPECT_EQ(view->pages_between_blocks, view->pages_per_block);  // dense
  EXPECT_EQ(view->num_pages, num_blocks * view->pages_per_block);

  const int64_t columns =
      aligned_table_width(ceil_div(c["max_model_len"].get<int64_t>(), spec.block_size), spec.block_size, 128);
  auto table = MappedTable::create(c["max_num_seqs"], columns, *view).value();
  EXPECT_EQ(table.width(), want["builder_block_table_width"]);
  if (want.contains("buffer_shape")) {
    EXPECT_EQ(table.max_rows(), want["buffer_shape"][1]);
    EXPECT_EQ(table.width(), want["buffer_shape"][2]);
  }
  Ints blocks;
  for (const json& row : c["block_table"]) {
    for (const int32_t block : row) blocks.push_back(block);
    blocks.resize(static_cast<size_t>(ceil_div(std::ssize(blocks), columns) * columns));
  }
  const int32_t* storage = table.row(0).data();
  table.update(blocks, Ints(c["block_table"].size(), static_cast<int32_t>(columns)));
  EXPECT_EQ(table.row(0).data(), storage);
  expect_mapped(table, want["mapped"]);
}

// Byte by byte: the rows that the kernel reads through the mapped table are the manager's rows, in order.
void expect_same_rows(const LayerPlace& place, const KernelView& view, const MappedTable& table, const json& blocks) {
  const int64_t states = states_per_block(place.spec);
  for (size_t r = 0; r < blocks.size(); ++r) {
    const auto pages = table.row(static_cast<int64_t>(r));
    for (int64_t n = 0; n < states * std::ssize(blocks[r]); ++n) {
      const int64_t block = blocks[r][static_cast<size_t>(n / states)];
      const int64_t manager = block * place.strides.block + n % states * place.strides.state;
      const int64_t page = pages[static_cast<size_t>(n / view.page_states)];
      ASSERT_LT(page, view.num_pages);
      ASSERT_EQ(page * view.page_bytes + n % view.page_states * place.spec.state_bytes, manager);
    }
  }
}

void run_packed_map(const json& c) {
  const json& want = c["expected"];
  const CacheSpec spec = spec_from_json(c["spec"]);
  const KernelBlockSizes sizes = sizes_from_json(c["backend_kernel_block_sizes"]);
  const auto kernel = select_kernel_block(spec.block_size, {&sizes, 1});
  if (!want.contains("manager_view_shape")) {
    ASSERT_FALSE(kernel.has_value());
    EXPECT_EQ(kernel.error().kind, ErrorKind::kUnsupported);
    return;
  }
  ASSERT_TRUE(kernel.has_value());
  EXPECT_EQ(*kernel, want["kernel_block_size"].is_null() ? spec.block_size : want["kernel_block_size"].get<int64_t>());

  const int64_t num_blocks = c["num_blocks"];
  const LayerPlace place = packed_place(spec, c["byte_offset"], c["block_stride_bytes"]);
  const int64_t element = want["element_size"];
  EXPECT_EQ((std::vector{num_blocks, spec.num_kv_heads, states_per_block(spec), spec.state_bytes / element}),
            want["manager_view_shape"].get<std::vector<int64_t>>());
  EXPECT_EQ((std::vector{place.strides.block / element, place.strides.head / element, place.strides.state / element,
                         int64_t{1}}),
            want["manager_view_strides_elements"].get<std::vector<int64_t>>());

  const auto view = view_kernel_blocks(Layout::kBLHNC, place, num_blocks, *kernel);
  if (want.contains("error")) {
    ASSERT_FALSE(view.has_value());
    EXPECT_EQ(view.error().kind, ErrorKind::kUnsupported);
    EXPECT_NE(view.error().message.find("--block-size " + std::to_string(*kernel)), std::string::npos);
    return;
  }
  ASSERT_TRUE(view.has_value()) << view.error().message;
  EXPECT_EQ(view->pages_per_block == 1, want["passes_through"]);
  if (view->pages_per_block == 1) return;
  EXPECT_EQ(view->pages_between_blocks, want["kernel_block_stride"]);
  EXPECT_EQ((std::vector{view->num_pages, spec.num_kv_heads, view->page_states, spec.state_bytes / element}),
            want["kernel_view_shape"].get<std::vector<int64_t>>());
  // All split vectors have one head, so the reference's head stride addresses nothing.
  EXPECT_EQ(spec.num_kv_heads, 1);
  EXPECT_EQ(view->page_bytes / element, want["kernel_view_strides_elements"][0]);

  const auto columns = std::ssize(c["block_table"][0]);
  auto table = MappedTable::create(std::ssize(c["block_table"]), columns, *view).value();
  Ints blocks;
  for (const json& row : c["block_table"]) {
    for (const int32_t block : row) blocks.push_back(block);
  }
  table.update(blocks, Ints(c["block_table"].size(), static_cast<int32_t>(columns)));
  expect_mapped(table, want["mapped"]);
  expect_same_rows(place, *view, table, c["block_table"]);
}

void run_block_table_width(const json& c) {
  EXPECT_EQ(aligned_table_width(c["max_num_blocks"], c["block_size"], 128), c["expected"]["width_align128"]);
  EXPECT_EQ(aligned_table_width(c["max_num_blocks"], c["block_size"], 1), c["expected"]["width_no_align"]);
}

void run_select(const json& c) {
  std::vector<KernelBlockSizes> kernels;
  for (const json& list : c["backends"]) kernels.push_back(sizes_from_json(list));
  const auto selected = select_kernel_block(c["manager_block_size"], kernels);
  if (c["expected"].contains("error")) {
    ASSERT_FALSE(selected.has_value());
    EXPECT_EQ(selected.error().kind, ErrorKind::kUnsupported);
    EXPECT_EQ(selected.error().param, "block_size");
  } else {
    ASSERT_TRUE(selected.has_value());
    EXPECT_EQ(*selected, c["expected"]["selected"]);
  }
}

void run_stride_alignment(const json& c) {
  const CacheSpec spec{.storage = Storage::kLatent,
                       .block_size = c["block_size"],
                       .state_bytes = c["row_bytes"],
                       .tokens_per_state = c["tokens_per_state"],
                       .block_stride_alignment = {StrideAlignment::Unit::kTokens, c["multiple_of"]}};
  EXPECT_EQ(resolved_stride_alignment(spec), c["expected"]["alignment_bytes"]);
}

void run_stride_alignment_int(const json& c) {
  const CacheSpec spec{.state_bytes = 64, .block_stride_alignment = alignment_from_json(c["value"])};
  const auto valid = validate(spec);
  if (c["expected"].contains("error")) {
    ASSERT_FALSE(valid.has_value());
    EXPECT_EQ(valid.error().param, "block_stride_alignment");
  } else {
    ASSERT_TRUE(valid.has_value());
    EXPECT_EQ(resolved_stride_alignment(spec), c["expected"]["alignment_bytes"]);
  }
}

void run_customize(const json& c) {
  const StrideAlignment after =
      stride_alignment_for(sizes_from_json(c["backend_sizes"]), alignment_from_json(c["spec_alignment_before"]));
  EXPECT_EQ(after, alignment_from_json(c["expected"]["after"]));
}

TEST(KernelBlockVectors, EveryCase) {
  const std::map<std::string, void (*)(const json&)> runners = {{"dense_split", run_dense_split},
                                                                {"packed_map", run_packed_map},
                                                                {"block_table_width", run_block_table_width},
                                                                {"select_common_block_size", run_select},
                                                                {"stride_alignment", run_stride_alignment},
                                                                {"stride_alignment_int", run_stride_alignment_int},
                                                                {"customize_attention_spec", run_customize}};
  const json vectors = load_vectors("kernel_block_table.json");
  std::map<std::string, size_t> count;
  for (size_t i = 0; i < vectors["cases"].size(); ++i) {
    const json& c = vectors["cases"][i];
    const std::string kind = c["kind"];
    SCOPED_TRACE(kind + ", case " + std::to_string(i));
    ASSERT_TRUE(runners.contains(kind));
    runners.at(kind)(c);
    ++count[kind];
  }
  const std::map<std::string, size_t> all = {{"dense_split", 13},
                                             {"packed_map", 24},
                                             {"block_table_width", 6},
                                             {"select_common_block_size", 7},
                                             {"stride_alignment", 69},
                                             {"stride_alignment_int", 6},
                                             {"customize_attention_spec", 8}};
  if (uses_own_vectors()) {
    EXPECT_EQ(count, all);
  }
  EXPECT_FALSE(count.empty());
}

// Byte ranges of one layer's block, as manager rows of each head or as the tiles of its pages.
std::set<int64_t> manager_bytes(const LayerPlace& place, int64_t block) {
  std::set<int64_t> bytes;
  for (int64_t h = 0; h < place.spec.num_kv_heads; ++h) {
    for (int64_t n = 0; n < states_per_block(place.spec); ++n) {
      for (int64_t c = 0; c < place.spec.state_bytes; ++c) {
        bytes.insert(block * place.strides.block + h * place.strides.head + n * place.strides.state + c);
      }
    }
  }
  return bytes;
}

std::set<int64_t> page_bytes_of(const LayerPlace& place, const KernelView& view, int64_t block) {
  std::set<int64_t> bytes;
  for (int64_t j = 0; j < view.pages_per_block; ++j) {
    const int64_t page = block * view.pages_between_blocks + j;
    for (int64_t h = 0; h < place.spec.num_kv_heads; ++h) {
      for (int64_t b = 0; b < view.page_states * place.spec.state_bytes; ++b) {
        bytes.insert(page * view.page_bytes + h * view.head_bytes + b);
      }
    }
  }
  return bytes;
}

// In every layout the pages of a block name exactly the block's bytes, each once; with one head also row by row.
TEST(KernelBlocks, PagesTileTheirBlock) {
  int split = 0;
  EXPECT_TRUE(rc::check([&split] {
    const auto layout = static_cast<Layout>(*rc::gen::inRange(0, 6));
    const int64_t kernel = int64_t{4} << *rc::gen::inRange(0, 3);
    const auto pages = *rc::gen::inRange<int64_t>(1, 5);
    const CacheSpec spec{.block_size = kernel * pages,
                         .num_kv_heads = *rc::gen::inRange<int64_t>(1, 4),
                         .state_bytes = *rc::gen::inRange<int64_t>(1, 5)};
    const int64_t num_blocks = 4;
    const int64_t num_layers = *rc::gen::inRange<int64_t>(1, 4);
    const int64_t slack = *rc::gen::element<int64_t>(0, 1, kernel * spec.num_kv_heads * spec.state_bytes);
    const RunShape shape{
        .num_layers = num_layers, .num_blocks = num_blocks, .block_bytes = page_size_bytes(spec) * num_layers + slack};
    const LayerPlace place{.group = GroupId{0}, .spec = spec, .offset = 0, .strides = strides_of(layout, spec, shape)};
    const auto view = view_kernel_blocks(layout, place, num_blocks, kernel);
    if (!view) {
      RC_ASSERT(pages > 1);
      RC_ASSERT((interleaves_heads(layout) && spec.num_kv_heads > 1) || (is_block_outermost(layout) && slack > 0) ||
                place.strides.block % (kernel * spec.num_kv_heads * spec.state_bytes) != 0);
      return;
    }
    split += pages > 1 ? 1 : 0;
    for (int64_t b = 0; b < num_blocks; ++b) {
      const auto want = manager_bytes(place, b);
      RC_ASSERT(page_bytes_of(place, *view, b) == want);
      RC_ASSERT(std::ssize(want) == unpadded_page_bytes(spec));
      if (spec.num_kv_heads > 1) continue;
      for (int64_t o = 0; o < spec.block_size; ++o) {  // slot b * block_size + o
        const int64_t page = b * view->pages_between_blocks + o / kernel;
        RC_ASSERT(page * view->page_bytes + o % kernel * spec.state_bytes ==
                  b * place.strides.block + o * place.strides.state);
      }
    }
    RC_ASSERT(view->num_pages == (num_blocks - 1) * view->pages_between_blocks + view->pages_per_block);
  }));
  EXPECT_GT(split, 0);
}

TEST(KernelBlocks, RefusesWhatCannotBeSplit) {
  const CacheSpec state{
      .storage = Storage::kState, .retention = RecurrentState{}, .block_size = 64, .state_bytes = 1024};
  EXPECT_FALSE(view_kernel_blocks(Layout::kBLHNC, packed_place(state, 0, 1024), 4, 32).has_value());
  EXPECT_TRUE(view_kernel_blocks(Layout::kBLHNC, packed_place(state, 0, 1024), 4, 64).has_value());
  const CacheSpec keys{.storage = Storage::kLatent, .block_size = 64, .state_bytes = 8, .tokens_per_state = 4};
  EXPECT_FALSE(view_kernel_blocks(Layout::kBLHNC, packed_place(keys, 0, 128), 4, 2).has_value());
  EXPECT_FALSE(view_kernel_blocks(Layout::kBLHNC, packed_place(keys, 0, 128), 4, 0).has_value());
  EXPECT_FALSE(view_kernel_blocks(Layout::kBLHNC, packed_place(keys, 0, 128), int64_t{1} << 31, 16).has_value());
  const auto view = view_kernel_blocks(Layout::kBLHNC, packed_place(keys, 0, 128), 4, 16).value();
  EXPECT_FALSE(MappedTable::create(0, 4, view).has_value());
  EXPECT_FALSE(MappedTable::create(int64_t{1} << 31, 4, view).has_value());
}

// Micro-batches never share a buffer.
TEST(KernelBlocks, TablesAreSeparateBuffers) {
  const KernelView view{.page_states = 16, .pages_per_block = 2, .pages_between_blocks = 2, .num_pages = 20};
  auto first = MappedTable::create(2, 3, view).value();
  auto second = MappedTable::create(2, 3, view).value();
  const Ints a = {1, 2, 3};
  const Ints b = {4, 5, 6};
  first.update(a, Ints{3});
  second.update(b, Ints{3});
  EXPECT_EQ(first.row(0)[0], 2);
  EXPECT_EQ(second.row(0)[5], 13);
  second.update(a, Ints{1});  // what is unused stays
  EXPECT_EQ(second.row(0)[1], 3);
  EXPECT_EQ(second.row(0)[2], 10);
}

}  // namespace
}  // namespace quire::cache
