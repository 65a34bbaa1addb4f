// Appends JSON to a string, piece by piece; commas are its own business.
//
//   JsonWriter json(out);
//   json.begin_object().key("n").value(1).key("text").value("a\nb").end_object();
//
// The caller opens and closes in pairs and writes a key before each member. Whatever bytes go in, valid JSON in valid
// UTF-8 comes out: broken UTF-8 becomes U+FFFD, and numbers that JSON cannot say become null.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>

namespace quire::api {

class JsonWriter {
 public:
  explicit JsonWriter(std::string& out) : out_(out) {}

  JsonWriter& begin_object() { return open('{'); }
  JsonWriter& end_object() { return close('}'); }
  JsonWriter& begin_array() { return open('['); }
  JsonWriter& end_array() { return close(']'); }

  JsonWriter& key(std::string_view name);
  JsonWriter& value(std::string_view text);
  JsonWriter& value(const char* text) { return value(std::string_view(text)); }
  JsonWriter& value(const std::string& text) { return value(std::string_view(text)); }
  JsonWriter& value(std::same_as<bool> auto flag) { return raw(flag ? "true" : "false"); }
  template <std::integral T>
    requires(!std::same_as<T, bool> && !std::same_as<T, char>)
  JsonWriter& value(T number) {
    if constexpr (std::signed_integral<T>) {
      return integer(static_cast<int64_t>(number));
    } else {
      return unsigned_integer(static_cast<uint64_t>(number));
    }
  }
  JsonWriter& value(float number);
  JsonWriter& value(double number);
  JsonWriter& null() { return raw("null"); }
  JsonWriter& value_or_null(std::string_view text) { return text.empty() ? null() : value(text); }
  // A value, or members or items with commas between them, that is JSON already.
  JsonWriter& raw(std::string_view json);

 private:
  JsonWriter& open(char bracket);
  JsonWriter& close(char bracket);
  JsonWriter& integer(int64_t number);
  JsonWriter& unsigned_integer(uint64_t number);
  void separate();

  std::string& out_;
  bool comma_ = false;  // a value stands before the next one
};

// Appends `text` as a quoted JSON string.
void append_json_string(std::string& out, std::string_view text);

}  // namespace quire::api
