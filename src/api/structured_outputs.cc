#include "api/structured_outputs.h"

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "base/utf8.h"

namespace quire::api {
namespace {

using text::GrammarKind;
using text::GrammarText;

constexpr const char* kFormat = "response_format";
constexpr const char* kOutputs = "structured_outputs";
constexpr std::string_view kAnyObject = R"({"type":"object"})";

GrammarText any_object(std::string param) {
  return {GrammarKind::kJsonSchema, std::string(kAnyObject), std::move(param)};
}

// Hands on what went wrong in a part of the body to its reader, under the name of the whole part.
void pass_on(ObjectReader& in, const ObjectReader& part, const char* name) {
  if (part.failure()) in.fail(name, part.failure()->message, part.failure()->kind);
}

// A schema is an object, or true or false.
std::string read_schema(ObjectReader& in, std::string_view name) {
  const auto value = in.any(name);
  if (!value) return {};
  if (!value->is_object() && !value->is_bool())
    in.fail(name, fmt::format("{} must be a JSON schema, an object, not {}", name, shown(*value)));
  return json_text(*value);
}

std::optional<GrammarText> read_json_schema(ObjectReader& format) {
  const auto value = format.any("json_schema");
  if (!value) {
    format.fail("json_schema", "response_format of type \"json_schema\" needs json_schema, an object");
    return std::nullopt;
  }
  ObjectReader reader(*value, "response_format.json_schema.");
  if (!reader.string("name")) reader.fail("name", "response_format.json_schema.name is missing");
  reader.string("description");
  reader.boolean("strict");  // the answer follows the schema either way
  std::string schema = read_schema(reader, "schema");
  if (schema.empty()) reader.fail("schema", "response_format.json_schema.schema is missing");
  pass_on(format, reader, "json_schema");
  return GrammarText{GrammarKind::kJsonSchema, std::move(schema), kFormat};
}

void refuse_type(ObjectReader& format, const std::string& place, const std::optional<std::string>& type) {
  format.fail("type", type ? fmt::format("{}.type may be \"text\", \"json_object\" or \"json_schema\", not {}", place,
                                         in_quotes(*type))
                           : fmt::format("{}.type is missing", place));
}

// The strings as a JSON list.
std::string read_choices(ObjectReader& in) {
  const auto value = in.any("choice");
  if (!value) return {};
  if (!value->is_array() || simdjson::dom::array(*value).size() == 0) {
    in.fail("choice", fmt::format("structured_outputs.choice must be a list of strings, not {}",
                                  value->is_array() ? "an empty one" : shown(*value)));
    return {};
  }
  for (const Json choice : simdjson::dom::array(*value))
    if (!choice.is_string() || std::string_view(choice).empty())
      in.fail("choice",
              fmt::format("structured_outputs.choice may hold strings that are not empty, not {}", shown(choice)));
  return json_text(*value);
}

// vLLM takes a schema as an object or as the text of one.
std::optional<std::string> read_schema_or_text(ObjectReader& in) {
  const auto value = in.any("json");
  if (!value) return std::nullopt;
  return value->is_string() ? in.string("json") : std::optional(read_schema(in, "json"));
}

std::optional<GrammarText> read_structured_outputs(ObjectReader& in) {
  const auto value = in.any(kOutputs);
  if (!value) return std::nullopt;
  ObjectReader reader(*value, "structured_outputs.");
  std::vector<GrammarText> given;
  if (auto schema = read_schema_or_text(reader))
    given.push_back({GrammarKind::kJsonSchema, std::move(*schema), kOutputs});
  if (auto regex = reader.string("regex")) given.push_back({GrammarKind::kRegex, std::move(*regex), kOutputs});
  if (auto list = read_choices(reader); !list.empty())
    given.push_back({GrammarKind::kChoice, std::move(list), kOutputs});
  if (auto lark = reader.string("grammar")) given.push_back({GrammarKind::kLark, std::move(*lark), kOutputs});
  if (reader.boolean("json_object").value_or(false)) given.push_back(any_object(kOutputs));
  if (reader.failure()) {
    pass_on(in, reader, kOutputs);
    return std::nullopt;
  }
  // Another member would change what the answer must follow.
  const auto unknown = reader.unread();
  if (!unknown.empty())
    reader.fail({}, fmt::format("{} is not supported by this server", unknown.front()), ErrorKind::kUnsupported);
  if (given.size() != 1)
    reader.fail({}, fmt::format("structured_outputs must hold one of json, regex, choice, grammar and json_object, "
                                "not {} of them",
                                given.empty() ? "none" : "several"));
  pass_on(in, reader, kOutputs);
  return given.empty() ? std::nullopt : std::optional(std::move(given.front()));
}

}  // namespace

std::optional<GrammarText> read_grammar(ObjectReader& in, std::optional<GrammarText> format) {
  auto outputs = read_structured_outputs(in);
  if (format && outputs) {
    in.fail(kOutputs, fmt::format("structured_outputs and a {} other than \"text\" exclude each other", format->param));
  }
  return format ? std::move(format) : std::move(outputs);
}

std::optional<GrammarText> read_response_format(ObjectReader& in) {
  const auto value = in.any(kFormat);
  if (!value) return std::nullopt;
  ObjectReader reader(*value, "response_format.");
  const auto type = reader.string("type");
  std::optional<GrammarText> grammar;
  if (type == "json_object") {
    grammar = any_object(kFormat);
  } else if (type == "json_schema") {
    grammar = read_json_schema(reader);
  } else if (type != "text") {
    refuse_type(reader, kFormat, type);
  }
  pass_on(in, reader, kFormat);
  return grammar;
}

std::optional<GrammarText> read_flat_format(ObjectReader& part, const std::string& place) {
  const auto value = part.any("format");
  if (!value) return std::nullopt;
  ObjectReader reader(*value, place + ".");
  const auto type = reader.string("type");
  std::optional<GrammarText> grammar;
  if (type == "json_object") {
    grammar = any_object(place);
  } else if (type == "json_schema") {
    grammar = GrammarText{GrammarKind::kJsonSchema, read_schema(reader, "schema"), place};
    if (grammar->text.empty()) reader.fail("schema", fmt::format("{}.schema is missing", place));
  } else if (type != "text") {
    refuse_type(reader, place, type);
  }
  part.adopt_failure(reader);
  return grammar;
}

}  // namespace quire::api
