#include "cache/planner.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "support/cache_vectors.h"

namespace quire::cache {
namespace {

using nlohmann::json;

PlanConfig config_from_json(const json& c, const json& run) {
  PlanConfig config{.max_model_len = c.at("max_model_len"),
                    .fit_max_model_len = c.at("auto_fit_max_model_len"),
                    .max_in_flight_tokens = c.at("max_in_flight_tokens"),
                    .context_parallel_size = c.at("decode_context_parallel_size"),
                    .hybrid = !c.at("disable_hybrid_kv_cache_manager").get<bool>(),
                    .prefix_caching = c.at("enable_prefix_caching"),
                    .draft_drops_block = c.at("eagle_block_drop"),
                    .prefix_match_unit = {},
                    .num_blocks_override = {},
                    .layout = parse_layout(run.at("layout").get<std::string>()).value(),
                    .budget_bytes = run.at("available_memory")};
  if (!c.at("prefix_match_unit").is_null()) config.prefix_match_unit = c.at("prefix_match_unit").get<int64_t>();
  if (!c.at("num_gpu_blocks_override").is_null()) {
    config.num_blocks_override = c.at("num_gpu_blocks_override").get<int64_t>();
  }
  return config;
}

// The vectors name a group by its class; several classes of ours may share a retention.
std::string kind_of(const CachePlan& plan, const CacheGroup& group, const json& source_kinds) {
  if (plan.grouping == Grouping::kUniform || plan.grouping == Grouping::kPacked) return "UniformType";
  const std::string source = source_kinds[static_cast<size_t>(group.layers.front().value)];
  if (source == "RSWA" || source == "Hidden") return source;
  const std::map<std::string_view, std::string> names = {{"full", "Full"},
                                                         {"mla", "MLA"},
                                                         {"sliding window", "SWA"},
                                                         {"chunked local", "Chunked"},
                                                         {"circular buffer", "Ring"},
                                                         {"recurrent", "Mamba"}};
  return names.at(name_of(group.spec));
}

std::vector<int32_t> ids(const std::vector<LayerId>& layers) {
  std::vector<int32_t> out;
  for (const LayerId layer : layers) out.push_back(layer.value);
  return out;
}

const LayerPlace& place_of(const CachePlan& plan, int32_t layer) { return plan.layers[static_cast<size_t>(layer)]; }

void expect_groups(const CachePlan& plan, const json& want, const json& source_kinds, const PlanConfig& config) {
  ASSERT_EQ(plan.groups.size(), want.size());
  const CacheLimits limits{.max_in_flight_tokens = config.max_in_flight_tokens,
                           .context_parallel_size = config.context_parallel_size};
  for (size_t g = 0; g < want.size(); ++g) {
    SCOPED_TRACE("group " + std::to_string(g));
    const CacheGroup& group = plan.groups[g];
    EXPECT_EQ(ids(group.layers), want[g]["layers"].get<std::vector<int32_t>>());
    EXPECT_EQ(kind_of(plan, group, source_kinds), want[g]["spec_kind"].get<std::string>());
    EXPECT_EQ(group.spec.block_size, want[g]["block_size"]);
    const bool uniform = want[g]["spec_kind"] == "UniformType";
    EXPECT_EQ(uniform ? group.bytes_per_block : page_size_bytes(group.spec), want[g]["page_size_bytes"]);
    EXPECT_EQ(group.drops_block, want[g]["is_eagle_group"]);
    EXPECT_EQ(group.prefix_cacheable, want[g]["prefix_cacheable"]);
    // The vectors give these for the length that was asked for, ours are for the length that was planned.
    EXPECT_EQ(max_blocks(group.spec, config.max_model_len, limits), want[g]["request_pages_at_max_len"]);
    EXPECT_EQ(table_columns(group.spec, config.max_model_len, limits), want[g]["block_table_entries_per_request"]);
    EXPECT_EQ(group.request_blocks, max_blocks(group.spec, plan.max_model_len, limits));
    EXPECT_EQ(group.table_columns, table_columns(group.spec, plan.max_model_len, limits));
    std::set<std::vector<int64_t>> triples;
    for (const LayerId layer : group.layers) {
      const CacheSpec& spec = place_of(plan, layer.value).spec;
      EXPECT_EQ(place_of(plan, layer.value).group, GroupId{static_cast<int32_t>(g)});
      triples.insert({spec.block_size, page_size_bytes(spec), resolved_stride_alignment(spec)});
    }
    EXPECT_EQ(triples, want[g]["layer_block_size_page"].get<std::set<std::vector<int64_t>>>());
  }
}

void expect_tensors(const CachePlan& plan, const json& want) {
  size_t placed = 0;
  for (const json& tensor : want) {
    const auto layers = tensor["layers"].get<std::vector<int32_t>>();
    SCOPED_TRACE("layer " + std::to_string(layers.front()));
    const auto shape = tensor["view_shape_BHNCbytes"].get<std::vector<int64_t>>();
    const auto strides = tensor["view_strides_bytes_BHNC"].get<std::vector<int64_t>>();
    for (size_t i = 0; i < layers.size(); ++i) {
      const LayerPlace& place = place_of(plan, layers[i]);
      EXPECT_EQ(place.group.value, tensor["group"]);
      EXPECT_EQ(place.offset, tensor["offset"].get<int64_t>() + static_cast<int64_t>(i) * place.strides.layer);
      EXPECT_EQ(place.strides.layer, tensor["layer_stride"]);
      EXPECT_EQ(place.strides.block, tensor["block_stride"]);
      EXPECT_EQ(
          (std::vector{plan.num_blocks, place.spec.num_kv_heads, states_per_block(place.spec), place.spec.state_bytes}),
          shape);
      EXPECT_EQ((std::vector{place.strides.block, place.strides.head, place.strides.state, int64_t{1}}), strides);
    }
    placed += layers.size();
  }
  EXPECT_EQ(placed, plan.layers.size());
}

// The kind of error, and what its message must say, for each message of the reference.
void expect_error(const Error& error, const json& want) {
  const std::string message = want["message"];
  SCOPED_TRACE(message + "\n ours: " + error.message);
  const std::string length = "estimated maximum model length is ";
  if (const auto at = message.find(length); at != std::string::npos) {
    EXPECT_EQ(error.kind, ErrorKind::kExhausted);
    const std::string number = std::to_string(std::stoll(message.substr(at + length.size())));
    EXPECT_NE(error.message.find(" " + number + " tokens"), std::string::npos);
  } else if (message.find("prefix_match_unit") != std::string::npos) {
    EXPECT_EQ(error.kind, ErrorKind::kInvalidRequest);
    EXPECT_TRUE(error.param == "prefix_match_unit" || error.param == "block_size");
  } else if (message.find("Failed to promote") != std::string::npos) {
    EXPECT_EQ(error.kind, ErrorKind::kUnsupported);
    EXPECT_EQ(error.param, "disable_hybrid_kv_cache_manager");
  } else {  // mixed page sizes, or a page that cannot be padded
    EXPECT_EQ(error.kind, ErrorKind::kUnsupported);
    EXPECT_EQ(error.param, "kv_cache_layout");
  }
}

void expect_plan(const CachePlan& plan, const json& want, const json& source_kinds, const PlanConfig& config) {
  expect_groups(plan, want["groups"], source_kinds, config);
  expect_tensors(plan, want["tensors"]);
  EXPECT_EQ(plan.num_blocks, want["num_blocks"]);
  EXPECT_EQ(plan.max_model_len, want["max_model_len_after"]);
  EXPECT_EQ(plan.needs_zeroing, want["needs_zeroing"]);
  if (plan.groups.empty()) return;
  EXPECT_EQ(plan.bytes_per_block, want["bytes_per_block"]);
  EXPECT_EQ(plan.allocation_bytes, want["allocation_bytes"]);
  EXPECT_EQ(plan.scheduler_block_size, want["scheduler_block_size"]);
  EXPECT_EQ(plan.hash_block_size, want["hash_block_size"]);
  EXPECT_EQ(plan.hit_alignment, want["cache_hit_alignment_tokens"]);
  if (config.fit_max_model_len) return;  // the reference's figures are for the length before fitting
  EXPECT_NEAR(plan.max_concurrency(), want["max_concurrency"].get<double>(), 1e-6);
  EXPECT_EQ(static_cast<int64_t>(plan.max_concurrency() * static_cast<double>(plan.max_model_len)),
            want["capacity_tokens"]);
}

TEST(PlannerVectors, EveryCase) {
  const json vectors = load_vectors("planning.json");
  size_t runs = 0;
  for (const json& c : vectors["cases"]) {
    std::vector<CacheLayer> layers;
    json source_kinds = json::array();
    for (size_t i = 0; i < c["layer_spec"].size(); ++i) {
      const json& spec = c["spec_table"][c["layer_spec"][i].get<size_t>()];
      layers.push_back({c["layer_names"][i], spec_from_json(spec)});
      source_kinds.push_back(spec["kind"]);
    }
    for (const json& run : c["runs"]) {
      SCOPED_TRACE(c["name"].get<std::string>() + " " + run["layout"].get<std::string>() + " " +
                   run["available_memory"].dump());
      const PlanConfig config = config_from_json(c["config"], run);
      const auto plan = plan_cache(layers, config);
      const json& want = run["expected"];
      const char* error_key = want.contains("error") ? "error" : "block_size_resolution_error";
      if (want.contains(error_key)) {
        ASSERT_FALSE(plan.has_value());
        expect_error(plan.error(), want[error_key]);
      } else {
        ASSERT_TRUE(plan.has_value()) << plan.error().message;
        expect_plan(*plan, want, source_kinds, config);
      }
      ++runs;
    }
  }
  if (uses_own_vectors()) {
    EXPECT_EQ(vectors["cases"].size(), 40U);
    EXPECT_EQ(runs, 249U);
  }
  EXPECT_GT(runs, 0U);
}

}  // namespace
}  // namespace quire::cache
