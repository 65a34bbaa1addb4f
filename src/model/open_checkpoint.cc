#include "model/open_checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "weights/quantised_checkpoint.h"

namespace quire::model {
namespace {

using weights::QuantisationScheme;
using Layout = QuantisationScheme::Layout;
using Schemes = Result<std::vector<QuantisationScheme>>;

constexpr int kMostGroup = 1 << 20;

std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

using Words = std::initializer_list<std::string_view>;

// An object of the configuration, read key by key.
class Section {
 public:
  Section(const HuggingFaceConfig& config, std::string path) : config_(config), path_(std::move(path)) {}

  std::string key(std::string_view name) const { return path_ + "/" + std::string(name); }
  bool has(std::string_view name) const { return config_.has(key(name)); }
  // The first of two spellings that is there.
  std::string_view either(std::string_view name, std::string_view other) const { return has(name) ? name : other; }
  Section inner(std::string_view name) const { return {config_, key(name)}; }
  Result<std::vector<std::string>> names() const { return config_.keys(path_); }

  Result<bool> boolean(std::string_view name, bool fallback) const { return config_.boolean_or(key(name), fallback); }

  // One of `words`, or without the key the fallback.
  Result<std::string> word(std::string_view name, std::string_view fallback, Words words) const {
    auto text = config_.string_or(key(name), std::string(fallback));
    if (!text || !has(name)) return text;
    *text = lower(std::move(*text));
    if (std::ranges::find(words, *text) == words.end())
      return not_supported(key(name), *text, fmt::format("{}", fmt::join(words, " or ")));
    return text;
  }

  Result<int> bits(std::string_view name, std::initializer_list<int> known) const {
    auto value = config_.integer(key(name), 1, 64);
    if (value && std::ranges::find(known, *value) == known.end())
      return not_supported(key(name), std::to_string(*value), fmt::format("{}", fmt::join(known, " or ")));
    return value;
  }

  // Inputs that share a scale, or none for -1: all of them.
  Result<std::optional<int64_t>> group_size(std::string_view name) const {
    auto size = config_.integer(key(name), -1, kMostGroup);
    if (!size) return std::unexpected(std::move(size.error()));
    if (*size == -1) return std::nullopt;
    if (*size == 0 || *size % 32 != 0) return not_supported(key(name), std::to_string(*size), "-1 or a multiple of 32");
    return *size;
  }

  // Reads the outputs and inputs of a block.
  Result<void> block(std::string_view name, QuantisationScheme& scheme) const {
    auto sizes = config_.integers(key(name), 1, kMostGroup);
    if (!sizes) return std::unexpected(std::move(sizes.error()));
    if (sizes->size() != 2)
      return not_supported(key(name), fmt::format("[{}]", fmt::join(*sizes, ", ")), "a list of two sizes");
    scheme.group_rows = sizes->front();
    scheme.group_inputs = sizes->back();
    return {};
  }

  Result<void> refuse(std::string_view name, std::string_view why) const {
    if (!config_.has_content(key(name))) return {};
    return fail(ErrorKind::kUnsupported, fmt::format("configuration key {} is not supported: {}", key(name), why),
                key(name));
  }

