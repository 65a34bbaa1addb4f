#include "weights/quantised_parts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <span>
#include <utility>
#include <vector>

#include "base/utf8.h"
#include "weights/unaligned.h"

namespace quire::weights {
namespace {

using Layout = QuantisationScheme::Layout;

constexpr int64_t kMostInputs = int64_t{1} << 30;

int64_t ceil_div(int64_t value, int64_t unit) { return (value + unit - 1) / unit; }

std::unexpected<Error> bad_part(const StoredTensor& part, std::string_view problem) {
  return fail(ErrorKind::kCorruptFile,
              fmt::format("tensor {} is {}; {}", in_quotes(part.name), describe(part), problem),
              std::string(part.name));
}

// Finds and checks the parts of one matrix.
class Finder {
 public:
  Finder(const SafetensorsFiles& files, std::string_view module, const QuantisationScheme& scheme)
      : files_(files), module_(module) {
    parts_.scheme = scheme;
  }

  Result<MatrixParts> find() {
    if (auto read = read_integers(); !read) return std::unexpected(std::move(read.error()));
    if (auto read = read_scales(); !read) return std::unexpected(std::move(read.error()));
    if (auto read = read_zeros(); !read) return std::unexpected(std::move(read.error()));
    if (auto read = read_input_groups(); !read) return std::unexpected(std::move(read.error()));
    if (auto none = refuse_others(); !none) return std::unexpected(std::move(none.error()));
    return std::move(parts_);
  }

 private:
  using Shape = std::initializer_list<int64_t>;
  static constexpr int64_t kBlock = 32, kBlockBytes = 16;  // of kMxfp4

  const QuantisationScheme& scheme() const { return parts_.scheme; }
  bool transposed() const { return scheme().layout == Layout::kAwq || scheme().layout == Layout::kGptq; }
  int64_t per_word() const { return 32 / scheme().bits; }

  std::optional<StoredTensor> stored(std::string_view suffix) const {
    return files_.stored(module_ + std::string(suffix));
  }

  Result<StoredTensor> require(std::string_view suffix) const {
    auto part = stored(suffix);
    if (part) return *part;
    const std::string name = module_ + std::string(suffix);
    return fail(ErrorKind::kCorruptFile,
                fmt::format("tensor {} is missing: {} needs it", in_quotes(name), in_quotes(parts_.integers.name)),
                name);
  }

  static Result<void> check_format(const StoredTensor& part, std::initializer_list<std::string_view> allowed) {
    if (std::ranges::find(allowed, part.format) != allowed.end()) return {};
    return bad_part(part, fmt::format("{} is needed here", fmt::join(allowed, " or ")));
  }

  Result<void> check_shape(const StoredTensor& part, Shape shape) const { return check_shape(part, std::span(shape)); }

  Result<void> check_shape(const StoredTensor& part, std::span<const int64_t> shape) const {
    if (std::ranges::equal(part.shape, shape)) return {};
    return bad_part(part, fmt::format("[{}] would fit {} {} ({})", fmt::join(shape, ", "),
                                      in_quotes(parts_.integers.name), describe(parts_.integers), describe(scheme())));
  }

  Result<void> read_integers() {
    auto part = require(integers_suffix(scheme().layout));
    if (!part) return std::unexpected(std::move(part.error()));
    parts_.integers = *part;
    if (scheme().layout == Layout::kMxfp4) return read_blocks();
    const bool fp8 = scheme().layout == Layout::kFp8, int8 = scheme().layout == Layout::kInt8;
    if (auto ok = check_format(*part, {fp8 ? "F8_E4M3" : int8 ? "I8" : "I32"}); !ok) return ok;
    if (part->shape.size() != 2) return bad_part(*part, "a matrix is needed here");
    const int64_t outer = part->shape[0], inner = part->shape[1];  // both fit the file: no product below overflows
    switch (scheme().layout) {
      case Layout::kAwq:
        return set_shape(inner * per_word(), outer);
      case Layout::kGptq:
        return set_shape(inner, outer * per_word());
      case Layout::kPacked:
        return read_shape();
      case Layout::kInt8:
      case Layout::kFp8:
      case Layout::kMxfp4:
        break;
    }
    return set_shape(outer, inner);
  }

