#include "engine/loaded_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "base/cpu.h"
#include "base/hex.h"
#include "base/log.h"
#include "base/topology.h"
#include "model/architectures/architectures.h"
#include "model/open_checkpoint.h"
#include "model/quantise.h"
#include "weights/quantise.h"
#include "weights/rounded_source.h"

namespace quire::engine {
namespace {

constexpr int kDefaultBlockSize = 32;
// Block-outermost: the pages of a block lie together, so memory is touched block by block.
constexpr cache::Layout kDefaultLayout = cache::Layout::kBLHNC;
constexpr std::string_view kContract = "quire-bits-2";

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::string numerics_of(const model::AttentionSpec& a) {
  std::string text = fmt::format("attention {} {} {} {} {} {} {} '{}' {}{}", a.q_heads, a.kv_heads, a.head_dim, a.scale,
                                 a.soft_cap, a.window, a.chunk, a.donor, a.rope, a.gated ? " gated" : "");
  if (a.growth.step > 0) text += fmt::format(" growth {} {}", a.growth.step, a.growth.strength);
  for (const model::NormSpec* norm : {&a.q_norm, &a.k_norm})
    if (norm->present() && !norm->has_weights()) text += " normed";
  return text;
}

std::string numerics_of(const model::GatedDeltaSpec& g) {
  std::string text =
      fmt::format("gated delta {} {} {} {} {} {} {}", g.shape.heads, g.shape.key_heads, g.shape.tiled, g.shape.key_dim,
                  g.shape.value_dim, g.shape.conv_width, static_cast<int>(g.decay_form));
  if (g.shape.decays_by_channel()) text += fmt::format(" channels above {}", g.shape.decay_floor);
  return text + (g.sigmoid_gate ? " sigmoid" : "");
}

std::string numerics_of(const model::LatentSpec& l) {
  std::string text =
      fmt::format("latent {} {} {} {} {} {} {} {} eps {}", l.shape.heads, l.shape.nope_dim, l.shape.rope_dim,
                  l.shape.value_dim, l.shape.rank, l.query_rank, l.scale, l.rope, l.norm_epsilon);
  if (const auto& i = l.indexer)
    text += fmt::format(" pooled {} {} {} {} {} {}", i->shape.pool, i->shape.heads, i->shape.dim, i->shape.top_k,
                        i->norm_epsilon, i->rope);
  if (l.reads_last_choice) text += " last choice";
  return text;
}

std::string numerics_of(const kernels::RopeParameters& r) {
  return fmt::format("rope {} {} {} {} {} {} {} {} {} {} {} {} {} {} {}", static_cast<int>(r.type), r.theta,
                     r.rotary_dim, r.interleaved, r.factor, r.low_freq_factor, r.high_freq_factor, r.beta_fast,
                     r.beta_slow, r.truncate, r.original_max_position, r.attention_factor,
                     fmt::join(r.frequency_divisors, " "), fmt::join(r.long_divisors, " "),
                     r.depends_on_longest() ? r.longest : 0.0);
}

std::string numerics_of(const model::MlpSpec& m) {
  std::string text = fmt::format("{}", static_cast<int>(m.activation));
  if (m.activation == model::Activation::kClampedSwiglu)
    text += fmt::format(" {} {} {}", m.alpha, m.limit, m.up_offset);
  return text;
}

std::string numerics_of(const model::MoeSpec& m) {
  const kernels::RouterShape& r = m.router;
  return fmt::format("{} experts {} of {} {} groups {} of {} by {} {} {}", numerics_of(m.experts.front()), r.chosen,
                     r.experts, static_cast<int>(r.scoring), r.chosen_groups, r.groups, r.group_best, r.renormalise,
                     r.scaling) +
         (m.weighs_inputs ? " of inputs" : "");
}

// What the configuration contributes to the bits of an answer; the tensors' names and shapes are in their digest.
std::string numerics_of(const model::ModelSpec& spec) {
  std::string text = fmt::format("{} eps {} scaled {} cap {}\n", spec.architecture, spec.norm_epsilon,
                                 spec.scale_embeddings, spec.logit_soft_cap);
  for (const auto& rope : spec.ropes) text += numerics_of(rope) + "\n";
  if (const auto& s = spec.streams) text += fmt::format("streams {} {} {}\n", s->count, s->iterations, s->epsilon);
  for (const auto& layer : spec.layers) {
    text += fmt::format("layer {} {} {}\n", std::visit([](const auto& m) { return numerics_of(m); }, layer.mixer),
                        layer.attention_norm.offset,
                        std::visit([](const auto& mlp) { return numerics_of(mlp); }, layer.mlp));
  }
  if (spec.head.keeps_integers) text += "head in integers\n";
  return text + fmt::format("end {}\n", fmt::join(spec.end_tokens, " "));
}

DType cache_dtype(KvCacheDtype wanted, Profile profile) {
  if (wanted == KvCacheDtype::kInt8) return DType::kI8;
  return wanted == KvCacheDtype::kAuto && profile == Profile::kF32 ? DType::kF32 : DType::kBF16;
}

// Everything that decides the bits of an answer, but for the request.
Sha256Digest root_digest(const model::Model& model, DType cache) {
  Sha256 hash;
  hash.update(model.digest);
  const std::string numerics = numerics_of(model.spec);
  for (std::string_view part :
       {kContract, name_of(model.profile), kernels::kv_layout_id(cache), std::string_view(numerics)}) {
    hash.update(bytes_of(part));
    hash.update(bytes_of("\n"));
  }
  return hash.finish();
}

// The CPUs that workers are pinned to, where they are pinned.
Result<std::vector<int>> worker_cpus(const EngineOptions& options) {
  int threads = options.threads > 0 ? options.threads : usable_cores();
  if (options.threads == 0 && options.cpu_affinity != "auto") {
    const auto list = parse_cpu_list(options.cpu_affinity);
    if (!list) return std::unexpected(list.error());
    threads = static_cast<int>(list->size());
  }
  return place_workers(options.cpu_affinity, threads, read_topology("/sys/devices/system", allowed_cpus()));
}

Result<void> check_options(const EngineOptions& options) {
  const struct {
    const char* name;
    int64_t value;
    OptionRange range;
  } numbers[] = {{"max_model_len", options.max_model_len.value_or(1), kModelLengths},
                 {"max_num_seqs", options.max_num_seqs, kSequences},
                 {"max_num_batched_tokens", options.max_num_batched_tokens, kBatchedTokens},
                 {"max_waiting_requests", options.max_waiting_requests, kWaitingRequests},
                 {"step_time_ms", options.step_time.count(), kStepMilliseconds},
                 {"threads", options.threads, kThreads},
                 {"block_size", options.block_size.value_or(kDefaultBlockSize), kBlockSizes}};
  for (const auto& [name, value, range] : numbers)
    if (value < range.low || value > range.high)
      return fail(ErrorKind::kInvalidRequest,
                  fmt::format("{} must be between {} and {}, not {}", name, range.low, range.high, value), name);
  if (options.max_num_batched_tokens < options.max_num_seqs)
    return fail(ErrorKind::kInvalidRequest,
                fmt::format("max_num_batched_tokens {} must be at least max_num_seqs {}",
                            options.max_num_batched_tokens, options.max_num_seqs),
                "max_num_batched_tokens");
  if (options.block_size && *options.block_size % 16 != 0)
    return fail(ErrorKind::kInvalidRequest,
                fmt::format("block_size must be a multiple of 16, not {}", *options.block_size), "block_size");
  if (!options.cpu_affinity.empty())
    if (auto cpus = worker_cpus(options); !cpus) return std::unexpected(cpus.error());
  return {};
}

// What quantisation leaves as it is, for people.
std::string notice_of(const model::QuantisationPlan& plan) {
  return fmt::format("{} matrices stay as they are, since their rows are not whole groups of {} inputs: {}{}",
                     plan.kept.size(), weights::kQuantisedBlock, plan.kept.front(),
                     plan.kept.size() > 1 ? " and others" : "");
}

Result<std::unique_ptr<ThreadPool>> make_pool(const EngineOptions& options) {
  if (options.cpu_affinity.empty())
    return std::make_unique<ThreadPool>(options.threads > 0 ? options.threads : usable_cores());
  auto cpus = worker_cpus(options);
  if (!cpus) return std::unexpected(cpus.error());
  return std::make_unique<ThreadPool>(std::move(*cpus));
}

std::string gibibytes(size_t bytes) { return fmt::format("{:.2f} GiB", static_cast<double>(bytes) / (1 << 30)); }

// Half of what is free beside the weights.
Result<size_t> default_cache_bytes(size_t weight_bytes) {
  const size_t available = available_memory();
  if (available > weight_bytes) return (available - weight_bytes) / 2;
  return fail(ErrorKind::kExhausted,
              fmt::format("kv_cache_memory_bytes: the weights take {} of the {} of memory that are free, which leaves "
                          "nothing for the KV cache",
                          gibibytes(weight_bytes), gibibytes(available)),
              "kv_cache_memory_bytes");
}

std::filesystem::path offload_dir(const EngineOptions& options) {
  if (!options.offload_dir.empty()) return options.offload_dir;
  const char* temporary = std::getenv("TMPDIR");
  return temporary != nullptr && *temporary != '\0' ? temporary : "/var/tmp";
}

}  // namespace

std::vector<std::string> describe_groups(const cache::CachePlan& plan) {
  std::vector<std::string> lines;
  for (size_t g = 0; g < plan.groups.size(); ++g) {
    const cache::CacheGroup& group = plan.groups[g];
    std::string size;
    if (const auto* w = std::get_if<cache::SlidingWindow>(&group.spec.retention))
      size = fmt::format(" of {} tokens", w->window);
    if (const auto* c = std::get_if<cache::ChunkedLocal>(&group.spec.retention))
      size = fmt::format(" of {} tokens", c->chunk);
    const std::string blocks = cache::keeps<cache::RecurrentState>(group.spec) && cache::holds_fixed_blocks(group.spec)
                                   ? "blocks of one state"
                                   : fmt::format("blocks of {} tokens", group.spec.block_size);
    lines.push_back(fmt::format("group {}: {}{}, {} layers, {}, at most {} blocks a request", g,
                                cache::name_of(group.spec), size, group.layers.size(), blocks, group.request_blocks));
  }
  return lines;
}

int64_t minimum_reuse(const cache::CachePlan& plan, bool prefix_caching) {
  return prefix_caching && plan.hash_block_size > 0 ? plan.hit_alignment : 0;
}

int block_size_of(const EngineOptions& options) { return options.block_size.value_or(kDefaultBlockSize); }

Result<void> check_memory(const EngineOptions& options, size_t weight_bytes) {
  const size_t available = available_memory();
  const size_t memory = available - std::min(available, weight_bytes);
  if (options.kv_cache_bytes.value_or(0) > memory)
    return fail(ErrorKind::kInvalidRequest,
                fmt::format("kv_cache_memory_bytes {} is more than the {} bytes of memory that are free beside the "
                            "weights",
                            *options.kv_cache_bytes, memory),
                "kv_cache_memory_bytes");
  return {};
}

Result<bool> offloads_experts(ExpertOffload wanted, const model::WeightMemory& weights, size_t available) {
  if (wanted != ExpertOffload::kAlways)
    return wanted == ExpertOffload::kAuto && weights.experts > 0 && weights.all > available / 10 * 9;
  if (weights.experts > 0) return true;
  return fail(ErrorKind::kUnsupported, "offload_experts: the model has no experts", "offload_experts");
}

Result<PlannedCache> plan_for(std::span<const cache::CacheLayer> layers, const EngineOptions& options,
                              int64_t own_length, size_t weight_bytes) {
  if (auto checked = check_options(options); !checked) return std::unexpected(checked.error());
  cache::PlanConfig config;
  config.layout = kDefaultLayout;
  if (!options.kv_cache_layout.empty()) {
    auto layout = cache::parse_layout(options.kv_cache_layout);
    if (!layout) return std::unexpected(layout.error());
    config.layout = *layout;
  }
  PlannedCache planned;
  // Beyond its own length a model was not trained; the request is met as far as it can be.
  const int64_t wanted = std::min(options.max_model_len.value_or(own_length), own_length);
  if (options.max_model_len.value_or(0) > wanted)
    planned.notice = fmt::format("the longest request is {} tokens instead of {}: the model's own length", wanted,
                                 *options.max_model_len);
  config.max_model_len = wanted;
  config.fit_max_model_len = !options.max_model_len;
  config.max_in_flight_tokens = options.max_num_batched_tokens;
  config.hybrid = options.hybrid_kv_cache;
  config.prefix_caching = options.prefix_caching;
  const auto budget = options.kv_cache_bytes ? *options.kv_cache_bytes : default_cache_bytes(weight_bytes);
  if (!budget) return std::unexpected(budget.error());
  config.budget_bytes = static_cast<int64_t>(*budget);
  auto plan = cache::plan_cache(layers, config);
  if (!plan) return std::unexpected(plan.error());
  if (plan->max_model_len < wanted)
    planned.notice =
        fmt::format("the longest request is {} tokens instead of {}: more do not fit {:.1f} MiB of KV cache",
                    plan->max_model_len, wanted, static_cast<double>(config.budget_bytes) / (1 << 20));
  planned.plan = std::move(*plan);
  return planned;
}

Result<OpenedModel> open_model(const EngineOptions& options) {
  auto checkpoint = model::open_checkpoint(options.model, {options.hf_config_path, options.hf_overrides});
  if (!checkpoint) return std::unexpected(checkpoint.error());
  auto spec = model::make_spec(*checkpoint);
  if (!spec) return std::unexpected(spec.error());
  OpenedModel opened{.checkpoint = std::move(*checkpoint), .spec = std::move(*spec)};
  auto& tensors = opened.checkpoint.tensors;
  if (options.max_model_len) model::set_longest(opened.spec, *options.max_model_len);
  opened.file_bytes = weights::file_bytes(opened.checkpoint);
  opened.profile = options.profile.value_or(
      options.quantization == Quantization::kNone ? model::default_profile(opened.spec, *tensors) : Profile::kQ8);
  const bool int8_head = options.lm_head_quantization == LmHeadQuantization::kInt8;
  if (options.quantization != Quantization::kNone || int8_head) {
    auto plan = model::plan_quantisation(opened.spec, *tensors, options.quantization, options.lm_head_quantization);
    if (!plan) return std::unexpected(plan.error());
    tensors = std::make_unique<weights::RoundedSource>(std::move(tensors), plan->formats);
    if (!plan->kept.empty()) opened.notices.push_back(notice_of(*plan));
  }
  if (auto fits = model::check_profile(opened.spec, *tensors, opened.profile); !fits)
    return std::unexpected(fits.error());
  opened.spec.head.keeps_integers = int8_head && opened.profile == Profile::kBF16;
  const model::WeightMemory memory = model::memory_of(opened.spec, *tensors, opened.profile);
  const size_t available = available_memory();
  const auto offloads = offloads_experts(options.expert_offload, memory, available);
  if (!offloads) return std::unexpected(offloads.error());
  if (*offloads) {
    opened.offloaded_bytes = memory.experts;
    opened.notices.push_back(
        fmt::format("the experts' {} lie in a file in {} and come into memory as they are used, which is slow where "
                    "they do not stay there: {} of memory are free beside the other weights",
                    gibibytes(memory.experts), offload_dir(options).string(),
                    gibibytes(available - std::min(available, memory.all - memory.experts))));
  }
  opened.weight_bytes = memory.all - opened.offloaded_bytes;
  return opened;
}

Result<Outline> outline_model(const OpenedModel& model, const EngineOptions& options) {
  auto outline = outline_spec(model.spec, model.profile, options, model.weight_bytes);
  if (outline) outline->offloads_experts = model.offloaded_bytes > 0;
  return outline;
}

Result<Outline> outline_spec(model::ModelSpec spec, Profile profile, const EngineOptions& options, size_t weight_bytes,
                             exec::PageSizes pages) {
  if (auto valid = model::validate(spec); !valid) return std::unexpected(valid.error());
  Outline outline;
  outline.profile = profile;
  outline.weight_bytes = weight_bytes;
  outline.cache = {.dtype = cache_dtype(options.kv_cache_dtype, profile),
                   .block_size = block_size_of(options),
                   .prefix_caching = options.prefix_caching,
                   .pages = std::move(pages)};
  outline.layers = exec::cache_layers(spec, outline.cache);

  auto planned = plan_for(outline.layers, options, spec.max_positions, weight_bytes);
  if (!planned) return std::unexpected(planned.error());
  if (auto executable = cache::check_executable(planned->plan); !executable) return std::unexpected(executable.error());
  for (const kernels::RopeParameters& rope : spec.ropes)
    if (auto ok = kernels::check_rope(rope, static_cast<int>(planned->plan.max_model_len)); !ok)
      return std::unexpected(ok.error());
  outline.spec = std::move(spec);
  outline.plan = std::move(planned->plan);
  outline.notice = std::move(planned->notice);
  return outline;
}

Result<std::unique_ptr<LoadedModel>> LoadedModel::load(const EngineOptions& options) {
  auto opened = open_model(options);
  if (!opened) return std::unexpected(opened.error());
  return load(*opened, options);
}

Result<std::unique_ptr<LoadedModel>> LoadedModel::load(const OpenedModel& opened, const EngineOptions& options) {
  auto outline = outline_model(opened, options);
  if (!outline) return std::unexpected(outline.error());
  for (const std::string& notice : opened.notices) log::warn(notice);
  if (!outline->notice.empty()) log::warn(outline->notice);
  return make(std::move(*outline), *opened.checkpoint.tensors, options);
}

Result<std::unique_ptr<LoadedModel>> LoadedModel::make(Outline outline, const weights::TensorSource& tensors,
                                                       const EngineOptions& options) {
  if (auto fits = check_memory(options, outline.weight_bytes); !fits) return std::unexpected(fits.error());
  const CpuFeatures cpu = detect_cpu();
  auto isa = choose_isa(cpu);
  if (!isa) return std::unexpected(isa.error());
  auto loaded = std::make_unique<LoadedModel>();
  auto table = kernels::kernel_table(*isa, cpu);
  if (!table) return std::unexpected(table.error());
  loaded->kernels = *table;
  if (auto tested = kernels::self_test(loaded->kernels); !tested) return std::unexpected(tested.error());
  auto pool = make_pool(options);
  if (!pool) return std::unexpected(pool.error());
  loaded->pool = std::move(*pool);

  if (outline.offloads_experts) {
    auto memory = Allocator::over_file(offload_dir(options));
    if (!memory) return std::unexpected(memory.error());
    loaded->expert_memory = std::move(*memory);
  }
  auto model = model::load_weights(std::move(outline.spec), tensors, outline.profile,
                                   {loaded->allocator, *loaded->pool, loaded->expert_memory.get(), options.progress});
  if (!model) return std::unexpected(model.error());
  loaded->model = std::move(*model);
  auto storage = exec::KvStorage::make(std::move(outline.plan), loaded->allocator);
  if (!storage) return std::unexpected(storage.error());
  loaded->storage = std::move(*storage);
  const cache::CachePlan& plan = loaded->storage.plan();
  auto attention = exec::AttentionGroups::make(loaded->model.spec, loaded->storage, outline.layers, outline.cache.pages,
                                               options.max_num_seqs);
  if (!attention) return std::unexpected(attention.error());
  loaded->attention = std::move(*attention);
  auto forward = exec::Forward::make(loaded->model, loaded->kernels, *loaded->pool, loaded->allocator,
                                     options.max_num_batched_tokens, static_cast<int>(plan.max_model_len));
  if (!forward) return std::unexpected(forward.error());
  loaded->forward = std::make_unique<exec::Forward>(std::move(*forward));

  loaded->cache_root = root_digest(loaded->model, outline.cache.dtype);
  loaded->info = {
      .architecture = loaded->model.spec.architecture,
      .profile = loaded->model.profile,
      .vocab_size = loaded->model.spec.vocab_size,
      .hidden_size = loaded->model.spec.hidden_size,
      .max_model_len = plan.max_model_len,
      .end_tokens = loaded->model.spec.end_tokens,
      .fingerprint = "quire-" + hex(std::span(loaded->cache_root).first(16)),
      .isa = kernels::describe(loaded->kernels),
      .threads = loaded->pool->size(),
      .weight_bytes = loaded->model.weight_bytes,
      .kv_cache_bytes = loaded->storage.size(),
      .kv_cache_tokens = static_cast<int64_t>(plan.max_concurrency() * static_cast<double>(plan.max_model_len)),
      .num_gpu_blocks = static_cast<int>(plan.num_blocks),
      .block_size = static_cast<int>(plan.groups.front().spec.block_size),
      .minimum_reuse_tokens = minimum_reuse(plan, options.prefix_caching),
      .cache_groups = describe_groups(plan)};
  return loaded;
}

}  // namespace quire::engine
