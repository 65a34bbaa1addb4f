#include "cache/slot_mapping.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <map>
#include <numeric>

#include "support/cache_vectors.h"

namespace quire::cache {
namespace {

using nlohmann::json;
using Ints = std::vector<int32_t>;
using Slots = std::vector<int64_t>;

std::vector<BlockId> block_ids(const Ints& values) {
  std::vector<BlockId> out;
  for (const int32_t v : values) out.emplace_back(v);
  return out;
}

BlockTable table_of(const std::vector<Ints>& rows) {
  auto table = BlockTable::create(std::ssize(rows), std::ssize(rows.front())).value();
  for (size_t r = 0; r < rows.size(); ++r) table.append(static_cast<int64_t>(r), block_ids(rows[r]));
  return table;
}

struct Step {
  Ints rows;
  Ints starts;
  Ints positions;
  StepTokens view() const { return {rows, starts, positions}; }
};

Step step_of(const json& c) {
  Step step{.rows = {}, .starts = c["query_start_loc"], .positions = c.value("positions", Ints{})};
  if (c.contains("idx_mapping")) {
    step.rows = c["idx_mapping"].get<Ints>();
  } else {
    step.rows.resize(step.starts.size() - 1);
    std::iota(step.rows.begin(), step.rows.end(), 0);
  }
  return step;
}

ContextParallel ranks_of(const json& c) { return {c["cp_size"], c["cp_rank"], c["cp_interleave"]}; }

void run_multi_group(const json& c) {
  const Step step = step_of(c);
  for (size_t g = 0; g < c["block_sizes"].size(); ++g) {
    const BlockTable table = table_of(c["block_tables"][g]);
    Slots out(c["max_num_tokens"].get<size_t>(), 12345);
    const SlotRule rule{c["block_sizes"][g], c["slot_mapping_enabled"][g], c["dcp_sharded"][g]};
    map_slots(table, rule, ranks_of(c), step.view(), out);
    EXPECT_EQ(out, c["expected"]["slot_mappings"][g].get<Slots>()) << "group " << g;
  }
}

void run_single_group(const json& c) {
  const Step step = step_of(c);
  Slots out(c["max_num_tokens"].get<size_t>(), 12345);
  map_slots(table_of(c["block_table"]), {.block_size = c["block_size"]}, ranks_of(c), step.view(), out);
  EXPECT_EQ(out, c["expected"]["slot_mapping"].get<Slots>());
}

void run_compressed(const json& c) {
  Step step = step_of(c);
  for (size_t r = 0; r < step.rows.size(); ++r) {
    const int32_t end = c["seq_lens"][r];
    for (int32_t p = end - (step.starts[r + 1] - step.starts[r]); p < end; ++p) step.positions.push_back(p);
  }
  const auto token_slots = c["token_slot_mapping"].get<Slots>();
  Slots out(token_slots.size(), 12345);
  map_compressed_slots(table_of(c["block_table"]), {c["compress_ratio"], c["states_per_block"]}, ranks_of(c),
                       step.view(), token_slots, out);
  EXPECT_EQ(out, c["expected"]["slot_mapping"].get<Slots>());
}

void run_ring(const json& c) {
  const Step step = step_of(c);
  std::vector<Ints> rows;
  for (const int32_t block : c["block_table_col0"]) rows.push_back({block});
  Slots out(step.positions.size() + c["num_padding"].get<size_t>(), 12345);
  map_ring_slots(table_of(rows), c["capacity"], step.view(), out);
  EXPECT_EQ(out, c["expected"]["slot_mapping"].get<Slots>());
}

void run_gather_rows(const json& c) {
  const auto computed = c["num_computed_tokens"].get<Ints>();
  const auto rows = c["idx_mapping"].get<Ints>();
  for (size_t g = 0; g < c["block_sizes"].size(); ++g) {
    auto blocks = c["block_tables"][g].get<std::vector<Ints>>();
    const size_t width = blocks.front().size();
    auto table = BlockTable::create(std::ssize(blocks), std::ssize(blocks.front())).value();
    for (size_t r = 0; r < blocks.size(); ++r) {
      blocks[r].resize(c["num_blocks"][g][r]);
      table.append(static_cast<int64_t>(r), block_ids(blocks[r]));
    }
    Ints out(c["padded_rows"].get<size_t>() * width, c["prefill_value"]);
    const int64_t reach = c["sliding_window_reach"][g];  // 0: everything
    std::vector<int64_t> skipped;
    for (const int32_t row : rows)
      skipped.push_back(reach == 0 ? 0 : std::max<int64_t>(0, computed[static_cast<size_t>(row)] - reach));
    gather_rows(table, {rows, skipped, c["block_sizes"][g]}, out);
    const auto want = c["expected"]["rows"][g].get<std::vector<Ints>>();
    for (size_t r = 0; r < want.size(); ++r) {
      EXPECT_EQ(Ints(out.begin() + static_cast<std::ptrdiff_t>(r * width),
                     out.begin() + static_cast<std::ptrdiff_t>((r + 1) * width)),
                want[r])
          << "group " << g << " row " << r;
    }
  }
}

TEST(SlotMappingVectors, EveryCase) {
  const std::map<std::string, void (*)(const json&)> runners = {{"multi_group", run_multi_group},
                                                                {"single_group", run_single_group},
                                                                {"compressed", run_compressed},
                                                                {"ring", run_ring},
                                                                {"gather_rows", run_gather_rows}};
  const json vectors = load_vectors("slot_mapping.json");
  std::map<std::string, size_t> count;
  for (size_t i = 0; i < vectors["cases"].size(); ++i) {
    const json& c = vectors["cases"][i];
    const std::string kind = c["kind"];
    SCOPED_TRACE(kind + ", case " + std::to_string(i));
    ASSERT_TRUE(runners.contains(kind));
    runners.at(kind)(c);
    ++count[kind];
  }
  const std::map<std::string, size_t> all = {
      {"multi_group", 14}, {"single_group", 6}, {"compressed", 6}, {"ring", 7}, {"gather_rows", 6}};
  if (uses_own_vectors()) {
    EXPECT_EQ(count, all);
  }
  EXPECT_FALSE(count.empty());
}

// Two requests in one step, with rings of their own: addressing by position alone would mix them.
TEST(CacheFaults, RingsOfInterleavedRequestsKeepApart) {
  const BlockTable table = table_of({{5}, {9}});
  Step step{.rows = {0, 1}, .starts = {0, 10, 22}, .positions = {}};
  for (int32_t p = 0; p < 10; ++p) step.positions.push_back(p);
  for (int32_t p = 0; p < 12; ++p) step.positions.push_back(p);
  Slots out(22);
  map_ring_slots(table, 4, step.view(), out);
  for (size_t i = 0; i < 22; ++i) {
    const int64_t block = i < 10 ? 5 : 9;
    EXPECT_EQ(out[i], block * 4 + step.positions[i] % 4);
  }
}

TEST(Slots, PastTheTableOrInANullBlockWriteNothing) {
  const BlockTable table = table_of({{3, 0}, {7, 8}});
  const Step step{.rows = {0, 1}, .starts = {0, 3, 4}, .positions = {15, 16, 32, 31}};
  Slots out(5);
  map_slots(table, {.block_size = 16}, {}, step.view(), out);
  EXPECT_EQ(out, (Slots{3 * 16 + 15, kNoSlot, kNoSlot, 8 * 16 + 15, kNoSlot}));
}

// The ranks of a context-parallel group share out every token, each writing its own rows once.
TEST(Slots, RanksPartitionTokens) {
  EXPECT_TRUE(rc::check([] {
    const auto size = *rc::gen::inRange<int64_t>(1, 5);
    const auto interleave = *rc::gen::inRange<int64_t>(1, 5);
    const auto block_size = interleave * *rc::gen::inRange<int64_t>(1, 5);
    const BlockTable table = table_of({{4, 2, 9}});
    Step step{.rows = {0}, .starts = {0, static_cast<int32_t>(3 * block_size * size)}, .positions = {}};
    for (int32_t p = 0; p < step.starts[1]; ++p) step.positions.push_back(p);
    std::vector<int> owners(step.positions.size());
    for (int64_t rank = 0; rank < size; ++rank) {
      Slots out(step.positions.size());
      map_slots(table, {.block_size = block_size}, {size, rank, interleave}, step.view(), out);
      std::map<int64_t, int> written;
      for (size_t i = 0; i < out.size(); ++i) {
        if (out[i] == kNoSlot) continue;
        ++owners[i];
        RC_ASSERT(++written[out[i]] == 1);
        RC_ASSERT(out[i] / block_size == table.at(0, static_cast<int64_t>(i) / (block_size * size)).value);
      }
      RC_ASSERT(std::ssize(written) == 3 * block_size);
    }
    RC_ASSERT(std::ranges::all_of(owners, [](int n) { return n == 1; }));
  }));
}

TEST(Slots, MatchTheFormulaForAnyPositions) {
  EXPECT_TRUE(rc::check([] {
    const auto block_size = *rc::gen::inRange<int64_t>(1, 40);
    const auto rows = *rc::gen::container<std::vector<Ints>>(3, rc::gen::container<Ints>(6, rc::gen::inRange(0, 9)));
    const BlockTable table = table_of(rows);
    Step step{.rows = *rc::gen::container<Ints>(rc::gen::inRange(-1, 3)), .starts = {0}, .positions = {}};
    for (size_t r = 0; r < step.rows.size(); ++r) {
      for (const int32_t p : *rc::gen::container<Ints>(rc::gen::inRange(0, 300))) step.positions.push_back(p);
      step.starts.push_back(static_cast<int32_t>(step.positions.size()));
    }
    Slots out(step.positions.size() + 3, 77);
    map_slots(table, {.block_size = block_size}, {}, step.view(), out);
    Slots want(out.size(), kNoSlot);
    for (size_t r = 0; r < step.rows.size(); ++r) {
      for (auto i = static_cast<size_t>(step.starts[r]); i < static_cast<size_t>(step.starts[r + 1]); ++i) {
        const auto column = static_cast<size_t>(step.positions[i] / block_size);
        if (step.rows[r] < 0 || column >= 6) continue;
        const int64_t block = rows[static_cast<size_t>(step.rows[r])][column];
        if (block != 0) want[i] = block * block_size + step.positions[i] % block_size;
      }
    }
    RC_ASSERT(out == want);
  }));
}

}  // namespace
}  // namespace quire::cache
