// quire inspect: what a model is and how its KV cache would be laid out, before anything is loaded.
#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <vector>

#include "cache/layout.h"
#include "commands.h"
#include "engine/loaded_model.h"
#include "exec/attention_groups.h"
#include "model/load.h"
#include "model/tensor_names.h"

namespace quire::apps {
namespace {

double mib(int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

std::string_view name_of(cache::Grouping grouping) {
  switch (grouping) {
    case cache::Grouping::kNone:
      return "no layer has a cache";
    case cache::Grouping::kSingle:
      return "all layers alike";
    case cache::Grouping::kUniform:
      return "all layers retain alike, pages differ";
    case cache::Grouping::kPacked:
      return "pages of several sizes packed side by side";
    case cache::Grouping::kUnified:
      return "groups of about equally many layers, pages of one size";
  }
  return "?";
}

// "0-3 8": ascending numbers, runs of them joined.
std::string ranges_of(std::span<const LayerId> layers) {
  std::string text;
  for (size_t first = 0, end = 0; first < layers.size(); first = end) {
    end = first + 1;
    while (end < layers.size() && layers[end].value == layers[end - 1].value + 1) ++end;
    text += fmt::format("{}{}", text.empty() ? "" : " ", layers[first].value);
    if (end > first + 1) text += fmt::format("-{}", layers[end - 1].value);
  }
  return text;
}

// Where the pages of a group's layers lie: a line for each run of layers that are alike.
void print_places(const engine::Outline& outline, const cache::CacheGroup& group) {
  const auto place = [&](size_t i) -> const cache::LayerPlace& {
    return outline.plan.layers[static_cast<size_t>(group.layers[i].value)];
  };
  for (size_t first = 0, end = 0; first < group.layers.size(); first = end) {
    const cache::LayerPlace& at = place(first);
    for (end = first + 1; end < group.layers.size(); ++end) {
      if (place(end).spec != at.spec || place(end).strides != at.strides) break;
    }
    fmt::print("    layers {}: {} bytes from byte {}, of {} heads, {} rows, {} bytes a row\n",
               ranges_of(std::span(group.layers).subspan(first, end - first)), cache::page_size_bytes(at.spec),
               at.offset, at.spec.num_kv_heads, cache::states_per_block(at.spec), at.spec.state_bytes);
    fmt::print("      bytes to the next layer {}, block {}, head {}, row {}\n", at.strides.layer, at.strides.block,
               at.strides.head, at.strides.state);
  }
}

// How the attention kernels address the blocks of each group.
Result<void> print_attention(const engine::Outline& outline) {
  const auto groups = exec::outline_attention(outline.spec, outline.plan, outline.layers, outline.cache.pages);
  if (!groups) return std::unexpected(groups.error());
  for (size_t i = 0; i < groups->size(); ++i) {
    const exec::AttentionOutline& group = (*groups)[i];
    fmt::print("{:<15}group {}: {} layers over cache group {}, pages of {} tokens, {} a block, blocks {} pages apart\n",
               i == 0 ? "attention" : "", i, group.layers.size(), group.cache_group.value, group.shape.page_tokens,
               group.kernel_view.pages_per_block, group.kernel_view.pages_between_blocks);
  }
  return {};
}

void print_plan(const engine::Outline& outline, const EngineOptions& options) {
  const cache::CachePlan& plan = outline.plan;
  fmt::print("KV cache       {:.1f} MiB of {}, layout {}, {} blocks of {} bytes\n", mib(plan.allocation_bytes),
             quire::name_of(outline.cache.dtype), cache::name_of(plan.layout), plan.num_blocks, plan.bytes_per_block);
  fmt::print("groups         {}\n", name_of(plan.grouping));
  const std::vector<std::string> groups = engine::describe_groups(plan);
  for (size_t g = 0; g < groups.size(); ++g) {
    fmt::print("  {}\n", groups[g]);
    print_places(outline, plan.groups[g]);
  }
  fmt::print("units          blocks are scheduled in {} tokens and hashed in {}\n", plan.scheduler_block_size,
             plan.hash_block_size);
  const int64_t reuse = engine::minimum_reuse(plan, options.prefix_caching);
  fmt::print("prefix cache   {}\n", !options.prefix_caching ? std::string("off")
                                    : reuse == 0
                                        ? std::string("not possible for this model")
                                        : fmt::format("prefixes of at least {} tokens, in steps of {}", reuse, reuse));
  fmt::print("admission      a request of {} tokens holds at most {} of {} blocks, with {} tokens in a step\n",
             plan.max_model_len, plan.request_blocks(), plan.num_blocks - 1, options.max_num_batched_tokens);
  fmt::print("capacity       {:.1f} requests of {} tokens\n", plan.max_concurrency(), plan.max_model_len);
}

// How the files keep quantised matrices, and what the options make of the weights.
void print_quantisation(const engine::OpenedModel& model, const EngineOptions& options) {
  if (!model.checkpoint.quantisation.empty()) fmt::print("               {}\n", model.checkpoint.quantisation);
  std::string methods;
  if (options.quantization != Quantization::kNone) methods = name_of(options.quantization);
  const bool head =
      options.quantization != Quantization::kNone || options.lm_head_quantization == LmHeadQuantization::kInt8;
  if (head && options.lm_head_quantization != LmHeadQuantization::kAuto)
    methods += fmt::format("{}LM head {}", methods.empty() ? "" : ", ", name_of(options.lm_head_quantization));
  if (!methods.empty()) fmt::print("quantization   {}\n", methods);
}

}  // namespace

int inspect(const InspectFlags& flags) {
  auto opened = engine::open_model(flags.engine);
  if (!opened) return report(opened.error());
  auto outline = engine::outline_model(*opened, flags.engine);
  if (!outline) return report(outline.error());
  const model::ModelSpec& spec = outline->spec;
  if (auto named = model::check_names(spec, *opened->checkpoint.tensors); !named) return report(named.error());

  fmt::print("model          {}\n", flags.engine.model.string());
  fmt::print("architecture   {}, {} layers, hidden size {}, vocabulary {}\n", spec.architecture, spec.layers.size(),
             spec.hidden_size, spec.vocab_size);
  fmt::print("weights        {:.1f} MiB in the file, {:.1f} MiB in memory\n",
             mib(static_cast<int64_t>(opened->file_bytes)), mib(static_cast<int64_t>(opened->weight_bytes)));
  print_quantisation(*opened, flags.engine);
  fmt::print("profile        {}\n", name_of(outline->profile));
  fmt::print("length         {} tokens (the model's own: {})\n", outline->plan.max_model_len, spec.max_positions);
  for (const std::string& notice : opened->notices) fmt::print("notice         {}\n", notice);
  if (!outline->notice.empty()) fmt::print("notice         {}\n", outline->notice);
  if (auto fits = engine::check_memory(flags.engine, opened->weight_bytes); !fits)
    fmt::print("notice         quire serve would refuse this here: {}\n", in_flags(fits.error()).message);
  print_plan(*outline, flags.engine);
  if (auto printed = print_attention(*outline); !printed) return report(printed.error());
  return 0;
}

}  // namespace quire::apps
