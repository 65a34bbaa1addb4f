// Execution of every kind of layer, proved on small models that mix them.
//
// One configuration, the reference, is compared with dense attention in double over whole sequences. All others
// (layouts, blocks, kernel pages, chunks of prompts, prefix cache, hybrid cache off, preemption, threads, instruction
// sets, NaN in free blocks) must give the reference's bits. The product of all choices is too large; each (layout,
// block, hybrid) is run once, with the others drawn from a fixed seed. Which of these run, and why others are refused,
// is pinned for all of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>
#include <set>

#include "support/core_harness.h"
#include "support/synthetic_model.h"

namespace quire::test {
namespace {

constexpr int kWindow = 40;
constexpr int kChunk = 192;  // a multiple of every block of tokens but the largest
constexpr int kAnswer = 12;  // tokens
constexpr int kBlocks[] = {16, 32, 64, 192, 1152};
constexpr size_t kBytes = size_t{32} << 20;
constexpr unsigned kSeed = 11;
constexpr double kExact = 2e-5;  // of fp32 to double, over all logits

using Layouts = std::set<std::string>;
const Layouts kAll = {"LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC"};
const Layouts kHeadRows = {"LBHNC", "LHBNC", "BLHNC", "BHLNC"};         // where a head's rows lie together
const Layouts kWholePages = {"LBHNC", "BLHNC"};                         // and the heads of a page
const Layouts kWholeRows = {"LBHNC", "LBNHC", "BLHNC", "BLNHC"};        // the same of one head
const Layouts kPadded = {"LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC"};  // BHLNC has no room for it

// Blocks at which a layout cannot hold a mix, where that follows from the bytes of its pages.
struct Unfit {
  Layouts layouts;
  std::set<int> blocks;
  std::set<std::string> numbers;
  const char* why;  // part of the message
};

struct Mix {
  const char* name;
  Layouts layouts;  // that can hold it, at some block size
  std::vector<SyntheticLayer> layers;
  std::vector<Unfit> unfit = {};
};

constexpr const char* kTooFarApart = "would overwrite each other";
constexpr const char* kPagesDiffer = "neither divides the largest page";

void PrintTo(const Mix& mix, std::ostream* out) { *out << mix.name; }

std::vector<Mix> mixes() {
  const std::set<std::string> any = {"bf16", "bf16 int8", "f32"};
  const SyntheticLayer full, window{.window = kWindow}, chunked{.chunk = kChunk};
  SyntheticLayer small_full{.q_heads = 2, .kv_heads = 1}, wide_window{.kv_heads = 4, .window = kWindow},
      odd_chunk{.q_heads = 3, .kv_heads = 3, .chunk = kChunk};
  const SyntheticLayer state{.state_heads = 3};
  const SyntheticLayer latent{.q_heads = 2, .rank = 24}, pooled{.rank = 32, .turned = false, .pool = 4, .top_k = 48},
      one_row{.rank = 32, .turned = false}, indexed{.q_heads = 2, .rank = 24, .pool = 1, .top_k = 48},
      follower{.q_heads = 2, .rank = 24, .follows = true};
  const SyntheticLayer one{.q_heads = 3, .kv_heads = 1, .head_dim = 24},
      one_window{.q_heads = 3, .kv_heads = 1, .head_dim = 24, .window = kWindow},
      one_chunk{.q_heads = 2, .kv_heads = 1, .head_dim = 24, .chunk = kChunk};
  return {
      {"FullAndWindow", kHeadRows, {window, window, full, window}},
      {"FullAndChunked", kHeadRows, {chunked, full, chunked}},
      {"WindowChunkedFull", kHeadRows, {window, chunked, full, chunked, window, full}},
      // Sharing layers with other query heads are attention groups of their own over the donor's cache group.
      {"SharedOverBoth",
       kHeadRows,
       {full,
        window,
        {.donor = 0},
        {.q_heads = 2, .window = kWindow, .donor = 1},
        {.q_heads = 6, .donor = 0},
        {.window = kWindow, .donor = 1}}},
      {"PagesThatDivide",
       kWholePages,
       {small_full, wide_window, small_full, {.head_dim = 32}},
       {{{"LBHNC"}, {192}, {"bf16 int8"}, kTooFarApart}}},
      {"PagesThatDoNotDivide",
       kWholePages,
       {full, odd_chunk, wide_window, {.q_heads = 6, .kv_heads = 3, .head_dim = 40}},
       {{{"LBHNC"}, {192}, any, kTooFarApart}}},
      {"QueryHeadsDiffer", kHeadRows, {{.q_heads = 2}, {.q_heads = 4}, {.q_heads = 6}, window}},
      {"OneHead", kAll, {one, one_window, one_chunk, one_window}},
      {"StateAndFull", kWholePages, {state, full, window, state}},
      {"StateAndOneHead", kPadded, {state, one, state, one_window, one_chunk}},
      {"SharedKeysAndGates",
       kWholePages,
       {{.state_heads = 4, .key_heads = 2},
        {.gated = true},
        {.head_dim = 8, .state_heads = 6, .key_heads = 2, .tiled = true},
        {.window = kWindow, .gated = true},
        {.donor = 1, .gated = true}}},
      {"LatentAndWindow",
       kWholePages,
       {latent,
        window,
        {.q_heads = 2, .rank = 24, .narrow = false},
        {.q_heads = 2, .head_dim = 8, .rank = 32, .turned = false}}},
      {"PooledOneHead",
       kPadded,
       {pooled, {.q_heads = 3, .kv_heads = 1}, one_row, {.q_heads = 3, .kv_heads = 1, .window = kWindow}},
       {{{"LBHNC", "LBNHC", "LHBNC"}, {32, 64, 192, 1152}, any, kPagesDiffer},
        {{"LBHNC", "LBNHC", "LHBNC"}, {16}, {"f32"}, kPagesDiffer}}},
      {"PooledLatent",
       kWholePages,
       {pooled, window, pooled},
       {{{"LBHNC"}, {32, 64, 192, 1152}, any, kPagesDiffer}, {{"LBHNC"}, {16}, {"bf16 int8", "f32"}, kPagesDiffer}}},
      {"ChannelsAndPools",
       {"BLHNC", "BLNHC"},
       {{.state_heads = 3, .gate_rank = 12, .streams = 4}, pooled, {.state_heads = 2, .gate_rank = 20}, pooled}},
      {"StreamsAndWindow", kHeadRows, {{.window = kWindow, .streams = 2}, full}},
      {"IndexedTokens", kWholeRows, {indexed, latent, indexed, {.q_heads = 3, .rank = 32, .follows = true}}},
      {"IndexedTokensAndWindow", kWholePages, {indexed, window, follower, window, follower}},
      {"EveryKind",
       {"BLHNC"},
       {state,
        pooled,
        full,
        latent,
        window,
        chunked,
        {.window = kWindow, .donor = 4},
        {.q_heads = 2, .head_dim = 8, .rank = 24, .pool = 8, .top_k = 32},
        indexed,
        follower},
       {{{"LBHNC", "LBNHC", "LHBNC"}, {1152}, any, kPagesDiffer}}},  // and its chunks
  };
}

struct Numbers {
  Profile profile = Profile::kBF16;
  KvCacheDtype cache = KvCacheDtype::kAuto;