  // kMxfp4: a block is a dimension of its own, behind those of the matrix or of a stack of them.
  Result<void> read_blocks() {
    const StoredTensor& part = parts_.integers;
    if (auto ok = check_format(part, {"U8"}); !ok) return ok;
    const bool stack = part.shape.size() == 4;
    if ((!stack && part.shape.size() != 3) || part.shape.back() != kBlockBytes)
      return bad_part(part,
                      fmt::format("blocks of {} bytes, of a matrix or a stack of them, are needed here", kBlockBytes));
    parts_.stack = stack ? part.shape[0] : 0;
    const size_t first = stack ? 1 : 0;
    return set_shape(part.shape[first] * (stack ? part.shape[0] : 1), part.shape[first + 1] * kBlock);
  }

  // kMxfp4: one for each block.
  Result<void> read_exponents() {
    auto part = require("_scales");
    if (!part) return std::unexpected(std::move(part.error()));
    if (auto ok = check_format(*part, {"U8"}); !ok) return ok;
    std::vector<int64_t> shape(parts_.integers.shape.begin(), parts_.integers.shape.end() - 1);
    if (auto ok = check_shape(*part, shape); !ok) return ok;
    if (const auto nan = std::ranges::find(part->data, std::byte{255}); nan != part->data.end())
      return bad_part(*part, fmt::format("number {} of it is 255, which is no power of two", nan - part->data.begin()));
    parts_.scales = *part;
    return {};
  }

  Result<void> set_shape(int64_t rows, int64_t cols) {
    if (cols > kMostInputs)
      return bad_part(parts_.integers, fmt::format("that means {} inputs; at most {} are read", cols, kMostInputs));
    if (scheme().layout != Layout::kFp8 && cols % 32 != 0)
      return fail(ErrorKind::kUnsupported,
                  fmt::format("tensor {} is {}, which means {} inputs; integers are read in multiples of 32 inputs",
                              in_quotes(parts_.integers.name), describe(parts_.integers), cols),
                  std::string(parts_.integers.name));
    parts_.rows = rows;
    parts_.cols = cols;
    parts_.groups = ceil_div(cols, scheme().group_inputs.value_or(cols));
    return {};
  }

  // kPacked: the shape is a tensor of its own, since the last word of a row may be filled up.
  Result<void> read_shape() {
    const auto part = require(".weight_shape");
    if (!part) return std::unexpected(part.error());
    if (auto ok = check_format(*part, {"I64", "I32"}); !ok) return ok;
    if (auto ok = check_shape(*part, {2}); !ok) return ok;
    const auto extent = [&](size_t i) {
      return part->format == "I64" ? load<int64_t>(part->data, i) : load<int32_t>(part->data, i);
    };
    const int64_t rows = extent(0), cols = extent(1);
    const int64_t words = parts_.integers.shape[1];
    if (rows != parts_.integers.shape[0] || cols > words * per_word() || cols <= (words - 1) * per_word())
      return bad_part(*part, fmt::format("it says [{}, {}], which does not fit {} {} with {} integers in a word", rows,
                                         cols, in_quotes(parts_.integers.name), describe(parts_.integers), per_word()));
    return set_shape(rows, cols);
  }

  Result<void> read_scales() {
    if (scheme().layout == Layout::kMxfp4) return read_exponents();
    std::string_view suffix = transposed() ? ".scales" : ".weight_scale";
    if (scheme().layout == Layout::kFp8 && stored(".weight_scale_inv")) suffix = ".weight_scale_inv";
    auto part = require(suffix);
    if (!part) return std::unexpected(std::move(part.error()));
    if (auto ok = check_format(*part, {"F16", "BF16", "F32"}); !ok) return ok;
    parts_.scales = *part;
    if (transposed()) return check_shape(*part, {parts_.groups, parts_.rows});
    return check_grid(*part);
  }

