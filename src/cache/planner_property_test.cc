// Invariants of plans over random models, layouts and budgets, against brute force: every byte of the allocation is
// asked who owns it.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <map>
#include <set>

#include "cache/planner.h"

namespace quire::cache {
namespace {

// Uniform from the first case on; RapidCheck's own range starts narrow.
template <class T>
T in_range(T low, T high) {
  return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange<T>(low, high));
}

CacheSpec random_spec() {
  CacheSpec spec{
      .dtype = *rc::gen::element(DType::kBF16, DType::kU8),
      .block_size = *rc::gen::element<int64_t>(4, 8),
      .num_kv_heads = in_range<int64_t>(1, 4),
      .state_bytes = *rc::gen::element<int64_t>(1, 2, 3, 4),
      .block_stride_alignment = {*rc::gen::element(StrideAlignment::Unit::kBytes, StrideAlignment::Unit::kTokens),
                                 *rc::gen::element<int64_t>(1, 1, 1, 2, 4)},
      .is_draft = *rc::gen::arbitrary<bool>()};
  switch (in_range(0, 8)) {
    case 0:
      break;
    case 1:
      spec.retention = SlidingWindow{.window = *rc::gen::element<int64_t>(5, 9)};
      break;
    case 2:
      spec.retention = ChunkedLocal{.chunk = 16};
      break;
    case 3:
      spec.retention = CircularBuffer{};
      spec.prefix_cacheable = false;
      break;
    case 4:
      spec.retention = RecurrentState{
          .checkpoints = *rc::gen::element(RecurrentState::Checkpoints::kNone, RecurrentState::Checkpoints::kAlign),
          .speculative_blocks = in_range<int64_t>(0, 2)};
      spec.storage = Storage::kState;
      spec.num_kv_heads = 1;
      spec.state_bytes = in_range<int64_t>(1, 60);
      break;
    case 5:
      spec.storage = Storage::kLatent;
      spec.num_kv_heads = 1;
      spec.state_bytes *= 4;
      break;
    case 6:
      spec.storage = Storage::kLatent;
      spec.num_kv_heads = 1;
      spec.tokens_per_state = 4;
      spec.block_stride_alignment = {};
      break;
    default:
      spec.storage = Storage::kHiddenState;
  }
  return spec;
}

// Layers that all keep everything over one block size, in pages of several sizes.
std::vector<CacheSpec> uniform_kinds() {
  std::vector<CacheSpec> kinds;
  for (const int64_t state_bytes : {4, 8, 12}) {
    kinds.push_back(
        {.storage = *rc::gen::element(Storage::kHeads, Storage::kLatent), .block_size = 4, .state_bytes = state_bytes});
  }
  return kinds;
}

// A few kinds, each used by several layers, as models do.
std::vector<CacheLayer> random_layers() {
  std::vector<CacheSpec> kinds;
  const auto num_kinds = in_range(0, 4);
  for (int i = 0; i < num_kinds; ++i) kinds.push_back(random_spec());
  if (kinds.empty()) kinds = uniform_kinds();
  std::vector<CacheLayer> layers;
  const auto num_layers = in_range(1, 9);
  for (int i = 0; i < num_layers; ++i) {
    layers.push_back({"l" + std::to_string(i), kinds[in_range<size_t>(0, kinds.size())]});
  }
  return layers;
}

PlanConfig random_config() {
  return {.max_model_len = in_range<int64_t>(1, 40),
          .max_in_flight_tokens = in_range<int64_t>(0, 20),
          .context_parallel_size = *rc::gen::element<int64_t>(1, 1, 2),
          .hybrid = *rc::gen::element(true, true, true, false),
          .draft_drops_block = *rc::gen::arbitrary<bool>(),
          .prefix_match_unit = {},
          .num_blocks_override = {},
          .layout = static_cast<Layout>(in_range(0, 6)),
          .budget_bytes = in_range<int64_t>(1000, 24000)};
}

// Who stored a row at a byte, as an owner number above 0; fails if two rows share it or it lies outside.
class ByteMap {
 public:
  explicit ByteMap(int64_t size) : owner_(static_cast<size_t>(size)) {}
  void claim(int64_t from, int64_t count, int owner) {
    RC_ASSERT(from >= 0 && from + count <= std::ssize(owner_));
    for (int64_t i = from; i < from + count; ++i) {
      RC_ASSERT(owner_[static_cast<size_t>(i)] == 0);
      owner_[static_cast<size_t>(i)] = owner;
    }
  }
  const std::vector<int>& owners() const { return owner_; }