  std::string text() const {
    return std::string(quire::name_of(profile)) + (cache == KvCacheDtype::kInt8 ? " int8" : "");
  }
};
constexpr Numbers kNumbers[] = {{Profile::kBF16}, {Profile::kBF16, KvCacheDtype::kInt8}, {Profile::kF32}};

struct Config {
  Numbers numbers;
  std::string layout = "BLHNC";
  int block = 64;
  bool hybrid = true;
  bool prefix_cache = false;
  std::vector<int> pages = {};  // of layer i: pages[i % size]; empty: the kernel's choice
  int budget = 2048;
  int seqs = 1;
  int threads = 1;
  std::string isa = {};  // empty: the best
  bool poison = false;
  bool scarce = false;  // blocks for one longest request, and few more

  std::string text() const {
    std::string p;
    for (const int page : pages) p += std::to_string(page) + ",";
    return numbers.text() + " " + layout + " block " + std::to_string(block) + " pages " + p + " budget " +
           std::to_string(budget) + " seqs " + std::to_string(seqs) + " threads " + std::to_string(threads) + " " +
           isa + (hybrid ? " hybrid" : "") + (prefix_cache ? " cached" : "") + (poison ? " poison" : "") +
           (scarce ? " scarce" : "");
  }

  EngineOptions options() const {
    EngineOptions o;
    o.kv_cache_layout = layout;
    o.kv_cache_dtype = numbers.cache;
    o.block_size = block;
    o.hybrid_kv_cache = hybrid;
    o.prefix_caching = prefix_cache;
    o.max_num_batched_tokens = std::max(budget, seqs);
    o.max_num_seqs = seqs;
    o.threads = threads;
    o.kv_cache_bytes = kBytes;
    return o;
  }
};

// The pages that layers called "layers.N" take.
exec::PageSizes page_sizes(const std::vector<int>& pages) {
  if (pages.empty()) return exec::page_sizes;
  return [pages](const model::AttentionSpec& a) {
    const auto layer = static_cast<size_t>(std::stoi(a.name.substr(a.name.find('.') + 1)));
    return cache::KernelBlockSizes{.exact = {pages[layer % pages.size()]}, .multiples_of = {}};
  };
}

Result<engine::Outline> outline(const SyntheticModel& model, const Config& c, const EngineOptions& options) {
  return engine::outline_spec(model.spec(), c.numbers.profile, options, 0, page_sizes(c.pages));
}

Result<std::unique_ptr<engine::Core>> make_core(const SyntheticModel& model, const Config& c) {
  EngineOptions options = c.options();
  auto plan = outline(model, c, options);
  if (!plan) return std::unexpected(plan.error());
  // Little more than the test needs, since every free block is poisoned in every step.
  const int64_t longest = plan->plan.request_blocks();
  const int64_t blocks = c.scarce ? longest + 2 : 4 * longest + 1;
  options.kv_cache_bytes = static_cast<size_t>(blocks * plan->plan.bytes_per_block);
  options.max_model_len = plan->plan.max_model_len;
  plan = outline(model, c, options);
  if (!plan) return std::unexpected(plan.error());
  auto loaded = engine::LoadedModel::make(std::move(*plan), model, options);
  if (!loaded) return std::unexpected(loaded.error());
  return engine::Core::create(std::move(*loaded), options);
}

bool has_mask(const SyntheticLayer& layer) { return layer.window > 0 || layer.chunk > 0 || layer.pool > 0; }

// Another mask in `layer` alone; a chunk is so many tokens shorter.
void change_mask(SyntheticLayer& layer, int chunk_step) {
  if (layer.window > 0) ++layer.window;
  if (layer.chunk > 0) layer.chunk -= chunk_step;
  layer.top_k += layer.pool;
}

std::vector<TokenId> random_tokens(size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<TokenId> ids(count);
  for (TokenId& id : ids) id = static_cast<TokenId>(random() % 96);
  return ids;
}

// Prompts past window and chunk, one in the middle of a block, one shorter than all; two share a prefix.
std::vector<Request> requests() {
  std::vector<Request> list;
  const auto longest = random_tokens(430, 1);
  list.push_back(greedy(longest, kAnswer));
  std::vector<TokenId> related(longest.begin(), longest.begin() + 260);
  const auto tail = random_tokens(37, 2);
  related.insert(related.end(), tail.begin(), tail.end());
  list.push_back(greedy(related, kAnswer));
  list.push_back(greedy(random_tokens(191, 3), kAnswer));
  list.push_back(greedy(random_tokens(5, 4), kAnswer));
  return list;
}

std::string difference(const std::vector<Answer>& got, const std::vector<Answer>& want) {
  for (size_t i = 0; i < want.size(); ++i) {
    size_t compared = 0;
    for (const auto& [position, logits] : want[i].logits) {
      const auto it = got[i].logits.find(position);
      if (it == got[i].logits.end()) continue;
      if (std::memcmp(it->second.data(), logits.data(), logits.size() * sizeof(float)) != 0)
        return "request " + std::to_string(i) + " differs at position " + std::to_string(position);
      ++compared;
    }
    if (got[i].tokens != want[i].tokens) return "request " + std::to_string(i) + " has other tokens";
    if (compared < kAnswer) return "request " + std::to_string(i) + " has too few logits";
  }
  return {};
}

// Over positions below `end`; infinite where a logit is not finite.
double worst_error(const Answer& answer, const std::vector<std::vector<double>>& want, int64_t end = 1 << 30) {
  double worst = 0;
  for (const auto& [position, logits] : answer.logits)
    if (position < end)
      for (size_t i = 0; i < logits.size(); ++i) {
        if (!std::isfinite(logits[i])) return HUGE_VAL;
        worst = std::max(worst, std::abs(static_cast<double>(logits[i]) - want[static_cast<size_t>(position)][i]));
      }
  return worst;
}

class Hybrid : public ::testing::TestWithParam<Mix> {
 protected:
  SyntheticModel model_{GetParam().layers, kSeed};
  uint64_t preemptions_ = 0;
  int64_t cached_tokens_ = 0;

