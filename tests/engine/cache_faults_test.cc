// Faults of hybrid caches that show in answers, each on a small model that would have it. Two threads compute, so that
// the mixed workloads here are those that run under ThreadSanitizer, too. Faults of cache and scheduler alone stand
// beside their code.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "support/core_harness.h"
#include "support/synthetic_model.h"

namespace quire::test {
namespace {

constexpr int kBlock = 32;
constexpr int kAnswer = 8;  // tokens

const SyntheticLayer kFull, kWindow{.window = 40}, kState{.state_heads = 3};

EngineOptions options_of(bool prefix_caching, int num_seqs) {
  EngineOptions options;
  options.block_size = kBlock;
  options.prefix_caching = prefix_caching;
  options.max_num_seqs = num_seqs;
  options.max_num_batched_tokens = 64;
  options.max_model_len = 256;
  options.threads = 2;
  return options;
}

// An engine whose pool has room for one longest request, and `more` blocks.
CoreHarness harness_of(const SyntheticModel& model, EngineOptions options, int64_t more) {
  options.kv_cache_bytes = size_t{32} << 20;
  const auto outline = [&] { return engine::outline_spec(model.spec(), Profile::kBF16, options, 0); };
  const auto ample = outline();
  if (!ample) throw std::runtime_error(ample.error().message);
  options.kv_cache_bytes = static_cast<size_t>((ample->plan.request_blocks() + 1 + more) * ample->plan.bytes_per_block);
  auto planned = outline();
  if (!planned) throw std::runtime_error(planned.error().message);
  auto loaded = engine::LoadedModel::make(std::move(*planned), model, options);
  if (!loaded) throw std::runtime_error(loaded.error().message);
  auto core = engine::Core::create(std::move(*loaded), options);
  if (!core) throw std::runtime_error(core.error().message);
  return CoreHarness(std::move(*core));
}

std::vector<TokenId> random_tokens(int length, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<TokenId> ids(static_cast<size_t>(length));
  for (TokenId& id : ids) id = static_cast<TokenId>(random() % 96);
  return ids;
}

std::vector<Request> requests() {
  std::vector<Request> list;
  for (const int length : {150, 97, 210, 33}) {
    list.push_back(greedy(random_tokens(length, static_cast<unsigned>(length)), kAnswer));
  }
  return list;
}

// Every answer from an engine of its own.
std::vector<Answer> fresh_answers(const SyntheticModel& model, KvCacheDtype dtype = KvCacheDtype::kAuto) {
  std::vector<Answer> answers;
  for (const Request& request : requests()) {
    EngineOptions options = options_of(false, 1);
    options.kv_cache_dtype = dtype;
    answers.push_back(harness_of(model, options, 0).run({request}).front());
  }
  return answers;
}

void expect_same(const std::vector<Answer>& got, const std::vector<Answer>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(got[i].tokens, want[i].tokens) << "request " << i;
    size_t compared = 0;
    for (const auto& [position, logits] : want[i].logits) {
      const auto it = got[i].logits.find(position);
      if (it == got[i].logits.end()) continue;
      EXPECT_EQ(std::memcmp(it->second.data(), logits.data(), logits.size() * sizeof(float)), 0)
          << "request " << i << " at position " << position;
      ++compared;
    }
    EXPECT_GE(compared, size_t{kAnswer});
  }
}

// Blocks go from group to group, from keys to states and back, with whatever is in them: here all NaN.
TEST(CacheFaults, StaleBytesNeverBecomeNaN) {
  for (const KvCacheDtype dtype : {KvCacheDtype::kBFloat16, KvCacheDtype::kInt8}) {
    const SyntheticModel model(std::vector{kFull, kState, kWindow, kState, kFull}, 3);
    EngineOptions options = options_of(true, 3);
    options.kv_cache_dtype = dtype;
    CoreHarness harness = harness_of(model, options, 4);
    harness.poison_free_blocks(true);
    const auto want = fresh_answers(model, dtype);
    for (int round = 0; round < 2; ++round) expect_same(harness.run(requests()), want);
  }
}

// A request's state begins at zero, not with what the block's last owner left there.
TEST(CacheFaults, AStateBeginsAtZeroInAUsedBlock) {
  const SyntheticModel model(std::vector{kState, kFull, kState}, 4);
  for (const bool prefix_caching : {false, true}) {
    CoreHarness harness = harness_of(model, options_of(prefix_caching, 2), 0);
    const auto want = fresh_answers(model);
    for (int round = 0; round < 2; ++round) expect_same(harness.run(requests()), want);
  }
}

// A state is hit where a step ended at a block's boundary, with the tokens up to there and no others.
TEST(CacheFaults, HitsOnRecurrentLayersGiveTheColdAnswer) {
  const SyntheticModel model(std::vector{kState, kFull, kWindow, kState}, 5);
  const auto want = fresh_answers(model);
  CoreHarness harness = harness_of(model, options_of(true, 2), 60);
  expect_same(harness.run(requests()), want);
  const auto warm = harness.run(requests());
  expect_same(warm, want);
  for (size_t i = 0; i < want.size(); ++i) {
    const auto length = static_cast<int>(requests()[i].prompt.size());
    EXPECT_EQ(warm[i].cached_tokens, (length - 1) / kBlock * kBlock) << "request " << i;
  }
}

// What restricts a request's tokens is its own, whatever row of the batch it is in: rows move as requests end, start,
// and give way.
TEST(CacheFaults, TokenMasksFollowTheirRequests) {
  const SyntheticModel model(std::vector{kFull, kWindow}, 6);
  CoreHarness harness = harness_of(model, options_of(false, 4), 2);
  std::vector<Request> list = requests();
  for (size_t i = 0; i < list.size(); ++i) {
    list[i].sampling.max_tokens = 20 + 7 * static_cast<int>(i);
    for (TokenId t = 0; t < 6; ++t) list[i].sampling.allowed_token_ids.push_back(static_cast<TokenId>(20 * i) + t);
  }
  const auto answers = harness.run(list);
  EXPECT_GT(harness.core().stats().preemptions, 0U);
  for (size_t i = 0; i < list.size(); ++i) {
    const auto& allowed = list[i].sampling.allowed_token_ids;
    EXPECT_EQ(static_cast<int>(answers[i].tokens.size()), list[i].sampling.max_tokens);
    for (const TokenId token : answers[i].tokens) {
      EXPECT_NE(std::ranges::find(allowed, token), allowed.end()) << "request " << i << ", token " << token;
    }
  }
}

// Caching is on, and nothing is found, for the prompts are too short: model and request say so.
TEST(CacheFaults, TheLeastThatIsReusedIsTold) {
  const SyntheticModel model(std::vector{kFull, kWindow}, 7);
  CoreHarness harness = harness_of(model, options_of(true, 1), 20);
  EXPECT_EQ(harness.core().info().minimum_reuse_tokens, kBlock);
  Request request = greedy(random_tokens(kBlock, 1), 1);
  request.explain_cache = true;
  harness.run({request});
  const Answer again = harness.run({request}).front();
  EXPECT_EQ(again.cached_tokens, 0);
  ASSERT_TRUE(again.cache_report);
  EXPECT_EQ(again.cache_report->minimum_reuse_tokens, kBlock);
  for (const GroupReport& group : again.cache_report->groups) {
    EXPECT_EQ(group.misses, (std::vector<CacheMiss>{{0, kBlock, MissReason::kBelowMinimum}}));
  }
}

// With check_integrity a step ends with what is wrong, here a reference that nobody has; without it nobody looks.
TEST(CacheIntegrity, IsCheckedAfterEveryStepIfAsked) {
  const SyntheticModel model(std::vector{kFull, kWindow}, 9);
  for (const bool check : {false, true}) {
    EngineOptions options = options_of(true, 1);
    options.check_integrity = check;
    CoreHarness harness = harness_of(model, options, 4);
    harness.add(greedy(random_tokens(40, 1), 4));
    EXPECT_TRUE(harness.core().step());
    const cache::BlockPool& pool = harness.core().scheduler().cache().pool();
    const BlockId free = pool.free_list().front();
    const_cast<cache::BlockPool&>(pool).hold({&free, 1});
    const auto done = harness.core().step();
    ASSERT_EQ(done.has_value(), !check);
    if (check) {
      EXPECT_EQ(done.error().kind, ErrorKind::kInternal);
      EXPECT_NE(done.error().message.find("block " + std::to_string(free.value)), std::string::npos)
          << done.error().message;
    }
  }
}

// A copy takes all that a block holds of its group, in every order of the memory, and nothing else changes.
TEST(CacheCopies, ACopyTakesTheWholeBlockOfItsGroupAlone) {
  const SyntheticModel model(std::vector{kFull, kWindow, kFull}, 8);
  for (const char* layout : {"LBHNC", "LHBNC", "BLHNC", "BHLNC"}) {
    EngineOptions options = options_of(true, 1);
    options.kv_cache_layout = layout;
    options.kv_cache_bytes = size_t{1} << 20;
    auto outline = engine::outline_spec(model.spec(), Profile::kBF16, options, 0);
    ASSERT_TRUE(outline) << outline.error().message;
    Allocator allocator;
    auto storage = exec::KvStorage::make(std::move(outline->plan), allocator);
    ASSERT_TRUE(storage);
    auto* bytes = reinterpret_cast<uint8_t*>(storage->base());
    std::mt19937 random(1);
    for (size_t i = 0; i < storage->size(); ++i) bytes[i] = static_cast<uint8_t>(random());
    std::vector<uint8_t> want(bytes, bytes + storage->size());
    const cache::CachePlan& plan = storage->plan();
    for (const LayerId layer : plan.groups[1].layers) {
      const cache::LayerPlace& place = plan.layers[static_cast<size_t>(layer.value)];
      for (int64_t head = 0; head < place.spec.num_kv_heads; ++head)
        for (int64_t row = 0; row < cache::states_per_block(place.spec); ++row)
          for (int64_t byte = 0; byte < place.spec.state_bytes; ++byte) {
            const int64_t at = place.offset + head * place.strides.head + row * place.strides.state + byte;
            want[static_cast<size_t>(at + 5 * place.strides.block)] =
                want[static_cast<size_t>(at + 2 * place.strides.block)];
          }
    }
    storage->copy_block(GroupId{1}, BlockId{2}, BlockId{5});
    EXPECT_EQ(std::memcmp(bytes, want.data(), want.size()), 0) << layout;
  }
}

}  // namespace
}  // namespace quire::test