  // A value for each block of outputs and inputs; one for all may lack dimensions, one for each output the last.
  Result<void> check_grid(const StoredTensor& part) const {
    const int64_t rows = scheme().group_rows == 0 ? 1 : ceil_div(parts_.rows, scheme().group_rows);
    const bool one =
        rows == 1 && parts_.groups == 1 && (part.shape.empty() || std::ranges::equal(part.shape, Shape{1}));
    const bool column = parts_.groups == 1 && std::ranges::equal(part.shape, Shape{rows});
    return one || column ? Result<void>() : check_shape(part, {rows, parts_.groups});
  }

  Result<void> read_zeros() {
    if (scheme().layout == Layout::kMxfp4) return {};
    const std::string_view suffix = transposed() ? ".qzeros" : ".weight_zero_point";
    if (scheme().layout == Layout::kFp8) {
      const auto part = stored(suffix);
      if (!part || all_zero(*part)) return {};
      return bad_part(*part, "zero points of floats must be 0");
    }
    if (scheme().symmetric) {
      const auto part = stored(suffix);
      return part ? check_neutral(*part) : Result<void>();
    }
    auto part = require(suffix);
    if (!part) return std::unexpected(std::move(part.error()));
    parts_.zeros = *part;
    return check_zeros(*part);
  }

  Result<void> check_zeros(const StoredTensor& part) const {
    if (auto ok = check_format(part, {scheme().layout == Layout::kInt8 ? "I8" : "I32"}); !ok) return ok;
    if (scheme().layout == Layout::kInt8) return check_grid(part);
    if (scheme().layout == Layout::kPacked)
      return check_shape(part, {ceil_div(parts_.rows, per_word()), parts_.groups});
    if (parts_.rows % per_word() != 0)
      return bad_part(parts_.integers, fmt::format("a multiple of {} outputs is needed", per_word()));
    return check_shape(part, {parts_.groups, parts_.rows / per_word()});
  }

  // Symmetric files may carry zero points all the same, but none that would move a value.
  Result<void> check_neutral(const StoredTensor& part) const {
    if (auto ok = check_zeros(part); !ok) return ok;
    const bool int8 = scheme().layout == Layout::kInt8;
    const bool neutral = int8                                 ? all_zero(part)
                         : scheme().layout == Layout::kPacked ? all_half(part)
                                                              : all_half_or_less_one(part);
    if (neutral) return {};
    return bad_part(part, fmt::format("the configuration says symmetric, but its zero points are not all {}",
                                      int8 ? 0 : 1 << (scheme().bits - 1)));
  }

  static bool all_zero(const StoredTensor& part) {
    return std::ranges::all_of(part.data, [](std::byte zero) { return zero == std::byte{0}; });
  }

  // kPacked: what fills up the last word of a group may be anything.
  bool all_half(const StoredTensor& part) const {
    const int bits = scheme().bits;
    const uint32_t mask = (1U << bits) - 1, half = 1U << (bits - 1);
    for (int64_t n = 0; n < parts_.rows; ++n) {
      const int64_t first = n / per_word() * parts_.groups, place = n % per_word() * bits;
      for (int64_t group = 0; group < parts_.groups; ++group)
        if ((load<uint32_t>(part.data, static_cast<size_t>(first + group)) >> place & mask) != half) return false;
    }
    return true;
  }

  // There are writers of GPTQ that do not store zero points less one though the configuration says so: the value that
  // they mean is known.
  bool all_half_or_less_one(const StoredTensor& part) const {
    const uint32_t ones = scheme().bits == 4 ? 0x11111111U : 0x01010101U;
    const uint32_t half = ones << (scheme().bits - 1);
    const auto first = load<uint32_t>(part.data, 0);
    if (first != half && first != half - ones) return false;
    for (size_t i = 1; i < part.data.size() / 4; ++i)
      if (load<uint32_t>(part.data, i) != first) return false;
    return true;
  }

