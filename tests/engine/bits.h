// The bit contract: the logits of a request are the same bits whatever runs beside it and however it is run.
//
// Every case is compared by memcmp with the request run alone, in one chunk, without cache, on one thread. The programs
// that include this say for which models; they are several so that they can run at a time.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "support/core_harness.h"

namespace quire::test {
namespace {

constexpr int kVocabulary = 256;

std::vector<TokenId> random_prompt(int length, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<TokenId> ids(static_cast<size_t>(length));
  for (TokenId& id : ids) id = static_cast<TokenId>(random() % kVocabulary);
  return ids;
}

// Requests longer than the window and than several blocks, some with common prefixes; the last ones for numbers.
std::vector<Request> requests() {
  std::vector<Request> list;
  const auto shared = random_prompt(100, 7);
  for (int i = 0; i < 5; ++i) {
    auto prompt = i % 2 == 0 ? shared : random_prompt(40 + 67 * i, static_cast<unsigned>(i));
    const auto tail = random_prompt(1 + 13 * i, static_cast<unsigned>(100 + i));
    prompt.insert(prompt.end(), tail.begin(), tail.end());
    list.push_back(greedy(std::move(prompt), 20));
    if (i == 3) {
      list.back().sampling.temperature = 0.8F;
      list.back().sampling.seed = 99;
    }
  }
  auto prompt = shared;
  prompt.insert(prompt.end(), shared.begin(), shared.end());
  list.push_back(pooled(prompt));
  list.push_back(pooled(std::move(prompt), {3, 200}));
  return list;
}

EngineOptions alone(const std::string& model, Profile profile) {
  EngineOptions options;
  options.model = model;
  options.profile = profile;
  options.prefix_caching = false;
  options.max_num_seqs = 1;
  options.max_num_batched_tokens = 2048;
  options.kv_cache_bytes = size_t{64} << 20;
  options.threads = 1;
  return options;
}

void expect_same(const std::vector<Answer>& got, const std::vector<Answer>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    SCOPED_TRACE("request " + std::to_string(i));
    ASSERT_EQ(got[i].tokens, want[i].tokens);
    ASSERT_EQ(got[i].pooled.size(), want[i].pooled.size());
    if (!want[i].pooled.empty()) {
      ASSERT_EQ(std::memcmp(got[i].pooled.data(), want[i].pooled.data(), want[i].pooled.size() * sizeof(float)), 0);
      continue;
    }
    size_t compared = 0;
    for (const auto& [position, logits] : want[i].logits) {
      const auto it = got[i].logits.find(position);
      ASSERT_NE(it, got[i].logits.end()) << "no logits at position " << position;
      ASSERT_EQ(std::memcmp(it->second.data(), logits.data(), logits.size() * sizeof(float)), 0)
          << "position " << position;
      ++compared;
    }
    ASSERT_GE(compared, 20U);
  }
}

struct BitsCase {
  std::string model;
  Profile profile;
  KvCacheDtype cache = KvCacheDtype::kAuto;
  LmHeadQuantization head = LmHeadQuantization::kAuto;
};

std::string name_of(const ::testing::TestParamInfo<BitsCase>& info) {
  std::string name = info.param.model.substr(info.param.model.find('/') + 1);
  name = name.substr(0, name.find('.'));
  name += info.param.profile == Profile::kBF16 ? "_bf16" : info.param.profile == Profile::kQ8 ? "_q8" : "_f32";
  if (info.param.head == LmHeadQuantization::kInt8) name += "_int8_head";
  return info.param.cache == KvCacheDtype::kInt8 ? name + "_int8" : name;
}

class Bits : public ::testing::TestWithParam<BitsCase> {
 protected:
  void SetUp() override {
    model_ = std::string(QUIRE_TEST_DATA) + "/models/" + GetParam().model;
    CoreHarness harness(base());
    for (auto& request : requests()) want_.push_back(harness.run({request}).front());
  }

  EngineOptions base() const {
    EngineOptions options = alone(model_, GetParam().profile);
    options.kv_cache_dtype = GetParam().cache;
    options.lm_head_quantization = GetParam().head;
    return options;
  }
  // Whether layers have pages of several sizes, which only some orders can hold.
  bool pages_differ() const {
    const auto loaded = engine::LoadedModel::load(base());
    EXPECT_TRUE(loaded);
    const auto& layers = (*loaded)->storage.plan().layers;
    const int64_t first = cache::unpadded_page_bytes(layers.front().spec);
    return std::ranges::any_of(layers,
                               [&](const cache::LayerPlace& l) { return cache::unpadded_page_bytes(l.spec) != first; });
  }
  // Whether some layers have chunks, of 32 tokens.
  bool has_chunks() const { return GetParam().model == "llama4"; }
  // Whether some layers are recurrent.
  bool keeps_states() const {
    const auto loaded = engine::LoadedModel::load(base());
    EXPECT_TRUE(loaded);
    return std::ranges::any_of((*loaded)->storage.plan().groups, [](const cache::CacheGroup& group) {
      return cache::keeps<cache::RecurrentState>(group.spec);
    });
  }
  std::vector<Answer> run(const EngineOptions& options, bool poison = false) {
    CoreHarness harness(options);
    harness.poison_free_blocks(poison);
    return harness.run(requests());
  }

