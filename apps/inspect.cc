// quire inspect: what a model is and how its KV cache would be laid out, before anything is loaded.
#include <fmt/format.h>

#include <cstdio>

#include "cache/layout.h"
#include "commands.h"
#include "engine/loaded_model.h"
#include "weights/checkpoint.h"

namespace quire::apps {
namespace {

double mib(int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

}  // namespace

int inspect(const InspectFlags& flags) {
  auto checkpoint = weights::open_checkpoint(flags.engine.model);
  if (!checkpoint) return report(checkpoint.error());
  const size_t weight_bytes = engine::file_weight_bytes(*checkpoint);
  auto outline = engine::outline_model(*checkpoint, flags.engine, weight_bytes);
  if (!outline) return report(outline.error());
  const model::ModelSpec& spec = outline->spec;
  const cache::CachePlan& plan = outline->plan;

  fmt::print("model          {}\n", flags.engine.model.string());
  fmt::print("architecture   {}, {} layers, hidden size {}, vocabulary {}\n", spec.architecture, spec.layers.size(),
             spec.hidden_size, spec.vocab_size);
  fmt::print("weights        {:.1f} MiB in the file\n", mib(static_cast<int64_t>(weight_bytes)));
  fmt::print("profile        {}\n", name_of(outline->profile));
  fmt::print("length         {} tokens (the model's own: {})\n", plan.max_model_len, spec.max_positions);
  if (!outline->notice.empty()) fmt::print("notice         {}\n", outline->notice);
  fmt::print("KV cache       {:.1f} MiB of {}, layout {}, {} blocks of {} bytes\n", mib(plan.allocation_bytes),
             name_of(outline->cache.dtype), cache::name_of(plan.layout), plan.num_blocks, plan.bytes_per_block);
  for (const std::string& line : engine::describe_groups(plan)) fmt::print("  {}\n", line);
  fmt::print("prefix cache   {}\n", !flags.engine.prefix_caching ? std::string("off")
                                    : plan.hash_block_size == 0
                                        ? std::string("not possible for this model")
                                        : fmt::format("prefixes of at least {} tokens, in steps of {}",
                                                      plan.hit_alignment, plan.hit_alignment));
  fmt::print("capacity       {:.1f} requests of {} tokens\n", plan.max_concurrency(), plan.max_model_len);
  return 0;
}

}  // namespace quire::apps