 private:
  const HuggingFaceConfig& config_;
  std::string path_;
};

Schemes read_awq(const Section& section) {
  QuantisationScheme scheme{.layout = Layout::kAwq};
  const auto bits = section.bits(section.either("bits", "w_bit"), {4});
  if (!bits) return std::unexpected(bits.error());
  scheme.bits = *bits;
  const auto group = section.group_size(section.either("group_size", "q_group_size"));
  if (!group) return std::unexpected(group.error());
  scheme.group_inputs = *group;
  const auto version = section.word(section.either("version", "format"), "gemm", {"gemm"});
  if (!version) return std::unexpected(version.error());
  const auto zeros = section.boolean("zero_point", true);
  if (!zeros) return std::unexpected(zeros.error());
  if (!*zeros) return not_supported(section.key("zero_point"), "false", "true");
  return std::vector{scheme};
}

Schemes read_gptq(const Section& section) {
  QuantisationScheme scheme{.layout = Layout::kGptq};
  const auto bits = section.bits("bits", {4, 8});
  if (!bits) return std::unexpected(bits.error());
  scheme.bits = *bits;
  const auto group = section.group_size("group_size");
  if (!group) return std::unexpected(group.error());
  scheme.group_inputs = *group;
  const auto symmetric = section.boolean("sym", true);
  if (!symmetric) return std::unexpected(symmetric.error());
  scheme.symmetric = *symmetric;
  const auto form = section.word(section.either("checkpoint_format", "format"), "gptq", {"gptq", "gptq_v2"});
  if (!form) return std::unexpected(form.error());
  scheme.zeros_less_one = *form == "gptq";
  if (auto words = section.word("pack_dtype", "int32", {"int32"}); !words) return std::unexpected(words.error());
  const std::pair<const char*, const char*> refused[] = {{"dynamic", "all matrices must have the same bits and groups"},
                                                         {"adapter", "what is added to products would be left out"},
                                                         {"is_marlin_format", "integers must be in the order of GPTQ"}};
  for (const auto& [key, why] : refused)
    if (auto absent = section.refuse(key, why); !absent) return std::unexpected(absent.error());
  return std::vector{scheme};
}

Schemes read_fp8(const Section& section) {
  QuantisationScheme scheme{.layout = Layout::kFp8, .bits = 8, .symmetric = true, .group_rows = 0};
  const auto form = section.word("fmt", "e4m3", {"e4m3", "float8_e4m3fn"});
  if (!form) return std::unexpected(form.error());
  if (section.has("weight_block_size"))
    if (auto block = section.block("weight_block_size", scheme); !block) return std::unexpected(block.error());
  return std::vector{scheme};
}

// The one form that there is: blocks of 32 inputs.
Schemes read_mxfp4(const Section&) {
  return std::vector{QuantisationScheme{.layout = Layout::kMxfp4, .symmetric = true, .group_inputs = 32}};
}

// What shares a scale: by the strategy, or without one by the group's size.
Result<void> read_strategy(const Section& weights, QuantisationScheme& scheme) {
  std::optional<int64_t> group;
  std::string_view implied = "tensor";
  if (weights.has("group_size")) {
    const auto size = weights.group_size("group_size");
    if (!size) return std::unexpected(size.error());
    group = *size;
    implied = group ? "group" : "channel";
  }
  const auto strategy = weights.word("strategy", implied, {"tensor", "channel", "group", "block"});
  if (!strategy) return std::unexpected(strategy.error());
  if (*strategy == "block") {
    if (scheme.layout != Layout::kFp8)
      return not_supported(weights.key("strategy"), "block", "another one for integers");
    return weights.block("block_structure", scheme);
  }
  if (*strategy == "group" && !group) return not_supported(weights.key("group_size"), "not a size", "a multiple of 32");
  if (*strategy == "group") scheme.group_inputs = group;
  if (*strategy == "tensor") scheme.group_rows = 0;
  return {};
}

Result<QuantisationScheme> read_weights(const Section& weights, bool packed) {
  QuantisationScheme scheme;
  const auto type = packed ? weights.word("type", "int", {"int"}) : weights.word("type", "int", {"int", "float"});
  if (!type) return std::unexpected(type.error());
  const bool integers = *type == "int";
  const auto bits = integers ? weights.bits("num_bits", {4, 8}) : weights.bits("num_bits", {8});
  if (!bits) return std::unexpected(bits.error());
  const auto symmetric = weights.boolean("symmetric", true);
  if (!symmetric) return std::unexpected(symmetric.error());
  if (!integers && !*symmetric) return not_supported(weights.key("symmetric"), "false", "true for floats");
  scheme.layout = packed ? Layout::kPacked : integers ? Layout::kInt8 : Layout::kFp8;
  scheme.bits = packed ? *bits : 8;  // else a byte each, whatever their range
  scheme.symmetric = *symmetric;
  if (auto read = read_strategy(weights, scheme); !read) return std::unexpected(read.error());
  return scheme;
}

// Every matrix is compared with each; recipes have a few.
constexpr size_t kMostGroups = 64;

Schemes read_compressed_tensors(const Section& section) {
  const Words kForms = {"pack-quantized", "int-quantized", "float-quantized", "naive-quantized"};
  const Words kAllForms = {"pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "mixed-precision"};
  if (auto absent = section.refuse("transform_config", "activations are not transformed"); !absent)
    return std::unexpected(absent.error());
  if (auto dense = section.inner("sparsity_config").word("format", "dense", {"dense"}); !dense)
    return std::unexpected(dense.error());
  const auto shared = section.word("format", "mixed-precision", kAllForms);
  if (!shared) return std::unexpected(shared.error());
  const auto names = section.inner("config_groups").names();
  if (!names) return std::unexpected(names.error());
  if (names->size() > kMostGroups)
    return not_supported(section.key("config_groups"), fmt::format("of {} groups", names->size()),
                         fmt::format("of {} at most", kMostGroups));
  std::vector<QuantisationScheme> schemes;
  for (const std::string& name : *names) {
    const Section group = section.inner("config_groups").inner(name);
    if (const auto keys = group.names(); !keys) return std::unexpected(keys.error());
    if (!group.has("weights")) continue;  // of activations alone
    const auto form = group.word("format", *shared, kForms);
    if (!form) return std::unexpected(form.error());
    if (*form == "mixed-precision")
      return not_supported(group.key("format"), "absent", fmt::format("{}", fmt::join(kForms, " or ")));
    auto scheme = read_weights(group.inner("weights"), *form == "pack-quantized");
    if (!scheme) return std::unexpected(scheme.error());
    schemes.push_back(*scheme);
  }
  if (schemes.empty()) return not_supported(section.key("config_groups"), "without weights", "of quantised weights");
  return schemes;
}

struct Method {
  std::string_view name;
  Schemes (*read)(const Section&);
};
constexpr std::array kMethods = {Method{"awq", read_awq}, Method{"gptq", read_gptq},
                                 Method{"compressed-tensors", read_compressed_tensors}, Method{"fp8", read_fp8},
                                 Method{"mxfp4", read_mxfp4}};

}  // namespace

Schemes quantisation_schemes(const HuggingFaceConfig& config) {
  const std::string path = "quantization_config";
  const auto present = config.has_section(path);
  if (!present) return std::unexpected(present.error());
  if (!*present) return std::vector<QuantisationScheme>();
  const Section section(config, path);
  const auto method = section.word("quant_method", "", {"awq", "gptq", "compressed-tensors", "fp8", "mxfp4"});
  if (!method) return std::unexpected(method.error());
  for (const Method& known : kMethods)
    if (known.name == *method) return known.read(section);
  return fail(ErrorKind::kCorruptFile, "configuration key quantization_config/quant_method is missing",
              section.key("quant_method"));
}

Result<weights::Checkpoint> open_checkpoint(const std::filesystem::path& path, const ConfigSource& source) {
  auto checkpoint = weights::open_checkpoint(path, source.path);
  if (!checkpoint) return checkpoint;
  if (!source.overrides.empty()) {
    if (checkpoint->gguf != nullptr)
      return fail(ErrorKind::kInvalidRequest, "hf_overrides is of no use with GGUF, which has no config.json",
                  "hf_overrides");
    auto config = with_overrides(checkpoint->config_json, source.overrides);
    if (!config) return std::unexpected(config.error());
    checkpoint->config_json = std::move(*config);
  }
  if (checkpoint->safetensors == nullptr) return checkpoint;
  const auto config = HuggingFaceConfig::parse(checkpoint->config_json, checkpoint->generation_config_json);
  if (!config) return std::unexpected(config.error());
  const auto schemes = quantisation_schemes(*config);
  if (!schemes) return std::unexpected(schemes.error());
  if (schemes->empty()) {
    if (auto plain = weights::check_unquantised(*checkpoint->safetensors); !plain)
      return std::unexpected(plain.error());
    return checkpoint;
  }
  auto tensors = weights::QuantisedCheckpoint::open(std::move(checkpoint->tensors), *checkpoint->safetensors, *schemes);
  if (!tensors) return std::unexpected(std::move(tensors.error()));
  checkpoint->tensors = std::move(*tensors);
  for (const QuantisationScheme& scheme : *schemes)
    checkpoint->quantisation += (checkpoint->quantisation.empty() ? "" : "; ") + describe(scheme);
  return checkpoint;
}

}  // namespace quire::model
