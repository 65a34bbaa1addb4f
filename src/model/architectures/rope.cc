#include "model/architectures/rope.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <optional>
#include <string_view>
#include <vector>

#include "kernels/math.h"

namespace quire::model {
namespace {

using kernels::RopeParameters;
using kernels::RopeType;

// Keys of a rope section that are read for some type. For others the reference passes over them, and so does this.
constexpr std::array<std::string_view, 15> kKnown = {
    "rope_type",        "type",
    "rope_theta",       "partial_rotary_factor",
    "factor",           "beta_fast",
    "beta_slow",        "truncate",
    "attention_factor", "mscale",
    "mscale_all_dim",   "low_freq_factor",
    "high_freq_factor", "original_max_position_embeddings",
    "finetuned",  // a note that changes nothing
};
// Read for the type longrope; and how axes of images share the dimensions, which is all one for text.
constexpr std::array<std::string_view, 4> kKnownToo = {"short_factor", "long_factor", "mrope_section",
                                                       "mrope_interleaved"};

constexpr double kGgufTheta = 10000;  // where a file does not say it, whatever the architecture

double yarn_mscale(double factor, double mscale) { return factor <= 1 ? 1 : 0.1 * mscale * kernels::ln(factor) + 1; }

// Where a configuration keeps the values of one rope.
struct Section {
  const HuggingFaceConfig& config;
  std::string root;  // "rope_scaling", "rope_parameters" or one of the latter's sections
  bool is_new = false;