  // States and rings cannot be kept like keys and values.
  static bool needs_hybrid() {
    return std::ranges::any_of(GetParam().layers,
                               [](const SyntheticLayer& l) { return l.state_heads > 0 || l.pool > 1; });
  }

  // Up to here every layer reads all that its mask leaves. Behind it an indexer chooses, and rounding changes choices.
  static int64_t unchosen_positions() {
    int64_t end = 1 << 30;
    for (const SyntheticLayer& l : GetParam().layers)
      if (l.pool > 0) end = std::min<int64_t>(end, l.top_k);
    return end;
  }

  // Every request alone, in one piece, with the logits of all positions.
  static std::vector<Answer> alone(const SyntheticModel& model, const Config& c, const std::vector<Request>& list) {
    auto core = make_core(model, c);
    EXPECT_TRUE(core) << core.error().message;
    CoreHarness harness(std::move(*core));
    std::vector<Answer> answers;
    for (Request request : list) {
      request.sampling.prompt_logprobs = 0;
      answers.push_back(harness.run({request}).front());
    }
    return answers;
  }
  std::vector<Answer> reference(const Numbers& numbers) { return alone(model_, {.numbers = numbers}, requests()); }

  struct Refusal {
    std::string param;  // empty: it runs
    std::string why;    // part of the message
  };

