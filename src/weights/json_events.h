// JSON read as events, for files from outside: nothing is kept that the handler does not ask for, so neither depth nor
// size of the text costs memory, and repeated keys are seen.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace quire::weights {

// A handler refuses every event that it does not override; an override may call refuse() too, which ends the reading.
class JsonEvents : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool null() override { return refuse("a null has no place here"); }
  bool boolean(bool) override { return refuse("a boolean has no place here"); }
  bool number_integer(number_integer_t) override { return refuse("a negative number has no place here"); }
  bool number_unsigned(number_unsigned_t) override { return refuse("a number has no place here"); }
  bool number_float(number_float_t, const string_t&) override { return refuse("a fraction has no place here"); }
  bool string(string_t&) override { return refuse("a string has no place here"); }
  bool binary(binary_t&) override { return refuse("binary data has no place here"); }
  bool start_object(size_t) override { return refuse("an object has no place here"); }
  bool key(string_t&) override { return refuse("a key has no place here"); }
  bool end_object() override { return refuse("an object's end has no place here"); }
  bool start_array(size_t) override { return refuse("an array has no place here"); }
  bool end_array() override { return refuse("an array's end has no place here"); }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&) override {
    return refuse("malformed at byte " + std::to_string(position));
  }

  // The first reason for refusal.
  const std::string& problem() const { return problem_; }

 protected:
  bool refuse(std::string_view reason) {
    if (problem_.empty()) problem_ = where().append(reason);
    return false;
  }

  // What is being read, as the beginning of a message.
  virtual std::string where() const { return {}; }

 private:
  std::string problem_;
};

// Runs all of `text` through `events`. False if it is not one JSON value, or was refused: then problem() says why.
inline bool read_json(std::string_view text, JsonEvents& events) {
  return nlohmann::json::sax_parse(text.begin(), text.end(), &events);
}

}  // namespace quire::weights
