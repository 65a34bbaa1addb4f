#include "api/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "base/utf8.h"

namespace quire::api {
namespace {

using simdjson::dom::element_type;

constexpr size_t kMaxMembers = 256;

// The name of a member that an object holds twice, anywhere below `value`. The parser has bounded the depth.
std::optional<std::string> duplicate_member(Json value) {
  if (value.is_array()) {
    for (const Json child : simdjson::dom::array(value)) {
      if (auto found = duplicate_member(child)) return found;
    }
  }
  if (!value.is_object()) return std::nullopt;
  std::vector<std::string_view> names;
  for (const auto member : simdjson::dom::object(value)) {
    names.push_back(member.key);
    if (auto found = duplicate_member(member.value)) return found;
  }
  std::ranges::sort(names);
  const auto twice = std::ranges::adjacent_find(names);
  if (twice == names.end()) return std::nullopt;
  return std::string(*twice);
}

std::unexpected<Error> invalid(std::string message, std::string param) {
  return fail(ErrorKind::kInvalidRequest, std::move(message), std::move(param));
}

bool says_nothing(Json value) {
  switch (value.type()) {
    case element_type::BOOL:
      return !bool(value);
    case element_type::STRING:
      return std::string_view(value).empty();
    case element_type::ARRAY:
      return simdjson::dom::array(value).size() == 0;
    case element_type::OBJECT:
      return simdjson::dom::object(value).size() == 0;
    case element_type::NULL_VALUE:
      return true;
    default:
      return as_integer(value) == 0;
  }
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// What JSON calls a number, in a run of the characters that numbers are made of.
bool is_number(std::string_view token) {
  if (token.starts_with('-')) token.remove_prefix(1);
  if (token.empty() || !is_digit(token[0]) || (token.size() > 1 && token[0] == '0' && is_digit(token[1]))) return false;
  const size_t point = token.find('.');
  if (point != token.npos && (point + 1 == token.size() || !is_digit(token[point + 1]))) return false;
  double value = 0;
  return std::from_chars(token.data(), token.data() + token.size(), value).ptr == token.data() + token.size();
}

// The nearest double of a number that is too large for the parser, or nothing.
std::optional<double> too_large(std::string_view token) {
  double value = 0;
  const auto [end, error] = std::from_chars(token.data(), token.data() + token.size(), value);
  if (error == std::errc::result_out_of_range) {
    if (token.find('-', 1) != token.npos) return std::nullopt;  // too small: that is 0
    return token[0] == '-' ? std::numeric_limits<double>::lowest() : std::numeric_limits<double>::max();
  }
  constexpr double kUnsignedEnd = 18446744073709551616.0, kSignedEnd = -9223372036854775808.0;
  const bool integer = token.find_first_of(".eE") == token.npos;
  if (integer && (value >= kUnsignedEnd || value <= kSignedEnd)) return value;
  return std::nullopt;
}

// The parser stops at a number that 64 bits cannot hold, and does not say where. Here such numbers become the nearest
// doubles, so that the check of their own field refuses them by name. Nothing if there are none.
std::optional<std::string> with_smaller_numbers(std::string_view text) {
  std::string out;
  size_t copied = 0;
  bool in_string = false;
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '"') in_string = !in_string;
    if (in_string && text[at] == '\\') ++at;
    if (in_string || (text[at] != '-' && !is_digit(text[at]))) continue;
    const std::string_view token =
        text.substr(at, std::min(text.find_first_not_of("0123456789+-.eE", at), text.size()) - at);
    const auto value = is_number(token) ? too_large(token) : std::nullopt;
    if (value) {
      out += text.substr(copied, at - copied);
      out += fmt::format("{:e}", *value);
      copied = at + token.size();
    }
    at += token.size() - 1;
  }
  if (copied == 0) return std::nullopt;
  return out += text.substr(copied);
}

}  // namespace

Result<JsonDocument> JsonDocument::parse(std::string_view text, size_t max_depth) {
  JsonDocument document;
  document.parser_ = std::make_unique<simdjson::dom::parser>();
  const auto read = [&](std::string_view json) {
    const auto error = document.parser_->allocate(std::max<size_t>(json.size(), 1), max_depth);
    return error ? error : document.parser_->parse(json.data(), json.size()).get(document.root_);
  };
  auto error = read(text);
  if (error == simdjson::NUMBER_ERROR) {
    if (const auto smaller = with_smaller_numbers(text)) error = read(*smaller);
  }
  if (error == simdjson::DEPTH_ERROR) {
    return invalid(fmt::format("the JSON is nested more than {} levels deep", max_depth), {});
  }
  if (error == simdjson::UTF8_ERROR) return invalid("the JSON is not valid UTF-8", {});
  if (error) return invalid(fmt::format("the JSON is not valid: {}", simdjson::error_message(error)), {});
  if (const auto twice = duplicate_member(document.root_)) {
    return invalid(fmt::format("the JSON has the member {} twice in one object", in_quotes(*twice)), *twice);
  }
  return document;
}

std::string json_text(Json value) { return simdjson::minify(value); }

std::string shown(Json value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "a list";
  if (value.is_string()) return in_quotes(std::string_view(value));
  return json_text(value);
}