  // Of a configuration with the kernels' own pages, by docs/cache.md.
  static Refusal refusal(const Config& c) {
    const Mix& mix = GetParam();
    const auto any = [&](auto is) { return std::ranges::any_of(mix.layers, is); };
    if (!c.hybrid && needs_hybrid()) return {"disable_hybrid_kv_cache_manager", "all layers must keep the cache alike"};
    for (const Unfit& u : mix.unfit)
      if (c.hybrid && u.layouts.contains(c.layout) && u.blocks.contains(c.block) &&
          u.numbers.contains(c.numbers.text()))
        return {"kv_cache_layout", u.why};
    if (c.hybrid && kChunk % c.block != 0 && any([](const SyntheticLayer& l) { return l.chunk > 0; }))
      return {"block_size", "must be a multiple of the cache block"};
    if (mix.layouts.contains(c.layout)) return {};
    if (c.layout == "BLNHC") return {"kv_cache_layout", "interleaves the rows"};
    if (c.layout == "BHLNC") return {"kv_cache_layout", "needs pages of one size"};
    return {"kv_cache_layout", ""};  // the layer-outermost ones have several reasons, by the bytes of a page
  }

  // Pages smaller than a block space the blocks of their group apart. Other groups are spaced otherwise, which only the
  // block-outermost orders can do.
  static bool refused_for_its_pages(const Config& c, const Error& error) {
    return !c.pages.empty() && c.layout.starts_with('L') && error.param == "kv_cache_layout" &&
           error.message.find(kTooFarApart) != std::string::npos;
  }

