#include "weights/quantised_checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <utility>

#include "base/utf8.h"

namespace quire::weights {
namespace {

using Layout = QuantisationScheme::Layout;

constexpr std::array<std::string_view, 4> kIntegers = {".qweight", ".weight_packed", ".weight", "_blocks"};

// Of activations, keys and values.
constexpr std::array<std::string_view, 9> kUnread = {".input_scale",       ".input_zero_point", ".output_scale",
                                                     ".output_zero_point", ".q_scale",          ".k_scale",
                                                     ".v_scale",           ".k_zero_point",     ".v_zero_point"};

bool is_unread(std::string_view name) {
  return std::ranges::any_of(kUnread, [&](std::string_view suffix) { return name.ends_with(suffix); });
}

bool is_part(std::string_view name) {
  return std::ranges::any_of(kPartSuffixes, [&](std::string_view suffix) { return name.ends_with(suffix); });
}

bool is_float(std::string_view format) { return format == "F32" || format == "F16" || format == "BF16"; }

// Whether what has such a name is never a plain tensor.
bool is_told_by_name(std::string_view suffix) { return suffix != ".weight" && suffix != "_blocks"; }

// The suffix of the integers' name, empty if the tensor holds no quantised matrix.
std::string_view integers_of(const StoredTensor& tensor) {
  for (std::string_view suffix : kIntegers)
    if (tensor.name.ends_with(suffix)) return is_told_by_name(suffix) || !is_float(tensor.format) ? suffix : "";
  return "";
}

bool may_be_of(const StoredTensor& integers, std::string_view suffix, const QuantisationScheme& scheme) {
  if (integers_suffix(scheme.layout) != suffix) return false;
  return suffix != ".weight" || (scheme.layout == Layout::kInt8) == (integers.format == "I8");
}

// The parts of the matrix under the first scheme that they fit; none if no scheme is of its kind and no name says that
// it has to be one.
Result<std::optional<MatrixParts>> find_matrix(const SafetensorsFiles& files, const StoredTensor& integers,
                                               std::string_view suffix, std::span<const QuantisationScheme> schemes) {
  const std::string_view module = integers.name.substr(0, integers.name.size() - suffix.size());
  std::optional<Error> first;
  for (const QuantisationScheme& scheme : schemes) {
    if (!may_be_of(integers, suffix, scheme)) continue;
    auto parts = find_parts(files, module, scheme);
    if (parts) return *parts;
    if (!first) first = std::move(parts.error());
  }
  if (first) return std::unexpected(std::move(*first));
  if (suffix == ".weight") return std::nullopt;
  return fail(ErrorKind::kCorruptFile,
              fmt::format("tensor {} is {}, but quantization_config says {}", in_quotes(integers.name),
                          describe(integers), describe(schemes.front())),
              std::string(integers.name));
}

}  // namespace

Result<void> check_unquantised(const SafetensorsFiles& files) {
  for (std::string_view name : files.names()) {
    const StoredTensor tensor = *files.stored(name);
    const bool quantised = tensor.format == "I8" || tensor.format.starts_with("F8_");
    const std::string_view suffix = integers_of(tensor);
    if (suffix.empty() || (suffix == ".weight" && !quantised)) continue;
    return fail(ErrorKind::kCorruptFile,
                fmt::format("tensor {} is {}, a quantised matrix, but config.json has no quantization_config that says "
                            "how to read it",
                            in_quotes(name), describe(tensor)),
                "quantization_config");
  }
  return {};
}

Result<std::unique_ptr<QuantisedCheckpoint>> QuantisedCheckpoint::open(std::unique_ptr<TensorSource> owner,
                                                                       const SafetensorsFiles& files,
                                                                       std::span<const QuantisationScheme> schemes) {
  auto opened = std::unique_ptr<QuantisedCheckpoint>(new QuantisedCheckpoint(std::move(owner)));
  if (auto made = opened->make_matrices(files, schemes); !made) return std::unexpected(std::move(made.error()));
  return opened;
}

Result<void> QuantisedCheckpoint::make_matrices(const SafetensorsFiles& files,
                                                std::span<const QuantisationScheme> schemes) {
  std::set<std::string, std::less<>> parts;
  std::vector<TensorEntry> made;
  for (std::string_view name : files.names()) {
    const StoredTensor integers = *files.stored(name);
    const std::string_view suffix = integers_of(integers);
    const std::string module(name.substr(0, name.size() - suffix.size()));
    if (suffix.empty()) continue;
    auto found = find_matrix(files, integers, suffix, schemes);
    if (!found) return std::unexpected(std::move(found.error()));
    if (!*found) continue;
    const QuantisedMatrix& matrix = *matrices_.emplace_back(std::make_unique<QuantisedMatrix>(**found));
    parts.insert(std::string(name));
    for (std::string_view part : kPartSuffixes) parts.insert(module + std::string(part));
    made.push_back({{.name = module + (suffix == "_blocks" ? "" : ".weight"),
                     .format = matrix.format(),
                     .shape = matrix.shape(),
                     .made = &matrix}});
  }
  if (made.empty())
    return fail(ErrorKind::kCorruptFile,
                fmt::format("quantization_config says {}, but no tensor's name ends with {}", describe(schemes.front()),
                            integers_suffix(schemes.front().layout)),
                "quantization_config");

  for (std::string_view name : files.names())
    if (!parts.contains(name) && is_part(name))
      return fail(ErrorKind::kCorruptFile,
                  fmt::format("tensor {} is {}, a part of a quantised matrix that is not there", in_quotes(name),
                              describe(*files.stored(name))),
                  std::string(name));
  const auto left_out = [&](std::string_view name) { return parts.contains(name) || is_unread(name); };
  for (const Tensor& tensor : files.tensors())
    if (!left_out(tensor.name)) made.push_back({tensor});
  for (std::string_view name : files.names())
    if (!left_out(name) && files.find(name) == nullptr)
      made.push_back({{.name = std::string(name), .shape = {}}, std::string(files.stored(name)->format)});
  for (TensorEntry& entry : made)
    if (auto added = index_.add(std::move(entry)); !added) return added;
  return {};
}

}  // namespace quire::weights
