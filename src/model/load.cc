#include "model/load.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <deque>
#include <set>
#include <span>
#include <utility>

#include "base/overloaded.h"
#include "kernels/gemm.h"
#include "kernels/math.h"
#include "model/tensor_names.h"
#include "weights/stacked_matrix.h"

namespace quire::model {
namespace {

kernels::WeightTarget target_of(Profile profile) {
  switch (profile) {
    case Profile::kF32:
      return kernels::WeightTarget::kF32;
    case Profile::kBF16:
      return kernels::WeightTarget::kBF16;
    case Profile::kQ8:
      return kernels::WeightTarget::kNative;
  }
  return kernels::WeightTarget::kF32;
}

kernels::WeightTarget target_of(const MatrixSpec& matrix, const MatrixPart& part, Profile profile) {
  if (part.in_fp32) return kernels::WeightTarget::kF32;
  return matrix.keeps_integers ? kernels::WeightTarget::kNative : target_of(profile);
}

std::string shape_text(std::span<const int64_t> shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

Result<const weights::Tensor*> require_shape(const weights::TensorSource& tensors, const std::string& name,
                                             std::span<const int64_t> shape) {
  auto tensor = tensors.require(name);
  if (!tensor) return tensor;
  if (!std::ranges::equal((*tensor)->shape, shape))
    return fail(ErrorKind::kCorruptFile,
                fmt::format("tensor {} is {}, but the configuration implies the shape {}", name,
                            weights::describe(**tensor), shape_text(shape)),
                name);
  return tensor;
}

// Row n of the packed part, in halves, is this row of the file, in pairs.
int interleaved_row(int n, int head_dim) {
  const int head = n / head_dim, i = n % head_dim, half = head_dim / 2;
  return head * head_dim + i % half * 2 + i / half;
}

int row_of_groups(int n, const RowGroups& g) { return n / g.count * g.size + g.first + n % g.count; }

// The row of the tensor that becomes row n of the part.
int row_of(const MatrixPart& part, int n) {
  if (part.groups) return row_of_groups(n, *part.groups);
  return part.interleaved_head_dim > 0 ? interleaved_row(n, part.interleaved_head_dim) : n;
}

// All that loading one checkpoint needs; lives for one call of load_weights().
class Loader {
 public:
  Loader(const weights::TensorSource& tensors, Profile profile, LoadContext& context)
      : tensors_(tensors), profile_(profile), context_(context) {}

  void expect(size_t total) { total_ = total; }

  // A tensor as it is, widened.
  Result<void> numbers(const std::string& name, std::initializer_list<int64_t> shape, std::vector<float>& out) {
    auto tensor = require_floats(name, shape);
    if (!tensor) return std::unexpected(tensor.error());
    widen(**tensor, out);
    count((*tensor)->bytes());
    return {};
  }

  // The weights of a convolution over each channel alone, as [width][channels]; files have [channels][width], with a
  // dimension of 1 between them or not.
  Result<void> convolution(const GatedDeltaSpec& spec, std::vector<float>& out) {
    const int width = spec.shape.conv_width;
    const auto channels = static_cast<size_t>(spec.shape.channels());
    out.resize(channels * static_cast<size_t>(width));
    size_t first = 0;
    for (const ConvolutionPart& part : spec.conv) {
      const weights::Tensor* tensor = tensors_.find(part.tensor);
      const bool flat = tensor == nullptr || tensor->shape.size() != 3;
      std::vector<float> rows;
      if (auto read = flat ? numbers(part.tensor, {part.channels, width}, rows)
                           : numbers(part.tensor, {part.channels, 1, width}, rows);
          !read)
        return read;
      for (size_t i = 0; i < rows.size(); ++i) {
        const size_t channel = i / static_cast<size_t>(width), token = i % static_cast<size_t>(width);
        out[token * channels + first + channel] = rows[i];
      }
      first += static_cast<size_t>(part.channels);
    }
    return {};
  }

  // Of matrices that are not packed for products of their own.
  DType matrix_dtype() const { return profile_ == Profile::kF32 ? DType::kF32 : DType::kBF16; }

  // A tensor of any format, widened, and rounded to matrix_dtype().
  Result<void> matrix(const std::string& name, std::initializer_list<int64_t> shape, std::vector<float>& out) {
    auto tensor = require_shape(tensors_, name, shape);
    if (!tensor) return std::unexpected(tensor.error());
    widen(**tensor, out);
    if (matrix_dtype() == DType::kBF16)
      for (float& value : out) value = bf16_to_float(float_to_bf16(value));
    packed_bytes_ += out.size() * size_of(matrix_dtype());
    count((*tensor)->bytes());
    return {};
  }

  Result<void> norm(const NormSpec& spec, std::vector<float>& out) {
    if (!spec.has_weights()) return {};
    if (auto read = numbers(spec.tensor, {spec.size}, out); !read) return read;
    for (float& value : out) value += spec.offset;
    return {};
  }

  Result<void> linear(const MatrixSpec& spec, Linear& out) { return linear(spec, out, context_.allocator); }

  Result<void> expert_linear(const MatrixSpec& spec, Linear& out) {
    return linear(spec, out, context_.experts != nullptr ? *context_.experts : context_.allocator);
  }

  size_t packed_bytes() const { return packed_bytes_; }

 private:
  Result<void> linear(const MatrixSpec& spec, Linear& out, Allocator& memory) {
    out.rows = spec.rows();
    out.cols = spec.cols;
    std::deque<weights::StackedMatrix> stacked;
    std::vector<kernels::PackSource> sources;
    kernels::WeightTarget target = target_of(profile_);  // of the sources, of which all have one layout
    int first_row = 0, next_row = 0;
    const auto flush = [&]() -> Result<void> {
      if (sources.empty()) return {};
      auto matrix = pack(sources, target, spec.slice_unit, memory);
      if (!matrix) return std::unexpected(matrix.error());
      out.parts.push_back({std::move(*matrix), first_row});
      sources.clear();
      first_row = next_row;
      return {};
    };
    for (const MatrixPart& part : spec.parts) {
      auto tensor = find(part, spec.cols, stacked);
      if (!tensor) return std::unexpected(tensor.error());
      const kernels::WeightTarget own = target_of(spec, part, profile_);
      const auto layout = kernels::layout_for((*tensor)->format, own);
      if (!sources.empty() && layout != kernels::layout_for(sources.back().tensor->format, target))
        if (auto flushed = flush(); !flushed) return flushed;
      if (sources.empty()) target = own;
      kernels::PackSource source{.tensor = *tensor, .rows = part.rows};
      if (part.interleaved_head_dim > 0 || part.groups) source.source_row = [&part](int n) { return row_of(part, n); };
      sources.push_back(std::move(source));
      next_row += part.rows;
    }
    if (auto flushed = flush(); !flushed) return flushed;
    return bias(spec, out.bias);
  }

  Result<const weights::Tensor*> require_floats(const std::string& name, std::span<const int64_t> shape) {
    auto tensor = require_shape(tensors_, name, shape);
    if (!tensor) return tensor;
    if (weights::is_quantised((*tensor)->format))
      return fail(ErrorKind::kUnsupported, fmt::format("tensor {} is quantised; it must hold floats", name), name);
    return tensor;
  }

  // The part's own of a stack.
  Result<std::vector<float>> bias(const MatrixPart& part) {
    std::vector<int64_t> shape = {part.tensor_rows()};
    if (part.stack > 0) shape.insert(shape.begin(), part.stack);
    auto tensor = require_floats(part.bias, shape);
    if (!tensor) return std::unexpected(tensor.error());
    std::vector<float> values(static_cast<size_t>(part.tensor_rows()));
    std::vector<std::byte> scratch((*tensor)->made == nullptr ? 0 : (*tensor)->row_bytes());
    weights::dequantise((*tensor)->format, (*tensor)->row(part.entry, scratch), values);
    return values;
  }

  // The biases of all parts, with 0 for those that have none.
  Result<void> bias(const MatrixSpec& spec, std::vector<float>& out) {
    if (std::ranges::none_of(spec.parts, &MatrixPart::has_bias)) return {};
    for (const MatrixPart& part : spec.parts) {
      const size_t first = out.size();
      out.resize(first + static_cast<size_t>(part.rows));
      if (!part.has_bias()) continue;
      auto values = bias(part);
      if (!values) return std::unexpected(values.error());
      for (int n = 0; n < part.rows; ++n)
        out[first + static_cast<size_t>(n)] = (*values)[static_cast<size_t>(row_of(part, n))];
      count(tensors_.find(part.bias)->row_bytes() / values->size() * static_cast<size_t>(part.rows));
    }
    return {};
  }

  // The matrix that the part names, by its rows.
  Result<const weights::Tensor*> find(const MatrixPart& part, int cols, std::deque<weights::StackedMatrix>& stacked) {
    std::vector<int64_t> shape = {part.tensor_rows(), cols};
    if (part.transposed) std::swap(shape[0], shape[1]);
    if (part.stack > 0) shape.insert(shape.begin(), part.stack);
    const weights::Tensor* present = tensors_.find(part.tensor);
    // GGUF keeps no dimensions of one behind the last other.
    const bool vector = part.stack == 0 && shape[0] == 1 && present != nullptr && present->shape.size() == 1;
    if (vector) shape.erase(shape.begin());
    auto tensor = require_shape(tensors_, part.tensor, shape);
    if (!tensor || (part.stack == 0 && !part.transposed && !vector)) return tensor;
    if (part.transposed && weights::is_quantised((*tensor)->format))
      return fail(ErrorKind::kUnsupported,
                  fmt::format("tensor {} {} is quantised; it must hold floats, since its rows are inputs", part.tensor,
                              weights::describe(**tensor)),
                  part.tensor);
    return &stacked.emplace_back(**tensor, part.entry, part.transposed).tensor();
  }

  static void widen(const weights::Tensor& tensor, std::vector<float>& out) {
    out.resize(static_cast<size_t>(tensor.elements()));
    weights::widen(tensor, out);
  }

  Result<kernels::PackedMatrix> pack(std::span<const kernels::PackSource> sources, kernels::WeightTarget target,
                                     int slice_unit, Allocator& memory) {
    const weights::Tensor& first = *sources.front().tensor;
    const int slices =
        slice_unit == 0 ? 1 : kernels::slice_count(first.format, static_cast<int>(first.shape[1]), slice_unit);
    auto matrix = kernels::pack(sources, target, slices, memory, context_.pool);
    if (!matrix) return matrix;
    packed_bytes_ += matrix->bytes();
    for (const auto& source : sources)
      count(source.tensor->bytes() / static_cast<size_t>(source.tensor->shape[0]) * static_cast<size_t>(source.rows));
    return matrix;
  }

  // Every row of the spec's tensors is read once, so that the last one makes it 1.
  void count(size_t bytes) {
    done_ += bytes;
    if (context_.progress) context_.progress(static_cast<double>(done_) / static_cast<double>(total_));
  }

  const weights::TensorSource& tensors_;
  Profile profile_;
  LoadContext& context_;
  size_t total_ = 0;
  size_t done_ = 0;
  size_t packed_bytes_ = 0;
};

// Digests of the tensors, made in parallel, hashed in the spec's order.
Sha256Digest digest_of(const ModelSpec& spec, const weights::TensorSource& tensors, ThreadPool& pool) {
  std::vector<const weights::Tensor*> list;
  for_each_name(spec, [&](const std::string& name) { list.push_back(tensors.find(name)); });
  std::vector<Sha256Digest> digests(list.size());
  std::atomic<size_t> next{0};
  pool.run([&](int) {
    for (size_t i; (i = next.fetch_add(1)) < list.size();) {
      Sha256 hash;
      weights::add_to_digest(*list[i], hash);
      digests[i] = hash.finish();
    }
  });
  Sha256 all;
  for (const auto& digest : digests) all.update(digest);
  return all.finish();
}

Result<void> load_mixer(Loader& loader, const AttentionSpec& spec, LayerWeights& layer) {
  auto& out = layer.mixer.emplace<AttentionWeights>();
  if (auto loaded = loader.norm(spec.q_norm, out.q_norm); !loaded) return loaded;
  if (auto loaded = loader.norm(spec.k_norm, out.k_norm); !loaded) return loaded;
  if (!spec.sinks.empty())
    if (auto loaded = loader.numbers(spec.sinks, {spec.q_heads}, out.sinks); !loaded) return loaded;
  if (auto loaded = loader.linear(spec.qkv, out.qkv); !loaded) return loaded;
  return loader.linear(spec.output, out.output);
}

Result<void> load_mixer(Loader& loader, const GatedDeltaSpec& spec, LayerWeights& layer) {
  auto& out = layer.mixer.emplace<GatedDeltaWeights>();
  const kernels::GatedDeltaShape& shape = spec.shape;
  if (auto loaded = loader.convolution(spec, out.conv); !loaded) return loaded;
  if (auto loaded = loader.numbers(spec.decay, {shape.heads}, out.rate); !loaded) return loaded;
  for (float& rate : out.rate) {
    const bool number = std::isfinite(rate);
    rate = spec.decay_form == DecayForm::kLogarithm ? kernels::exp(rate) : -rate;
    if (!number || !std::isfinite(rate) || rate < 0)
      return fail(ErrorKind::kCorruptFile,
                  fmt::format("tensor {} means rates of decay that are negative or not finite", spec.decay),
                  spec.decay);
  }
  if (auto loaded = loader.numbers(spec.dt_bias, {shape.decays()}, out.dt_bias); !loaded) return loaded;
  if (auto loaded = loader.norm(spec.norm, out.norm); !loaded) return loaded;
  if (auto loaded = loader.linear(spec.input, out.input); !loaded) return loaded;
  if (spec.narrows_gates()) {
    if (auto loaded = loader.linear(spec.z, out.z); !loaded) return loaded;
    if (auto loaded = loader.linear(spec.a, out.a); !loaded) return loaded;
  }
  return loader.linear(spec.output, out.output);
}

Result<void> load_indexer(Loader& loader, const PooledIndexSpec& spec, PooledIndexWeights& out) {
  if (auto loaded = loader.numbers(spec.norm_weight, {spec.shape.dim}, out.norm_weight); !loaded) return loaded;
  if (auto loaded = loader.numbers(spec.norm_bias, {spec.shape.dim}, out.norm_bias); !loaded) return loaded;
  if (!spec.shape.keeps_ring()) return {};
  return loader.numbers(spec.position_bias, {spec.shape.pool, spec.shape.dim}, out.position_bias);
}

// [heads][nope_dim + value_dim][rank]
Result<void> load_expansion(Loader& loader, const LatentSpec& spec, std::vector<float>& out) {
  const kernels::LatentShape& s = spec.shape;
  if (!spec.expansion.both.empty()) return loader.matrix(spec.expansion.both, {s.expansion_rows(), s.rank}, out);
  std::vector<float> keys, values;
  if (auto loaded = loader.matrix(spec.expansion.keys, {s.heads, s.rank, s.nope_dim}, keys); !loaded) return loaded;
  if (auto loaded = loader.matrix(spec.expansion.values, {s.heads, s.value_dim, s.rank}, values); !loaded)
    return loaded;
  out.reserve(keys.size() + values.size());
  const auto nope = static_cast<size_t>(s.nope_dim), rank = static_cast<size_t>(s.rank);
  const size_t value_size = static_cast<size_t>(s.value_dim) * rank;
  for (size_t h = 0; h < static_cast<size_t>(s.heads); ++h) {
    const float* of_head = keys.data() + h * rank * nope;
    for (size_t i = 0; i < nope; ++i)
      for (size_t r = 0; r < rank; ++r) out.push_back(of_head[r * nope + i]);
    out.insert(out.end(), values.begin() + static_cast<ptrdiff_t>(h * value_size),
               values.begin() + static_cast<ptrdiff_t>((h + 1) * value_size));
  }
  return {};
}

Result<void> load_mixer(Loader& loader, const LatentSpec& spec, LayerWeights& layer) {
  auto& out = layer.mixer.emplace<LatentWeights>();
  if (auto loaded = loader.norm(spec.query_norm, out.query_norm); !loaded) return loaded;
  if (auto loaded = loader.norm(spec.latent_norm, out.latent_norm); !loaded) return loaded;
  std::vector<float> expansion;
  if (auto loaded = load_expansion(loader, spec, expansion); !loaded) return loaded;
  out.expansion = kernels::Expansion(spec.shape, expansion, loader.matrix_dtype());
  if (spec.indexer)
    if (auto loaded = load_indexer(loader, *spec.indexer, out.indexer.emplace()); !loaded) return loaded;
  if (auto loaded = loader.linear(spec.input, out.input); !loaded) return loaded;
  if (spec.narrows_queries())
    if (auto loaded = loader.linear(spec.query, out.query); !loaded) return loaded;
  return loader.linear(spec.output, out.output);
}

Result<void> load_mlp(Loader& loader, const MlpSpec& spec, MlpWeights& out) {
  if (auto loaded = loader.linear(spec.gate_up, out.gate_up); !loaded) return loaded;
  return loader.linear(spec.down, out.down);
}

Result<void> load_expert(Loader& loader, const MlpSpec& spec, MlpWeights& out) {
  if (auto loaded = loader.expert_linear(spec.gate_up, out.gate_up); !loaded) return loaded;
  return loader.expert_linear(spec.down, out.down);
}

// Whether the expert can be multiplied together with the first one.
Result<void> check_alike(const MlpSpec& spec, const MlpWeights& expert, const MlpWeights& first) {
  const auto kind = [](const Linear& linear, size_t part) {
    return kernels::activation_kind(linear.parts[part].matrix.layout());
  };
  const auto bad = [](const MatrixSpec& matrix) {
    const std::string& name = matrix.parts.front().tensor;
    return fail(ErrorKind::kUnsupported,
                fmt::format("tensor {} has another format than the first expert's; all of a layer must be alike", name),
                name);
  };
  for (size_t i = 0; i < expert.gate_up.parts.size(); ++i)
    if (kind(expert.gate_up, i) != kind(first.gate_up, 0)) return bad(spec.gate_up);
  const bool same_slices = expert.down.parts.front().matrix.slices() == first.down.parts.front().matrix.slices();
  if (!same_slices || kind(expert.down, 0) != kind(first.down, 0)) return bad(spec.down);
  return {};
}

Result<void> load_moe(Loader& loader, const MoeSpec& spec, MoeWeights& out) {
  if (auto loaded = loader.linear(spec.scores, out.scores); !loaded) return loaded;
  if (!spec.correction.empty())
    if (auto loaded = loader.numbers(spec.correction, {spec.router.experts}, out.correction); !loaded) return loaded;
  out.experts.resize(spec.experts.size());
  for (size_t e = 0; e < spec.experts.size(); ++e) {
    if (auto loaded = load_expert(loader, spec.experts[e], out.experts[e]); !loaded) return loaded;
    if (auto ok = check_alike(spec.experts[e], out.experts[e], out.experts.front()); !ok) return ok;
  }
  return spec.shared ? load_mlp(loader, *spec.shared, out.shared.emplace()) : Result<void>();
}

Result<void> load_streams(Loader& loader, const StreamsSpec& spec, StreamsWeights& out) {
  if (auto loaded = loader.linear(spec.scores, out.scores); !loaded) return loaded;
  if (auto loaded = loader.numbers(spec.scale, {3}, out.scale); !loaded) return loaded;
  return loader.numbers(spec.bias, {spec.scores.rows()}, out.bias);
}

Result<void> load_layer(Loader& loader, const LayerSpec& spec, LayerWeights& out) {
  if (spec.attention_streams)
    if (auto ok = load_streams(loader, *spec.attention_streams, out.attention_streams.emplace()); !ok) return ok;
  if (spec.mlp_streams)
    if (auto ok = load_streams(loader, *spec.mlp_streams, out.mlp_streams.emplace()); !ok) return ok;
  if (auto loaded = std::visit([&](const auto& mixer) { return load_mixer(loader, mixer, out); }, spec.mixer); !loaded)
    return loaded;
  const std::pair<const NormSpec*, std::vector<float>*> norms[] = {
      {&spec.attention_norm, &out.attention_norm},
      {&spec.attention_post_norm, &out.attention_post_norm},
      {&spec.mlp_norm, &out.mlp_norm},
      {&spec.mlp_post_norm, &out.mlp_post_norm}};
  for (const auto& [norm, to] : norms)
    if (auto loaded = loader.norm(*norm, *to); !loaded) return loaded;
  return std::visit(Overloaded{[&](const MlpSpec& m) { return load_mlp(loader, m, out.mlp.emplace<MlpWeights>()); },
                               [&](const MoeSpec& m) { return load_moe(loader, m, out.mlp.emplace<MoeWeights>()); }},
                    spec.mlp);
}

}  // namespace

Profile default_profile(const ModelSpec& spec, const weights::TensorSource& tensors) {
  bool quantised = false;
  for_each_name(spec, [&](const std::string& name) {
    const weights::Tensor* tensor = tensors.find(name);
    quantised |= tensor != nullptr && weights::is_quantised(tensor->format);
  });
  return quantised ? Profile::kQ8 : Profile::kBF16;
}

WeightMemory memory_of(const ModelSpec& spec, const weights::TensorSource& tensors, Profile profile) {
  std::set<const MatrixSpec*> experts;
  for (const LayerSpec& layer : spec.layers)
    if (const auto* moe = std::get_if<MoeSpec>(&layer.mlp))
      for (const MlpSpec& expert : moe->experts) experts.insert({&expert.gate_up, &expert.down});
  WeightMemory memory;
  for_each_tensor(spec, [&](const std::string& name, const MatrixSpec* matrix, const MatrixPart* part) {
    const weights::Tensor* tensor = tensors.find(name);
    if (tensor == nullptr) return;
    if (matrix == nullptr) {
      memory.all += static_cast<size_t>(tensor->elements()) * sizeof(float);
      return;
    }
    const weights::Tensor one{.name = name, .format = tensor->format, .shape = {part->tensor_rows(), matrix->cols}};
    const size_t bytes =
        kernels::packed_bytes(one, target_of(*matrix, *part, profile)) * static_cast<size_t>(std::max(1, part->stack));
    memory.all += bytes;
    if (experts.contains(matrix)) memory.experts += bytes;
  });
  if (profile == Profile::kF32) return memory;
  for (const LayerSpec& layer : spec.layers)
    if (const auto* latent = std::get_if<LatentSpec>(&layer.mixer))
      for (const std::string* name : latent->expansion.tensors())
        if (const weights::Tensor* tensor = tensors.find(*name))
          memory.all -= static_cast<size_t>(tensor->elements()) * (sizeof(float) - size_of(DType::kBF16));
  return memory;
}

Result<void> check_profile(const ModelSpec& spec, const weights::TensorSource& tensors, Profile profile) {
  if (profile != Profile::kQ8 || default_profile(spec, tensors) == Profile::kQ8) return {};
  return fail(ErrorKind::kUnsupported,
              "profile q8 needs a quantised checkpoint, or quantization int8 or int4; use bfloat16 or float32",
              "dtype");
}

Result<Model> load_weights(ModelSpec spec, const weights::TensorSource& tensors, Profile profile, LoadContext context) {
  if (auto fits = check_profile(spec, tensors, profile); !fits) return std::unexpected(fits.error());
  if (auto named = check_names(spec, tensors); !named) return std::unexpected(named.error());
  Model model;
  model.profile = profile;
  model.digest = digest_of(spec, tensors, context.pool);

  Loader loader(tensors, profile, context);
  size_t total = 0;
  for_each_name(spec, [&](const std::string& name) { total += tensors.find(name)->bytes(); });
  loader.expect(total);

  model.layers.resize(spec.layers.size());
  for (size_t i = 0; i < spec.layers.size(); ++i)
    if (auto loaded = load_layer(loader, spec.layers[i], model.layers[i]); !loaded)
      return std::unexpected(loaded.error());
  if (auto loaded = loader.norm(spec.final_norm, model.final_norm); !loaded) return std::unexpected(loaded.error());
  if (auto loaded = loader.linear(spec.head, model.head); !loaded) return std::unexpected(loaded.error());
  if (!spec.tied_head()) {
    Linear embedding;
    if (auto loaded = loader.linear(embedding_of(spec), embedding); !loaded) return std::unexpected(loaded.error());
    model.embedding = std::move(embedding.parts.front().matrix);
  }
  model.weight_bytes = loader.packed_bytes();
  model.spec = std::move(spec);
  return model;
}

}  // namespace quire::model