  // Empty if the configuration gives the reference's bits, or its pages do not fit; counts what ran.
  std::string run(const Config& c, const std::vector<Answer>& want, int& ran) {
    if (!c.isa.empty()) setenv("QUIRE_ISA", c.isa.c_str(), 1);
    auto core = make_core(model_, c);
    unsetenv("QUIRE_ISA");
    if (!core) return refused_for_its_pages(c, core.error()) ? "" : "fails: " + core.error().message;
    ++ran;
    CoreHarness harness(std::move(*core));
    harness.poison_free_blocks(c.poison);
    for (int round = 0; round < (c.prefix_cache ? 2 : 1); ++round) {
      const auto answers = harness.run(requests());
      for (const Answer& answer : answers) cached_tokens_ += answer.cached_tokens;
      if (auto different = difference(answers, want); !different.empty()) return different;
    }
    preemptions_ += harness.core().stats().preemptions;
    return {};
  }
};

// Dense logits are computed once, of the fp32 answer; other numbers are compared up to where their answer parts from
// it.
TEST_P(Hybrid, AgreesWithDenseAttention) {
  const auto list = requests();
  std::vector<std::vector<TokenId>> tokens;
  std::vector<std::vector<std::vector<double>>> dense;
  for (const Numbers& numbers : {kNumbers[2], kNumbers[0], kNumbers[1]}) {
    const bool exact = numbers.profile == Profile::kF32;
    const double tolerance = exact ? kExact : numbers.cache == KvCacheDtype::kInt8 ? 0.2 : 0.15;
    const auto answers = reference(numbers);
    for (size_t i = 0; i < list.size(); ++i) {
      auto own = list[i].prompt;
      own.insert(own.end(), answers[i].tokens.begin(), answers[i].tokens.end() - 1);
      ASSERT_EQ(answers[i].logits.size(), own.size());
      if (exact) {
        dense.push_back(dense_logits(model_, own));
        tokens.push_back(own);
      }
      const auto same = std::ranges::mismatch(own, tokens[i]).in1 - own.begin();
      const int64_t end = exact ? same : std::min<int64_t>(same, unchosen_positions());
      EXPECT_LT(worst_error(answers[i], dense[i], end), tolerance) << numbers.text() << " request " << i;
    }
  }
}

// The tensors that are packed, and the small ones that are not.
TEST_P(Hybrid, LoadingIsToldUpToTheLastTensor) {
  const Config c;
  EngineOptions options = c.options();
  std::vector<double> told;
  options.progress = [&](double part) { told.push_back(part); };
  auto plan = outline(model_, c, options);
  ASSERT_TRUE(plan) << plan.error().message;
  ASSERT_TRUE(engine::LoadedModel::make(std::move(*plan), model_, options));
  EXPECT_TRUE(std::ranges::is_sorted(told));
  EXPECT_EQ(std::ranges::count(told, 1.0), 1);
  EXPECT_EQ(told.back(), 1.0);
}

// The comparison above would notice any one layer whose mask is one token off, and in all numbers a layer's mask shows.
TEST_P(Hybrid, EveryLayersMaskCounts) {
  const std::vector<Request> list = {requests().front()};
  const auto& layers = GetParam().layers;
  const auto exact = alone(model_, {.numbers = {Profile::kF32}}, list);
  const auto& tokens = list[0].prompt;
  for (size_t l = 0; l < layers.size(); ++l) {
    if (!has_mask(layers[l])) continue;
    auto changed = layers;
    change_mask(changed[l], 1);
    EXPECT_GT(worst_error(exact[0], dense_logits({changed, kSeed}, tokens), std::ssize(tokens)), 2 * kExact) << l;
  }
  for (const Numbers& numbers : kNumbers) {
    const Config config{.numbers = numbers, .block = 16};
    const auto want = alone(model_, config, list);
    for (size_t l = 0; l < layers.size(); ++l) {
      if (!has_mask(layers[l]) || layers[l].donor >= 0) continue;
      auto changed = layers;
      for (size_t reader = l; reader < layers.size(); ++reader)  // has its donor's mask
        if (reader == l || layers[reader].donor == static_cast<int>(l)) change_mask(changed[reader], config.block);
      const auto different = difference(alone({changed, kSeed}, config, list), want);
      EXPECT_NE(different.find("differs at position"), std::string::npos) << l << " " << numbers.text();
    }
  }
}

TEST_P(Hybrid, WhatCannotRunIsRefusedAndNothingElse) {
  for (const Numbers& numbers : kNumbers)
    for (const std::string& layout : kAll)
      for (const int block : kBlocks)
        for (const bool hybrid : {true, false}) {
          const Config c{.numbers = numbers, .layout = layout, .block = block, .hybrid = hybrid};
          const Refusal expected = refusal(c);
          const auto plan = outline(model_, c, c.options());
          ASSERT_EQ(plan.has_value(), expected.param.empty()) << c.text() << (plan ? "" : plan.error().message);
          if (plan) continue;
          EXPECT_EQ(plan.error().kind, ErrorKind::kUnsupported);
          EXPECT_EQ(plan.error().param, expected.param) << c.text() << plan.error().message;
          EXPECT_NE(plan.error().message.find(expected.why), std::string::npos) << c.text() << plan.error().message;
        }
}

std::vector<std::string> instruction_sets() {
  std::vector<std::string> names;
  for (const char* name : {"scalar", "avx2", "avx512"})
    if (kernels::kernel_table(*parse_isa(name), detect_cpu())) names.emplace_back(name);
  return names;
}

// Choices that must not show, drawn for each (layout, block, hybrid).
Config drawn(std::mt19937& random, Config c) {
  const auto pick = [&](const auto& from) { return from[random() % from.size()]; };
  std::vector<std::vector<int>> pages = {{}, {16}};
  for (const int page : {32, 64})
    if (c.block % page == 0) pages.push_back({page});
  if (c.block % 64 == 0) pages.insert(pages.end(), {{16, 64}, {64, 32, 16}});
  c.pages = pick(pages);
  c.budget = pick(std::vector<int>{3, 7, 33, 100, 256, 2048});
  c.seqs = pick(std::vector<int>{1, 2, 3, 4});
  c.prefix_cache = random() % 2 == 0;
  c.poison = random() % 2 == 0;
  if (random() % 4 == 0) c.threads = 2;
  if (random() % 4 == 0) c.isa = pick(instruction_sets());
  c.scarce = random() % 3 == 0;
  if (c.scarce) c.seqs = 4;
  return c;
}

TEST_P(Hybrid, EveryConfigurationGivesTheSameBits) {
  std::mt19937 random(2026);
  int ran = 0, tried = 0;
  Layouts layouts;
  std::vector<std::vector<Answer>> want;
  for (const Numbers& numbers : kNumbers) want.push_back(reference(numbers));
  const auto modes = needs_hybrid() ? std::vector{true, true} : std::vector{true, false};
  for (const std::string& layout : kAll) {
    for (const int block : kBlocks) {
      for (const bool hybrid : modes) {
        Config c = drawn(random, {.numbers = {}, .layout = layout, .block = block, .hybrid = hybrid});
        size_t numbers = std::array<size_t, 4>{0, 0, 1, 2}[random() % 4];
        c.numbers = kNumbers[numbers];
        if (!refusal(c).param.empty()) c.numbers = kNumbers[numbers = 0];
        if (!refusal(c).param.empty()) continue;
        ++tried;
        const int before = ran;
        EXPECT_EQ(run(c, want[numbers], ran), "") << c.text();
        if (ran > before) layouts.insert(layout);
      }
    }
  }
  EXPECT_EQ(layouts, GetParam().layouts);
  EXPECT_GT(preemptions_, 0U);
  EXPECT_GT(cached_tokens_, 0);
  std::printf("%s: %d of %d configurations ran, %llu preemptions, %lld cached tokens\n", GetParam().name, ran, tried,
              static_cast<unsigned long long>(preemptions_), static_cast<long long>(cached_tokens_));
}

INSTANTIATE_TEST_SUITE_P(Mixes, Hybrid, ::testing::ValuesIn(mixes()),
                         [](const auto& info) { return std::string(info.param.name); });

// With one state a request, and with a checkpoint at every block.
TEST(HybridLengths, AStateServesSixteenMillionPositions) {
  const SyntheticLayer state{.state_heads = 3}, window{.window = kWindow};
  const SyntheticModel model(std::vector{state, window, state}, kSeed);
  for (const bool prefix_cache : {false, true}) {
    const Config c{.numbers = {}, .prefix_cache = prefix_cache, .budget = 100, .seqs = 2};
    std::vector<std::vector<Answer>> answers;
    for (const int64_t length : {int64_t{model.spec().max_positions}, int64_t{1} << 24}) {
      model::ModelSpec spec = model.spec();
      spec.max_positions = length;
      EngineOptions options = c.options();
      options.max_model_len = length;
      auto plan = engine::outline_spec(spec, c.numbers.profile, options, 0);
      ASSERT_TRUE(plan) << plan.error().message;
      EXPECT_EQ(plan->plan.max_model_len, length);
      for (const cache::CacheGroup& group : plan->plan.groups)
        if (cache::keeps<cache::RecurrentState>(group.spec)) {
          EXPECT_EQ(group.request_blocks, prefix_cache ? 2 : 1);
        }
      auto loaded = engine::LoadedModel::make(std::move(*plan), model, options);
      ASSERT_TRUE(loaded) << loaded.error().message;
      auto core = engine::Core::create(std::move(*loaded), options);
      ASSERT_TRUE(core) << core.error().message;
      CoreHarness harness(std::move(*core));
      harness.poison_free_blocks(true);
      answers.push_back(harness.run(requests()));
    }
    EXPECT_EQ(difference(answers[1], answers[0]), "");
  }
}

}  // namespace
}  // namespace quire::test
