// Reads JSON that a client sent, strictly: UTF-8 and depth are checked, a member named twice is an error, integers are
// integers. Wraps simdjson; only the parsing files of this room include it.
//
// A Json value borrows from its JsonDocument. One thread at a time.
#pragma once

#include <simdjson.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "quire/error.h"

namespace quire::api {

using Json = simdjson::dom::element;

inline constexpr size_t kMaxJsonDepth = 128;

class JsonDocument {
 public:
  // kInvalidRequest that says what is wrong. `text` is copied. Numbers beyond 64 bits are read as the nearest double.
  static Result<JsonDocument> parse(std::string_view text, size_t max_depth = kMaxJsonDepth);
  Json root() const { return root_; }

 private:
  std::unique_ptr<simdjson::dom::parser> parser_;
  Json root_;
};

// The value as text on one line, cut where it gets long, for messages.
std::string shown(Json value);
// The value as JSON text.
std::string json_text(Json value);
// 16 and 16.0 are integers, true and 1.5 are none.
std::optional<int64_t> as_integer(Json value);

// Takes the members of an object by name. The first thing wrong is kept and what follows comes back empty, so that a
// caller reads all its fields and asks for failure() once. A null member counts as absent.
//
// Errors are kInvalidRequest (kUnsupported from unsupported()) with the member's name as `param`.
class ObjectReader {
 public:
  // `place` goes before the names in errors: "" for the body itself, "messages[3]." for a part of it.
  ObjectReader(Json value, std::string place);

  std::optional<bool> boolean(std::string_view name);
  std::optional<int64_t> integer(std::string_view name, int64_t low, int64_t high);
  std::optional<double> number(std::string_view name, double low, double high);
  std::optional<std::string> string(std::string_view name);
  // One string or a list of them.
  std::vector<std::string> strings(std::string_view name, size_t max_count);
  // A list of integers in [0, bound).
  std::vector<int32_t> token_ids(std::string_view name, int64_t bound);
  // Any value that is not null.
  std::optional<Json> any(std::string_view name);
  // Fails if the member is there and not one of false, 0, "", [] and {}.
  void unsupported(std::string_view name);

  void fail(std::string_view name, std::string message, ErrorKind kind = ErrorKind::kInvalidRequest);
  // What went wrong in a part of this object, if anything, is wrong with this one, at the part's whole place.
  void adopt_failure(const ObjectReader& part);
  const std::optional<Error>& failure() const { return failure_; }
  // Members that are not null and that nobody asked for.
  std::vector<std::string> unread() const;

 private:
  std::string full(std::string_view name) const { return place_ + std::string(name); }

  std::string place_;
  simdjson::dom::object object_;
  std::vector<std::string_view> asked_;
  std::optional<Error> failure_;
};

// A list of integers in [0, bound), or what is wrong with it; `name` is what messages call it.
Result<std::vector<int32_t>> read_token_ids(Json value, const std::string& name, int64_t bound);

}  // namespace quire::api
