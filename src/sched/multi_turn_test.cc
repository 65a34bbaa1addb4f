// Chats of many users in turn, in a pool that holds a quarter of what all of them said, against an oracle.
//
// The oracle is brute force over what the retention policy promises. It knows for each user which blocks the policy
// keeps after a turn: all, or the full layers' and the window ends of the turn and of its prompt. Users give theirs up
// in the order in which they last spoke; whoever lost one block starts anew. Nothing else takes room: neither what
// windows left behind, nor the ends of earlier turns.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

#include "sched/simulator.h"

namespace quire::sched {
namespace {

using Keep = cache::RetentionPolicy::Keep;

constexpr int64_t kBlock = 32;
constexpr int64_t kWindow = 512;
constexpr int64_t kWindowGroups = 5;  // and one full, as in Gemma 3
constexpr int64_t kGroups = kWindowGroups + 1;
constexpr int64_t kUsers = 32;

struct Chat {
  int64_t turns;
  int64_t question;  // tokens
  int64_t answer;
  int64_t turn() const { return question + answer; }
  int64_t total_blocks() const { return kUsers * kGroups * cache::ceil_div(turns * turn(), kBlock); }
};

// The tokens at the beginning of a prompt that a hit may cover, after `tokens` are computed.
int64_t aligned(int64_t tokens) { return tokens / kBlock * kBlock; }

class Oracle {
 public:
  Oracle(Keep keep, int64_t pool_blocks) : keep_(keep), pool_blocks_(pool_blocks), kept_(kUsers) {}

  // Tokens that the user's next prompt finds; then the turn is over.
  int64_t turn(size_t user, const Chat& chat, int64_t before) {
    const int64_t prompt = before + chat.question;
    const int64_t computed = prompt + chat.answer - 1;
    const int64_t hit = kept_[user] > 0 ? aligned(std::min(before - 1, prompt - 1)) : 0;
    // While the request runs it holds its full blocks and its windows, with the chunk that it computes.
    const int64_t chunk = std::min(prompt - hit, kChunk);
    const int64_t working = blocks(computed + 1) + kWindowGroups * (blocks(kWindow + chunk) + 1);
    kept_[user] = 0;
    make_room(working);
    kept_[user] = blocks_kept(prompt, computed);
    std::erase(order_, user);
    order_.push_back(user);
    make_room(0);
    return hit;
  }

  static constexpr int64_t kChunk = 2048;

 private:
  static int64_t blocks(int64_t tokens) { return cache::ceil_div(tokens, kBlock); }

  int64_t blocks_kept(int64_t prompt, int64_t computed) const {
    const int64_t full = computed / kBlock;
    if (keep_ == Keep::kEveryBoundary) return kGroups * full;
    // The windows before the end of the turn, and before the place where the same prompt would be found again.
    std::set<int64_t> tails;
    for (const int64_t end : {aligned(computed), aligned(prompt - 1)})
      for (int64_t block = 0; block < blocks(kWindow - 1); ++block) tails.insert(end / kBlock - 1 - block);
    return full + kWindowGroups * std::ssize(tails);
  }

  void make_room(int64_t working) {
    int64_t held = working;
    for (const int64_t blocks : kept_) held += blocks;
    for (const size_t user : order_) {
      if (held <= pool_blocks_) return;
      held -= kept_[user];
      kept_[user] = 0;
    }
  }

  Keep keep_;
  int64_t pool_blocks_;
  std::vector<int64_t> kept_;  // blocks; 0: lost
  std::vector<size_t> order_;  // users, the one who spoke last at the end
};

SimulationConfig config_of(Keep keep, int64_t pool_blocks, int64_t max_model_len) {
  SimulationConfig config;
  for (int64_t g = 0; g < kGroups; ++g) {
    cache::CacheSpec spec{.block_size = kBlock, .state_bytes = 1024};
    if (g < kWindowGroups) spec.retention = cache::SlidingWindow{.window = kWindow};
    config.cache.groups.push_back({.spec = spec, .hit = cache::hit_rule(spec, 1)});
  }
  config.cache.num_blocks = pool_blocks + 1;
  config.cache.max_model_len = max_model_len;
  config.cache.limits.max_in_flight_tokens = Oracle::kChunk;
  config.cache.retention.keep = keep;
  config.step_seconds = 1e6;  // tokens limit steps, time never does
  config.max_tokens = Oracle::kChunk;
  config.cost = {.step_ns = 1, .token_ns = 0};
  return config;
}

struct Shares {
  std::vector<double> found;  // for each user, of the tokens said before the last word of each earlier turn
  std::vector<double> oracle;
};

Shares play(const Chat& chat, Keep keep) {
  const int64_t pool = chat.total_blocks() / 4;
  Oracle oracle(keep, pool);
  std::vector<int64_t> said(kUsers, 0), found(kUsers, 0), expected(kUsers, 0);
  std::vector<std::vector<TokenPiece>> talk(kUsers);
  int64_t next = 0;
  const auto source = [&]() -> Result<std::optional<TraceRequest>> {
    if (next == kUsers * chat.turns) return std::nullopt;
    const int64_t turn = next / kUsers;
    const auto user = static_cast<size_t>(next % kUsers);
    TraceRequest request{.arrival_ns = next * 1'000'000, .prompt = {}, .output = {}};
    talk[user].emplace_back(Segment{static_cast<uint64_t>(2 * next), chat.question});
    request.prompt = talk[user];
    talk[user].emplace_back(Segment{static_cast<uint64_t>(2 * next + 1), chat.answer});
    request.output = {talk[user].back()};
    said[user] += turn * chat.turn();
    expected[user] += oracle.turn(user, chat, turn * chat.turn());
    ++next;
    return request;
  };
  const auto report =
      simulate(config_of(keep, pool, (chat.turns + 1) * chat.turn()), source, [&](const RequestOutcome& outcome) {
        EXPECT_FALSE(outcome.refused);
        found[outcome.index % kUsers] += outcome.cached_tokens;
      });
  EXPECT_TRUE(report) << report.error().message;
  Shares shares;
  for (size_t user = 0; user < kUsers; ++user) {
    shares.found.push_back(static_cast<double>(found[user]) / static_cast<double>(said[user]));
    shares.oracle.push_back(static_cast<double>(expected[user]) / static_cast<double>(said[user]));
  }
  return shares;
}

constexpr Chat kChats[] = {{4, 200, 120}, {6, 2400, 400}, {8, 1200, 600},  {10, 1200, 600},
                           {6, 800, 400}, {8, 1700, 340}, {12, 1000, 500}, {3, 6000, 900}};

class MultiTurn : public testing::TestWithParam<Chat> {};

TEST_P(MultiTurn, EveryUserFindsWhatThePolicyPromises) {
  for (const Keep keep : {Keep::kEveryBoundary, Keep::kTurnEnds}) {
    const Shares shares = play(GetParam(), keep);
    const auto name = keep == Keep::kTurnEnds ? "turn_ends" : "every_boundary";
    testing::Test::RecordProperty(
        name, fmt::format("{:.3f} {:.3f}", std::ranges::min(shares.found), std::ranges::min(shares.oracle)));
    for (size_t user = 0; user < kUsers; ++user)
      EXPECT_GE(shares.found[user], shares.oracle[user] - 0.05) << name << ", user " << user;
  }
}

INSTANTIATE_TEST_SUITE_P(Chats, MultiTurn, testing::ValuesIn(kChats));

}  // namespace
}  // namespace quire::sched