  std::string model_;
  std::vector<Answer> want_;
};

TEST_P(Bits, InOneBatch) {
  EngineOptions options = base();
  options.max_num_seqs = 8;
  expect_same(run(options), want_);
}

TEST_P(Bits, InChunksOfAnySize) {
  for (int chunk : {1, 7, 16, 33, 100}) {
    SCOPED_TRACE(chunk);
    EngineOptions options = base();
    options.max_num_seqs = 1;
    options.max_num_batched_tokens = chunk;
    expect_same(run(options), want_);
  }
}

TEST_P(Bits, InBatchesOfChunks) {
  EngineOptions options = base();
  options.max_num_seqs = 5;
  options.max_num_batched_tokens = 23;
  expect_same(run(options), want_);
}

TEST_P(Bits, WithPrefixCacheColdAndWarm) {
  EngineOptions options = base();
  options.prefix_caching = true;
  options.max_num_seqs = 3;
  CoreHarness harness(options);
  expect_same(harness.run(requests()), want_);
  const auto warm = harness.run(requests());
  int cached = 0;
  for (const Answer& answer : warm) cached += answer.cached_tokens;
  EXPECT_GT(cached, 0);
  expect_same(warm, want_);
}

// In a pool that holds little more than the longest request prefixes come and go; what is found again must be the same.
TEST_P(Bits, WithPrefixesEvictedAndFoundAgain) {
  EngineOptions options = base();
  options.prefix_caching = true;
  options.max_model_len = 512;
  options.max_num_seqs = 3;
  for (size_t bytes = size_t{1} << 12;; bytes += size_t{1} << 12) {
    ASSERT_LT(bytes, size_t{64} << 20);
    options.kv_cache_bytes = bytes;
    if (engine::LoadedModel::load(options)) break;
  }
  CoreHarness harness(options);
  harness.poison_free_blocks(true);
  int cached = 0;
  for (int round = 0; round < 3; ++round) {
    const auto answers = harness.run(requests());
    expect_same(answers, want_);
    for (const Answer& answer : answers) cached += answer.cached_tokens;
  }
  EXPECT_GT(cached, 0);
  uint64_t evictions = 0;
  for (const CacheGroupStats& group : harness.core().stats().cache_groups) evictions += group.evictions;
  EXPECT_GT(evictions, 0U);
}

TEST_P(Bits, AfterPreemption) {
  EngineOptions options = base();
  options.max_model_len = 512;
  options.max_num_batched_tokens = 64;
  options.max_num_seqs = 5;
  // The smallest pool that admits one longest request: less than the five need together.
  for (size_t bytes = size_t{1} << 12;; bytes += size_t{1} << 12) {
    ASSERT_LT(bytes, size_t{64} << 20);
    options.kv_cache_bytes = bytes;
    if (engine::LoadedModel::load(options)) break;
  }
  CoreHarness harness(options);
  expect_same(harness.run(requests()), want_);
  EXPECT_GT(harness.core().stats().preemptions, 0U);
}

TEST_P(Bits, OnTwoThreads) {
  EngineOptions options = base();
  options.threads = 2;
  options.max_num_seqs = 4;
  expect_same(run(options), want_);
}

TEST_P(Bits, WithoutTheHybridCache) {
  EngineOptions options = base();
  options.hybrid_kv_cache = false;
  options.max_num_seqs = 4;
  if (!keeps_states()) return expect_same(run(options), want_);
  const auto refused = engine::LoadedModel::load(options);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().param, "disable_hybrid_kv_cache_manager");
}

TEST_P(Bits, InBlocksOfAnySizeAndLayout) {
  for (int block : {16, 32, 64, 192}) {
    for (const char* layout : {"LBHNC", "LHBNC", "BLHNC", "BHLNC"}) {
      SCOPED_TRACE(std::to_string(block) + " " + layout);
      EngineOptions options = base();
      options.block_size = block;
      options.kv_cache_layout = layout;
      options.max_num_seqs = 4;
      if (block > 32 && has_chunks()) {
        const auto refused = engine::LoadedModel::load(options);
        ASSERT_FALSE(refused);
        EXPECT_EQ(refused.error().param, "block_size");
        continue;
      }
      // hybrid_test has which orders hold what.
      if (pages_differ() && layout != std::string("BLHNC"))
        if (const auto loaded = engine::LoadedModel::load(options); !loaded) {
          EXPECT_EQ(loaded.error().param, "kv_cache_layout");
          continue;
        }
      expect_same(run(options), want_);
    }
  }
}

TEST_P(Bits, WithNaNInFreeBlocks) {
  EngineOptions options = base();
  options.prefix_caching = true;
  options.max_num_seqs = 4;
  options.max_num_batched_tokens = 50;
  expect_same(run(options, true), want_);
}

TEST_P(Bits, OnEveryInstructionSet) {
  const CpuFeatures cpu = detect_cpu();
  for (const char* isa : {"scalar", "avx2", "avx512"}) {
    SCOPED_TRACE(isa);
    if (!kernels::kernel_table(*parse_isa(isa), cpu)) continue;
    setenv("QUIRE_ISA", isa, 1);
    EngineOptions options = base();
    options.max_num_seqs = 4;
    const auto answers = run(options);
    unsetenv("QUIRE_ISA");
    expect_same(answers, want_);
  }
}

TEST_P(Bits, TheFingerprintNamesTheCache) {
  EngineOptions options = base();
  const auto fingerprint = [&] { return CoreHarness(options).core().info().fingerprint; };
  const std::string own = fingerprint();
  options.kv_cache_dtype = GetParam().cache == KvCacheDtype::kInt8 ? KvCacheDtype::kAuto : KvCacheDtype::kInt8;
  EXPECT_NE(fingerprint(), own);
}

}  // namespace
}  // namespace quire::test
