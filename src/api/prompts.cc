#include <fmt/format.h>

#include "api/request_common.h"

namespace quire::api {
namespace {

std::vector<Prompt> read_prompt_list(ObjectReader& in, std::string_view field, Json value, const ParseLimits& limits) {
  const simdjson::dom::array list(value);
  std::vector<Prompt> prompts;
  const auto refuse = [&](std::string message) {
    in.fail(field, std::move(message));
    return std::vector<Prompt>{};
  };
  if (list.size() == 0) return refuse(fmt::format("{} must not be an empty list", field));
  const Json first = *list.begin();
  if (!first.is_string() && !first.is_array()) {
    auto ids = read_token_ids(value, std::string(field), limits.vocab_size);
    if (!ids) return refuse(ids.error().message);
    prompts.emplace_back(std::move(*ids));
    return prompts;
  }
  if (list.size() > static_cast<size_t>(limits.max_choices)) {
    return refuse(fmt::format("{} may hold at most {} prompts, not {}", field, limits.max_choices, list.size()));
  }
  for (const Json item : list) {
    if (first.is_string() && item.is_string()) {
      prompts.emplace_back(std::string(std::string_view(item)));
      continue;
    }
    const std::string name = fmt::format("{}[{}]", field, prompts.size());
    if (first.is_string()) return refuse(fmt::format("{} must be a string like the others, not {}", name, shown(item)));
    auto ids = read_token_ids(item, name, limits.vocab_size);
    if (!ids) return refuse(ids.error().message);
    prompts.emplace_back(std::move(*ids));
  }
  return prompts;
}

}  // namespace

std::vector<Prompt> read_prompts(ObjectReader& in, std::string_view field, const ParseLimits& limits) {
  const auto value = in.any(field);
  if (!value) {
    in.fail(field, fmt::format("{} is missing", field));
    return {};
  }
  if (value->is_string()) return {std::string(std::string_view(*value))};
  if (value->is_array()) return read_prompt_list(in, field, *value, limits);
  in.fail(field, fmt::format("{} must be a string, a list of strings, a list of token ids or a list of those, not {}",
                             field, shown(*value)));
  return {};
}

}  // namespace quire::api