  std::string key(std::string_view name) const { return fmt::format("{}/{}", root, name); }
  // In the section, or beside it, where older configurations have it.
  std::string key_or_outer(std::string_view name) const {
    return config.has(key(name)) ? key(name) : std::string(name);
  }
};

Result<Section> find_section(const HuggingFaceConfig& config, const std::string& name) {
  auto is_new = config.has_section("rope_parameters");
  if (!is_new) return std::unexpected(is_new.error());
  Section section{config,
                  !*is_new       ? "rope_scaling"
                  : name.empty() ? "rope_parameters"
                                 : "rope_parameters/" + name,
                  *is_new};
  auto present = config.has_section(section.root);
  if (!present) return std::unexpected(present.error());
  if (*is_new && !*present)
    return fail(ErrorKind::kCorruptFile, fmt::format("configuration key {} is missing", section.root), section.root);
  if (!*present) return section;
  if (*is_new && !name.empty()) {
    // Beside the section others may stand, of other types of layers, and nothing else.
    auto beside = config.keys("rope_parameters");
    if (!beside) return std::unexpected(beside.error());
    for (const std::string& key : *beside)
      if (auto is_section = config.has_section("rope_parameters/" + key); !is_section)
        return std::unexpected(is_section.error());
  }
  auto keys = config.keys(section.root);
  if (!keys) return std::unexpected(keys.error());
  for (const std::string& key : *keys)
    if (std::ranges::find(kKnown, key) == kKnown.end() && std::ranges::find(kKnownToo, key) == kKnownToo.end())
      return fail(ErrorKind::kUnsupported,
                  fmt::format("configuration key {} is not understood, and might change the result", section.key(key)),
                  section.key(key));
  return section;
}

Result<std::string> type_of(const Section& section) {
  const std::string key = section.key(section.config.has(section.key("rope_type")) ? "rope_type" : "type");
  auto type = section.config.string_or(key, "default");
  // Phi-3's older names for it.
  if (type && (*type == "su" || (*type == "yarn" && section.config.has(section.key("short_factor")))))
    *type = "longrope";
  constexpr std::array<std::string_view, 6> kTypes = {"default", "linear", "dynamic", "llama3", "yarn", "longrope"};
  if (type && std::ranges::find(kTypes, *type) == kTypes.end())
    return fail(ErrorKind::kUnsupported,
                fmt::format("{} {} is not supported; supported are {}", key, *type, fmt::join(kTypes, ", ")), key);
  return type;
}

Result<void> positive(const Section& section, std::string_view name, double value) {
  if (value > 0) return {};
  return fail(ErrorKind::kCorruptFile, fmt::format("configuration key {} must be positive", section.key(name)),
              section.key(name));
}

// The length before any scaling: beside the section, in it, or the model's own.
void take_original_length(const Section& s, RopeParameters& rope, std::optional<Error>& error) {
  constexpr const char* kKey = "original_max_position_embeddings";
  const std::string key = s.config.has(kKey) ? kKey : s.key(kKey);
  take(s.config.integer_or(key, 1, kMaxPositions, static_cast<int>(rope.longest)), rope.original_max_position, error);
}

Result<void> read_llama3(const Section& s, RopeParameters& rope) {
  rope.type = RopeType::kLlama3;
  std::optional<Error> error;
  take(s.config.number(s.key("factor")), rope.factor, error);
  take(s.config.number(s.key("low_freq_factor")), rope.low_freq_factor, error);
  take(s.config.number(s.key("high_freq_factor")), rope.high_freq_factor, error);
  take_original_length(s, rope, error);
  if (error) return std::unexpected(*error);
  if (auto ok = positive(s, "factor", rope.factor); !ok) return ok;
  if (rope.high_freq_factor >= rope.low_freq_factor) return {};
  return fail(ErrorKind::kCorruptFile,
              fmt::format("configuration key {} must be at least low_freq_factor", s.key("high_freq_factor")),
              s.key("high_freq_factor"));
}

Result<void> read_yarn(const Section& s, RopeParameters& rope) {
  rope.type = RopeType::kYarn;
  std::optional<Error> error;
  double mscale = 0, all_dim = 0;
  take_original_length(s, rope, error);
  take(s.config.number_or(s.key("factor"), rope.longest / rope.original_max_position), rope.factor, error);
  take(s.config.number_or(s.key("beta_fast"), 32), rope.beta_fast, error);
  take(s.config.number_or(s.key("beta_slow"), 1), rope.beta_slow, error);
  take(s.config.boolean_or(s.key("truncate"), true), rope.truncate, error);
  take(s.config.number_or(s.key("mscale"), 0), mscale, error);
  take(s.config.number_or(s.key("mscale_all_dim"), 0), all_dim, error);
  if (error) return std::unexpected(*error);
  if (auto ok = positive(s, "factor", rope.factor); !ok) return ok;
  rope.attention_factor = mscale != 0 && all_dim != 0
                              ? yarn_mscale(rope.factor, mscale) / yarn_mscale(rope.factor, all_dim)
                              : yarn_mscale(rope.factor, 1);
  take(s.config.number_or(s.key("attention_factor"), rope.attention_factor), rope.attention_factor, error);
  if (error) return std::unexpected(*error);
  return positive(s, "attention_factor", rope.attention_factor);
}

Result<void> read_divisors(const Section& s, std::string_view name, int count, std::vector<float>& out) {
  auto numbers = s.config.numbers(s.key(name));
  if (!numbers) return std::unexpected(numbers.error());
  if (numbers->size() != static_cast<size_t>(count))
    return fail(ErrorKind::kCorruptFile,
                fmt::format("configuration key {} must have {} numbers, half of the dimensions that turn, not {}",
                            s.key(name), count, numbers->size()),
                s.key(name));
  for (double number : *numbers) {
    if (auto ok = positive(s, name, number); !ok) return ok;
    out.push_back(static_cast<float>(number));
  }
  return {};
}

Result<void> read_longrope(const Section& s, RopeParameters& rope) {
  std::optional<Error> error;
  double factor = 0;
  take_original_length(s, rope, error);
  take(s.config.number_or(s.key("factor"), rope.longest / rope.original_max_position), factor, error);
  if (error) return std::unexpected(*error);
  if (auto ok = positive(s, "factor", factor); !ok) return ok;
  if (auto ok = read_divisors(s, "short_factor", rope.rotary_dim / 2, rope.frequency_divisors); !ok) return ok;
  if (auto ok = read_divisors(s, "long_factor", rope.rotary_dim / 2, rope.long_divisors); !ok) return ok;
  if (factor > 1 && rope.original_max_position > 1)
    rope.attention_factor = std::sqrt(1 + kernels::ln(factor) / kernels::ln(rope.original_max_position));
  take(s.config.number_or(s.key("attention_factor"), rope.attention_factor), rope.attention_factor, error);
  if (error) return std::unexpected(*error);
  return positive(s, "attention_factor", rope.attention_factor);
}

Result<void> read_factor(const Section& s, RopeType type, RopeParameters& rope) {
  rope.type = type;
  rope.original_max_position = rope.longest;
  auto factor = s.config.number(s.key("factor"));
  if (!factor) return std::unexpected(factor.error());
  rope.factor = *factor;
  return positive(s, "factor", rope.factor);
}

// A factor that nothing would come of: whoever wrote it meant a scaling.
Result<void> refuse_factor(const Section& s) {
  const std::string key = s.key("factor");
  auto factor = s.config.number_or(key, 1);
  if (!factor) return std::unexpected(factor.error());
  if (*factor == 1) return {};
  return fail(
      ErrorKind::kUnsupported,
      fmt::format("configuration key {} is {}, but the rope's type is default, which has none; {} must say which", key,
                  *factor, s.key("rope_type")),
      key);
}

// How many of the head's dimensions turn.
Result<int> rotary_dim(const Section& section, int head_dim, double default_part) {
  const std::string key = section.key_or_outer("partial_rotary_factor");
  auto part = section.config.number_or(key, default_part);
  if (!part) return std::unexpected(part.error());
  const int dim = *part > 0 && *part <= 1 ? static_cast<int>(head_dim * *part) : 0;
  if (dim >= 2 && dim % 2 == 0) return dim;
  return fail(ErrorKind::kCorruptFile,
              fmt::format("configuration key {} must be above 0, at most 1, and make an even number of the {} "
                          "dimensions of a head turn",
                          key, head_dim),
              key);
}

}  // namespace

Result<RopeParameters> hugging_face_rope(const HuggingFaceConfig& config, const std::string& section, int head_dim,
                                         double default_theta, double default_part) {
  auto s = find_section(config, section);
  if (!s) return std::unexpected(s.error());
  auto type = type_of(*s);
  if (!type) return std::unexpected(type.error());
  auto dim = rotary_dim(*s, head_dim, default_part);
  if (!dim) return std::unexpected(dim.error());
  RopeParameters rope{.rotary_dim = *dim};
  std::optional<Error> error;
  const std::string theta_key = s->key_or_outer("rope_theta");
  take(config.number_or(theta_key, default_theta), rope.theta, error);
  take(config.integer("max_position_embeddings", 1, kMaxPositions), rope.longest, error);
  if (error) return std::unexpected(*error);
  if (!(rope.theta > 1)) return fail(ErrorKind::kCorruptFile, theta_key + " must be greater than 1", theta_key);

  Result<void> read;
  if (*type == "default") read = refuse_factor(*s);
  if (*type == "linear") read = read_factor(*s, RopeType::kLinear, rope);
  if (*type == "dynamic") read = read_factor(*s, RopeType::kDynamic, rope);
  if (*type == "llama3") read = read_llama3(*s, rope);
  if (*type == "yarn") read = read_yarn(*s, rope);
  if (*type == "longrope") read = read_longrope(*s, rope);
  if (!read) return std::unexpected(read.error());
  return rope;
}

namespace {

Result<double> squared_mscale(double factor, double all_dim, const std::string& key) {
  constexpr double kMost = 1000;
  const double mscale = factor > 0 ? yarn_mscale(factor, all_dim) : 0;
  if (mscale > 0 && mscale <= kMost) return mscale * mscale;
  return fail(ErrorKind::kCorruptFile,
              fmt::format("{} {} with the factor {} means a scale of {}; it must be above 0 and at most {}", key,
                          all_dim, factor, mscale, kMost),
              key);
}

}  // namespace

Result<double> yarn_softmax_factor(const HuggingFaceConfig& config) {
  auto s = find_section(config, "");
  if (!s) return std::unexpected(s.error());
  auto type = type_of(*s);
  if (!type) return std::unexpected(type.error());
  auto all_dim = config.number_or(s->key("mscale_all_dim"), 0);
  if (!all_dim) return std::unexpected(all_dim.error());
  if (*type == "default" || *all_dim == 0) return 1;  // for other types the reference asks no more than this
  auto factor = config.number(s->key("factor"));
  if (!factor) return std::unexpected(factor.error());
  return squared_mscale(*factor, *all_dim, s->key("mscale_all_dim"));
}

Result<double> yarn_softmax_factor(const GgufConfig& config) {
  if (!config.has("rope.scaling.yarn_log_multiplier")) return 1;
  auto multiplier = config.number("rope.scaling.yarn_log_multiplier");
  if (!multiplier) return std::unexpected(multiplier.error());
  auto factor = config.number("rope.scaling.factor");
  if (!factor) return std::unexpected(factor.error());
  // Converters write a tenth of mscale_all_dim.
  return squared_mscale(*factor, 10 * *multiplier, "rope.scaling.yarn_log_multiplier");
}

namespace {

// The divisors of a tensor, empty where there is none.
Result<std::vector<float>> gguf_divisors(const GgufConfig& config, const char* name, int count) {
  std::vector<float> out;
  const weights::Tensor* factors = config.file().find(name);
  if (factors == nullptr) return out;
  if (factors->format != weights::WeightFormat::kF32 || factors->elements() != count)
    return fail(ErrorKind::kCorruptFile,
                fmt::format("tensor {} must hold {} F32 values, it is {}", name, count, weights::describe(*factors)),
                name);
  out.resize(static_cast<size_t>(count));
  std::memcpy(out.data(), factors->data.data(), factors->data.size());
  for (float divisor : out)
    if (!(divisor > 0))
      return fail(ErrorKind::kCorruptFile, fmt::format("tensor {} holds a divisor that is not positive", name), name);
  return out;
}

Result<void> read_gguf_scaling(const GgufConfig& config, RopeParameters& rope) {
  std::optional<Error> error;
  // As llama.cpp reads it.
  std::string scaling = config.has("rope.scaling.factor") ? "linear" : "none";
  double attention = 1, more_attention = 1, extrapolation = 1;
  take(config.string_or("rope.scaling.type", scaling), scaling, error);
  take(config.integer_or("rope.scaling.original_context_length", 1, kMaxPositions, static_cast<int>(rope.longest)),
       rope.original_max_position, error);
  take(config.number_or("rope.scaling.attn_factor", 1), attention, error);
  take(config.number_or("rope.scaling.yarn_attn_factor", 1), more_attention, error);
  take(config.number_or("rope.scaling.yarn_ext_factor", 1), extrapolation, error);
  if (error) return std::unexpected(*error);
  if (scaling == "linear" || scaling == "yarn") {
    rope.type = scaling == "yarn" ? RopeType::kYarn : RopeType::kLinear;
    take(config.number("rope.scaling.factor"), rope.factor, error);
    take(config.number_or("rope.scaling.yarn_beta_fast", 32), rope.beta_fast, error);
    take(config.number_or("rope.scaling.yarn_beta_slow", 1), rope.beta_slow, error);
    if (error) return std::unexpected(*error);
    if (!(rope.factor > 0))
      return fail(ErrorKind::kCorruptFile, "rope.scaling.factor must be positive", "rope.scaling.factor");
  } else if (scaling == "longrope") {
    double factor = 1;
    take(config.number_or("rope.scaling.factor", 1), factor, error);
    if (error) return std::unexpected(*error);
    if (factor != 1)
      return fail(ErrorKind::kUnsupported,
                  fmt::format("rope.scaling.factor {} is not supported for longrope; it must be 1", factor),
                  "rope.scaling.factor");
    for (const char* tensor : {"rope_factors_short.weight", "rope_factors_long.weight"})
      if (config.file().find(tensor) == nullptr)
        return fail(ErrorKind::kCorruptFile,
                    fmt::format("rope.scaling.type is longrope, but the tensor {} is missing", tensor), tensor);
  } else if (scaling != "none") {
    return fail(ErrorKind::kUnsupported,
                fmt::format("rope scaling {} is not supported; supported are none, linear, yarn and longrope", scaling),
                "rope.scaling.type");
  }
  if (extrapolation != 1)
    return fail(ErrorKind::kUnsupported,
                fmt::format("rope.scaling.yarn_ext_factor {} is not supported; it must be 1", extrapolation),
                "rope.scaling.yarn_ext_factor");
  attention *= more_attention;
  // Only DeepSeek's files have the multiplier: there mscale and mscale_all_dim are the same, and their quotient is 1.
  if (rope.type == RopeType::kYarn && !config.has("rope.scaling.yarn_log_multiplier"))
    attention *= yarn_mscale(rope.factor, 1);
  if (!(attention > 0))
    return fail(ErrorKind::kCorruptFile, "rope.scaling.attn_factor must be positive", "rope.scaling.attn_factor");
  rope.attention_factor = attention;
  return {};
}

}  // namespace

Result<RopeParameters> gguf_rope(const GgufConfig& config, int head_dim) {
  RopeParameters rope;
  std::optional<Error> error;
  take(config.number_or("rope.freq_base", kGgufTheta), rope.theta, error);
  take(config.integer_or("rope.dimension_count", 2, head_dim, head_dim), rope.rotary_dim, error);
  take(config.integer("context_length", 1, kMaxPositions), rope.longest, error);
  if (error) return std::unexpected(*error);
  if (rope.rotary_dim % 2 != 0)
    return fail(ErrorKind::kCorruptFile, "rope.dimension_count must be even", "rope.dimension_count");
  if (!(rope.theta > 1))
    return fail(ErrorKind::kCorruptFile, "rope.freq_base must be greater than 1", "rope.freq_base");
  if (auto read = read_gguf_scaling(config, rope); !read) return std::unexpected(read.error());

  // Converters write Llama 3's scaling as divisors of each frequency, and longrope's as those for both lengths.
  const std::pair<const char*, std::vector<float>*> tensors[] = {
      {config.file().find("rope_freqs.weight") != nullptr ? "rope_freqs.weight" : "rope_factors_short.weight",
       &rope.frequency_divisors},
      {"rope_factors_long.weight", &rope.long_divisors}};
  for (const auto& [name, to] : tensors) {
    auto divisors = gguf_divisors(config, name, rope.rotary_dim / 2);
    if (!divisors) return std::unexpected(divisors.error());
    *to = std::move(*divisors);
  }
  if (rope.long_divisors.empty() != (config.file().find("rope_factors_short.weight") == nullptr))
    return fail(ErrorKind::kCorruptFile,
                "of the tensors rope_factors_short.weight and rope_factors_long.weight only one is there",
                rope.long_divisors.empty() ? "rope_factors_long.weight" : "rope_factors_short.weight");
  return rope;
}

}  // namespace quire::model