 private:
  std::vector<int> owner_;
};

ByteMap bytes_of_group(const CachePlan& plan, const CacheGroup& group) {
  ByteMap map(plan.allocation_bytes);
  for (const LayerId layer : group.layers) {
    const LayerPlace& place = plan.layers[static_cast<size_t>(layer.value)];
    for (int64_t b = 0; b < plan.num_blocks; ++b) {
      for (int64_t h = 0; h < place.spec.num_kv_heads; ++h) {
        for (int64_t n = 0; n < states_per_block(place.spec); ++n) {
          map.claim(place.offset + b * place.strides.block + h * place.strides.head + n * place.strides.state,
                    place.spec.state_bytes, static_cast<int>(b) + 1);
        }
      }
    }
  }
  return map;
}

void expect_memory_is_sound(const CachePlan& plan) {
  std::vector<int> block_of(static_cast<size_t>(plan.allocation_bytes));
  const bool runnable = check_executable(plan).has_value();
  for (const CacheGroup& group : plan.groups) {
    const ByteMap map = bytes_of_group(plan, group);
    if (!runnable) continue;
    for (size_t i = 0; i < block_of.size(); ++i) {  // no byte belongs to two block ids, whatever the group
      if (map.owners()[i] == 0) continue;
      RC_ASSERT(block_of[i] == 0 || block_of[i] == map.owners()[i]);
      block_of[i] = map.owners()[i];
    }
  }
}

void expect_groups_partition(const CachePlan& plan, const std::vector<CacheLayer>& layers, const PlanConfig& config) {
  std::set<int32_t> seen;
  for (size_t g = 0; g < plan.groups.size(); ++g) {
    const CacheGroup& group = plan.groups[g];
    RC_ASSERT(std::ranges::is_sorted(group.layers));
    bool drafts = false;
    int64_t bytes = 0;
    for (const LayerId layer : group.layers) {
      const auto i = static_cast<size_t>(layer.value);
      RC_ASSERT(seen.insert(layer.value).second);
      RC_ASSERT(plan.layers[i].group == GroupId{static_cast<int32_t>(g)});
      RC_ASSERT(same_uniform_type(plan.layers[i].spec, group.spec));
      RC_ASSERT(plan.layers[i].spec.block_size % layers[i].spec.block_size == 0 ||
                layers[i].spec.storage == Storage::kHiddenState);
      RC_ASSERT(group.hit.alignment_tokens % plan.layers[i].spec.tokens_per_state == 0);
      drafts = drafts || layers[i].spec.is_draft;
      bytes += page_size_bytes(plan.layers[i].spec);
    }
    RC_ASSERT(bytes == group.bytes_per_block && bytes <= plan.bytes_per_block);
    RC_ASSERT(group.drops_block == (drafts && config.draft_drops_block));
    const int64_t tokens = tokens_per_block(group.spec, config.context_parallel_size);
    RC_ASSERT(plan.scheduler_block_size % tokens == 0);
    if (group.prefix_cacheable) {
      RC_ASSERT(tokens % plan.hash_block_size == 0);
      RC_ASSERT(plan.hash_block_size % group.hit.alignment_tokens == 0);
    }
  }
  RC_ASSERT(seen.size() == layers.size());
}

TEST(PlannerProperties, MemoryIsSoundAndGroupsPartitionTheLayers) {
  std::map<Grouping, int> planned;
  const auto one_plan = [&planned] {
    const auto layers = random_layers();
    const PlanConfig config = random_config();
    const auto plan = plan_cache(layers, config);
    if (!plan) {
      RC_ASSERT(!plan.error().message.empty() && !plan.error().param.empty());
      return;
    }
    ++planned[plan->grouping];
    RC_ASSERT(plan->allocation_bytes <= config.budget_bytes);
    RC_ASSERT(plan->request_blocks() <= plan->num_blocks - 1);
    expect_groups_partition(*plan, layers, config);
    expect_memory_is_sound(*plan);
  };
  EXPECT_TRUE(rc::check([&] {
    for (int i = 0; i < 6; ++i) one_plan();
  }));
  for (const Grouping g : {Grouping::kSingle, Grouping::kUniform, Grouping::kPacked, Grouping::kUnified}) {
    EXPECT_GT(planned[g], 0) << "the generator never reached grouping " << static_cast<int>(g);
  }
}

TEST(PlannerProperties, DraftsNeverChangeThePlan) {
  EXPECT_TRUE(rc::check([] {
    auto layers = random_layers();
    PlanConfig config = random_config();
    config.draft_drops_block = false;
    const auto before = plan_cache(layers, config);
    for (CacheLayer& layer : layers) layer.spec.is_draft = *rc::gen::arbitrary<bool>();
    const auto after = plan_cache(layers, config);
    RC_ASSERT(before.has_value() == after.has_value());
    if (!before) return;
    RC_ASSERT(before->groups.size() == after->groups.size());
    RC_ASSERT(before->bytes_per_block == after->bytes_per_block);
    for (size_t i = 0; i < layers.size(); ++i) {
      RC_ASSERT(before->layers[i].group == after->layers[i].group);
      RC_ASSERT(before->layers[i].offset == after->layers[i].offset);
      RC_ASSERT(before->layers[i].strides == after->layers[i].strides);
    }
  }));
}

// A fitted length fits, and one more token does not.
TEST(PlannerProperties, FittedLengthIsTheLongest) {
  int fitted = 0;
  EXPECT_TRUE(rc::check([&fitted] {
    const auto layers = random_layers();
    PlanConfig config = random_config();
    config.fit_max_model_len = true;
    config.max_model_len *= 1000;
    const auto plan = plan_cache(layers, config);
    if (!plan) return;
    RC_ASSERT(plan->max_model_len <= config.max_model_len);
    config.fit_max_model_len = false;
    const int64_t asked = std::exchange(config.max_model_len, plan->max_model_len);
    RC_ASSERT(plan_cache(layers, config).has_value());
    if (plan->max_model_len == asked) return;
    ++fitted;
    ++config.max_model_len;
    const auto longer = plan_cache(layers, config);
    RC_ASSERT(!longer && longer.error().kind == ErrorKind::kExhausted);
    RC_ASSERT(longer.error().message.find(" " + std::to_string(plan->max_model_len) + " tokens") != std::string::npos);
  }));
  EXPECT_GT(fitted, 0);
}

// LHBNC gives every head its own region. Groups whose heads differ in number would mix the bytes of different block
// ids, though their pages have one size.
TEST(Planner, RefusesToRunGroupsWhoseBlocksOverlap) {
  const std::vector<CacheLayer> layers = {
      {"window", {.retention = SlidingWindow{.window = 8}, .block_size = 4, .num_kv_heads = 4, .state_bytes = 8}},
      {"full", {.block_size = 4, .num_kv_heads = 2, .state_bytes = 16}}};
  PlanConfig config{.max_model_len = 16,
                    .max_in_flight_tokens = 4,
                    .prefix_match_unit = {},
                    .num_blocks_override = {},
                    .budget_bytes = 128 * 20};
  for (const Layout layout : {Layout::kLHBNC, Layout::kLBHNC, Layout::kBLHNC, Layout::kBHLNC}) {
    config.layout = layout;
    const auto plan = plan_cache(layers, config);
    ASSERT_TRUE(plan.has_value()) << plan.error().message;
    EXPECT_EQ(plan->groups.size(), 2U);
    const auto runnable = check_executable(*plan);
    EXPECT_EQ(runnable.has_value(), layout != Layout::kLHBNC) << name_of(layout);
  }
  config.layout = Layout::kLBNHC;
  EXPECT_EQ(check_executable(plan_cache(layers, config).value()).error().kind, ErrorKind::kUnsupported);
}

TEST(Planner, RefusesHostileInput) {
  const CacheSpec good{.state_bytes = 64};
  const PlanConfig config{
      .max_model_len = 64, .prefix_match_unit = {}, .num_blocks_override = {}, .budget_bytes = 1 << 20};
  const auto error_of = [](const CacheSpec& spec, const PlanConfig& c) {
    const std::vector<CacheLayer> layers = {{"layer0", spec}};
    const auto plan = plan_cache(layers, c);
    return plan ? Error{ErrorKind::kInternal, "no error"} : plan.error();
  };
  EXPECT_EQ(error_of(good, config).message, "no error");

  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  for (const int64_t bad : {int64_t{0}, int64_t{-1}, kHuge}) {
    for (const auto& [field, member] : {std::pair{"block_size", &CacheSpec::block_size},
                                        {"num_kv_heads", &CacheSpec::num_kv_heads},
                                        {"state_bytes", &CacheSpec::state_bytes},
                                        {"tokens_per_state", &CacheSpec::tokens_per_state}}) {
      CacheSpec spec = good;
      spec.*member = bad;
      const Error error = error_of(spec, config);
      EXPECT_EQ(error.param, field);
      EXPECT_NE(error.message.find("layer0"), std::string::npos);
    }
    PlanConfig c = config;
    c.max_model_len = bad;
    EXPECT_EQ(error_of(good, c).param, "max_model_len");
    c = config;
    c.num_blocks_override = bad;
    EXPECT_EQ(error_of(good, c).param, "num_blocks_override");
    c = config;
    c.prefix_match_unit = bad;
    EXPECT_EQ(error_of(good, c).param, "prefix_match_unit");
  }
  CacheSpec spec = good;
  spec.retention = SlidingWindow{.window = 0};
  EXPECT_EQ(error_of(spec, config).param, "window");
  spec.retention = ChunkedLocal{.chunk = 24};
  EXPECT_EQ(error_of(spec, config).param, "block_size");
  spec = good;
  spec.padded_page_bytes = 1;
  EXPECT_EQ(error_of(spec, config).param, "padded_page_bytes");
  spec = good;
  spec.tokens_per_state = 5;
  EXPECT_EQ(error_of(spec, config).param, "block_size");
  PlanConfig none = config;
  none.budget_bytes = 0;
  EXPECT_EQ(error_of(good, none).kind, ErrorKind::kExhausted);
  none.fit_max_model_len = true;
  EXPECT_EQ(error_of(good, none).kind, ErrorKind::kExhausted);
  PlanConfig wide = config;
  wide.num_blocks_override = std::numeric_limits<int32_t>::max();
  spec = good;
  spec.state_bytes = int64_t{1} << 36;
  EXPECT_EQ(error_of(spec, wide).param, "num_blocks_override");
}

TEST(Planner, RefusesAlignmentsWithoutACommonMultiple) {
  std::vector<CacheLayer> layers;
  for (const int64_t prime : {1000003, 1000033, 1000037, 1000039}) {
    layers.push_back({"l", {.state_bytes = 8, .block_stride_alignment = {StrideAlignment::Unit::kBytes, prime}}});
  }
  const PlanConfig config{.max_model_len = 16,
                          .prefix_match_unit = {},
                          .num_blocks_override = {},
                          .layout = Layout::kBLHNC,
                          .budget_bytes = int64_t{1} << 40};
  const auto plan = plan_cache(layers, config);
  ASSERT_FALSE(plan.has_value());
  EXPECT_EQ(plan.error().param, "block_stride_alignment");
}

TEST(Planner, UnknownLayoutNamesTheChoices) {
  const auto layout = parse_layout("HBLNC");
  ASSERT_FALSE(layout.has_value());
  EXPECT_NE(layout.error().message.find("LHBNC"), std::string::npos);
}

}  // namespace
}  // namespace quire::cache