  Result<void> read_input_groups() {
    const bool gptq = scheme().layout == Layout::kGptq;
    const bool packed = scheme().layout == Layout::kPacked, int8 = scheme().layout == Layout::kInt8;
    const auto part = !gptq && !packed && !int8 ? std::nullopt : stored(gptq ? ".g_idx" : ".weight_g_idx");
    if (!part) return {};
    if (auto ok = check_format(*part, {"I32"}); !ok) return ok;
    if (auto ok = check_shape(*part, {parts_.cols}); !ok) return ok;
    bool neighbours = true, unset = true;  // all -1: compressed-tensors has not ordered the inputs
    for (int64_t k = 0; k < parts_.cols; ++k) {
      const int64_t group = load<int32_t>(part->data, static_cast<size_t>(k));
      neighbours = neighbours && group == k / scheme().group_inputs.value_or(parts_.cols);
      unset = unset && group == -1;
    }
    if (neighbours || unset) return {};
    for (int64_t k = 0; k < parts_.cols; ++k) {
      const int64_t group = load<int32_t>(part->data, static_cast<size_t>(k));
      if (group < 0 || group >= parts_.groups)
        return bad_part(*part,
                        fmt::format("it puts input {} into group {}, but there are {}", k, group, parts_.groups));
    }
    parts_.input_groups = *part;
    return {};
  }

  bool uses(std::string_view suffix) const {
    using Suffixes = std::initializer_list<std::string_view>;
    const auto any_of = [&](Suffixes known) { return std::ranges::find(known, suffix) != known.end(); };
    switch (scheme().layout) {
      case Layout::kAwq:
        return any_of({".qzeros", ".scales"});
      case Layout::kGptq:
        return any_of({".qzeros", ".scales", ".g_idx"});
      case Layout::kPacked:
        return any_of({".weight_scale", ".weight_zero_point", ".weight_shape", ".weight_g_idx"});
      case Layout::kInt8:
        return any_of({".weight_scale", ".weight_zero_point", ".weight_g_idx"});
      case Layout::kFp8:
        return suffix == ".weight_zero_point" || parts_.scales.name.ends_with(suffix);
      case Layout::kMxfp4:
        return suffix == "_scales";
    }
    return false;
  }

  // A part that nobody reads could have meant other values.
  Result<void> refuse_others() const {
    for (const std::string_view suffix : kPartSuffixes) {
      const auto part = uses(suffix) ? std::nullopt : stored(suffix);
      if (part)
        return bad_part(*part, fmt::format("{} ({}, scales in {}) has no use for it", in_quotes(parts_.integers.name),
                                           describe(scheme()), in_quotes(parts_.scales.name)));
    }
    return {};
  }

  const SafetensorsFiles& files_;
  std::string module_;
  MatrixParts parts_;
};

}  // namespace

std::string describe(const QuantisationScheme& scheme) {
  const char* names[] = {"AWQ", "GPTQ", "pack-quantized", "int-quantized", "float-quantized", "MXFP4"};
  std::string text = names[static_cast<size_t>(scheme.layout)];
  if (scheme.layout == Layout::kMxfp4) return text;
  if (scheme.layout != Layout::kFp8)
    text += fmt::format(", {} bits, {}", scheme.bits, scheme.symmetric ? "symmetric" : "with zero points");
  if (scheme.group_rows > 1) return text + fmt::format(", blocks of {} x {}", scheme.group_rows, *scheme.group_inputs);
  if (scheme.group_inputs) return text + fmt::format(", groups of {}", *scheme.group_inputs);
  return text + (scheme.group_rows == 0 ? ", one scale" : ", a scale for each output");
}

std::string_view integers_suffix(Layout layout) {
  switch (layout) {
    case Layout::kAwq:
    case Layout::kGptq:
      return ".qweight";
    case Layout::kPacked:
      return ".weight_packed";
    case Layout::kMxfp4:
      return "_blocks";
    case Layout::kInt8:
    case Layout::kFp8:
      break;
  }
  return ".weight";
}

Result<MatrixParts> find_parts(const SafetensorsFiles& files, std::string_view module,
                               const QuantisationScheme& scheme) {
  return Finder(files, module, scheme).find();
}

}  // namespace quire::weights