std::optional<int64_t> as_integer(Json value) {
  if (value.is<int64_t>()) return int64_t(value);
  double number = 0;
  if (value.type() != element_type::DOUBLE || value.get(number) != simdjson::SUCCESS) return std::nullopt;
  constexpr double kExact = 9007199254740992.0;  // 2^53: up to there a double means one integer
  if (std::trunc(number) != number || std::abs(number) > kExact) return std::nullopt;
  return static_cast<int64_t>(number);
}

Result<std::vector<int32_t>> read_token_ids(Json value, const std::string& name, int64_t bound) {
  if (!value.is_array())
    return invalid(fmt::format("{} must be a list of token ids, not {}", name, shown(value)), name);
  std::vector<int32_t> ids;
  for (const Json item : simdjson::dom::array(value)) {
    const auto id = as_integer(item);
    if (!id || *id < 0 || *id >= bound) {
      return invalid(
          fmt::format("{}[{}] must be a token id from 0 to {}, not {}", name, ids.size(), bound - 1, shown(item)),
          name);
    }
    ids.push_back(static_cast<int32_t>(*id));
  }
  return ids;
}

ObjectReader::ObjectReader(Json value, std::string place) : place_(std::move(place)) {
  const std::string what = place_.empty() ? "the body" : place_.substr(0, place_.size() - 1);
  if (value.get(object_) == simdjson::SUCCESS) {
    // Members are looked up one by one: their number is the cost.
    if (object_.size() <= kMaxMembers) return;
    object_ = {};
    failure_ = Error{ErrorKind::kInvalidRequest, fmt::format("{} has more than {} members", what, kMaxMembers)};
    return;
  }
  failure_ = Error{ErrorKind::kInvalidRequest, fmt::format("{} must be a JSON object, not {}", what, shown(value)),
                   place_.empty() ? "" : what};
}

void ObjectReader::fail(std::string_view name, std::string message, ErrorKind kind) {
  if (!failure_) failure_ = Error{kind, std::move(message), full(name)};
}

void ObjectReader::adopt_failure(const ObjectReader& part) {
  if (!failure_) failure_ = part.failure_;
}

std::optional<Json> ObjectReader::any(std::string_view name) {
  asked_.push_back(name);
  if (failure_) return std::nullopt;
  Json value;
  if (object_.at_key(name).get(value) != simdjson::SUCCESS || value.is_null()) return std::nullopt;
  return value;
}

std::optional<bool> ObjectReader::boolean(std::string_view name) {
  const auto value = any(name);
  if (!value) return std::nullopt;
  if (value->is_bool()) return bool(*value);
  fail(name, fmt::format("{} must be true or false, not {}", full(name), shown(*value)));
  return std::nullopt;
}

std::optional<int64_t> ObjectReader::integer(std::string_view name, int64_t low, int64_t high) {
  const auto value = any(name);
  if (!value) return std::nullopt;
  const auto number = as_integer(*value);
  if (number && *number >= low && *number <= high) return number;
  fail(name, fmt::format("{} must be an integer from {} to {}, not {}", full(name), low, high, shown(*value)));
  return std::nullopt;
}

std::optional<double> ObjectReader::number(std::string_view name, double low, double high) {
  const auto value = any(name);
  if (!value) return std::nullopt;
  double number = 0;
  if (value->is_number() && value->get(number) == simdjson::SUCCESS && number >= low && number <= high) return number;
  fail(name, fmt::format("{} must be a number from {} to {}, not {}", full(name), low, high, shown(*value)));
  return std::nullopt;
}

std::optional<std::string> ObjectReader::string(std::string_view name) {
  const auto value = any(name);
  if (!value) return std::nullopt;
  if (value->is_string()) return std::string(std::string_view(*value));
  fail(name, fmt::format("{} must be a string, not {}", full(name), shown(*value)));
  return std::nullopt;
}

std::vector<std::string> ObjectReader::strings(std::string_view name, size_t max_count) {
  const auto value = any(name);
  if (!value) return {};
  if (value->is_string()) return {std::string(std::string_view(*value))};
  std::vector<std::string> texts;
  if (!value->is_array())
    fail(name, fmt::format("{} must be a string or a list of strings, not {}", full(name), shown(*value)));
  if (failure_) return {};
  for (const Json item : simdjson::dom::array(*value)) {
    if (!item.is_string()) {
      fail(name, fmt::format("{}[{}] must be a string, not {}", full(name), texts.size(), shown(item)));
      return {};
    }
    if (texts.size() == max_count) {
      fail(name, fmt::format("{} may hold at most {} strings", full(name), max_count));
      return {};
    }
    texts.emplace_back(std::string_view(item));
  }
  return texts;
}

std::vector<int32_t> ObjectReader::token_ids(std::string_view name, int64_t bound) {
  const auto value = any(name);
  if (!value) return {};
  auto ids = read_token_ids(*value, full(name), bound);
  if (ids) return std::move(*ids);
  if (!failure_) failure_ = ids.error();
  return {};
}

void ObjectReader::unsupported(std::string_view name) {
  const auto value = any(name);
  if (value && !says_nothing(*value)) {
    fail(name, fmt::format("{} is not supported by this server", full(name)), ErrorKind::kUnsupported);
  }
}

std::vector<std::string> ObjectReader::unread() const {
  std::vector<std::string> names;
  for (const auto member : object_) {
    if (member.value.is_null() || std::ranges::find(asked_, member.key) != asked_.end()) continue;
    names.push_back(full(member.key));
  }
  return names;
}

}  // namespace quire::api
