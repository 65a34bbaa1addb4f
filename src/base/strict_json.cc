#include "base/strict_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

namespace quire {
namespace {

using nlohmann::json;

// The parser's callback: it throws at the first thing that is not strict, before the value is built any further.
class Strict {
 public:
  explicit Strict(int max_depth) : max_depth_(max_depth) {}

  bool operator()(int depth, json::parse_event_t event, const json& value) {
    if (depth > max_depth_) throw std::runtime_error(fmt::format("nested more than {} levels deep", max_depth_));
    const auto level = static_cast<size_t>(depth);
    if (event == json::parse_event_t::object_start) {
      keys_.resize(std::max(keys_.size(), level + 2));
      keys_[level + 1].clear();
    }
    if (event == json::parse_event_t::key && !keys_[level].insert(value.get<std::string>()).second)
      throw std::runtime_error(fmt::format("the key \"{}\" stands twice in one object", value.get<std::string>()));
    return true;
  }

 private:
  int max_depth_;
  std::vector<std::set<std::string>> keys_;  // of the object that is open at each depth
};

}  // namespace

Result<void> check_strict_json(std::string_view text, int max_depth) {
  const auto wrong = [](std::string message) { return fail(ErrorKind::kCorruptFile, std::move(message)); };
  try {
    Strict strict(max_depth);
    [[maybe_unused]] const json built =
        json::parse(text, [&](int depth, json::parse_event_t event, json& v) { return strict(depth, event, v); });
    return {};
  } catch (const json::parse_error& error) {
    return wrong(fmt::format("malformed JSON at byte {}", error.byte));
  } catch (const json::out_of_range&) {
    return wrong("a number is out of range");
  } catch (const std::exception& error) {
    return wrong(error.what());
  }
}

}  // namespace quire
