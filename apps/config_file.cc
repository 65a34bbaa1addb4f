#include "config_file.h"

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <optional>
#include <sstream>
#include <utility>

#include "base/utf8.h"
#include "read_file.h"

namespace quire::apps {
namespace {

constexpr size_t kMaxConfigBytes = 64 << 10;

// Takes a document's parts as they are read, so that nothing is built of what is refused.
class Reader final : public YAML::EventHandler {
 public:
  std::vector<ConfigEntry> entries;

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (std::exchange(begun_, true)) refuse(mark, "a second document begins");
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t) override {
    refuse(mark, name_.empty() ? "there must be names and values, like port: 8000" : name_ + " has no value");
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override { refuse(mark, "aliases have no meaning here"); }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    check(mark, tag, anchor);
    if (depth_ == 0) refuse(mark, "there must be names and values, like port: 8000");
    if (name_.empty()) return take_name(mark, value);
    if (value.empty() || value.find('\0') != std::string::npos) refuse(mark, name_ + " has no value");
    entries.back().values.push_back(value);
    if (depth_ == 1) name_.clear();
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    check(mark, tag, anchor);
    if (name_.empty()) refuse(mark, "there must be names and values, like port: 8000");
    if (++depth_ > 2) refuse(mark, name_ + " may hold a value, or a list of values, but nothing nested");
  }
  void OnSequenceEnd() override {
    --depth_;
    if (entries.back().values.empty()) throw Refused{entries.back().line, name_ + " has no value"};
    name_.clear();
  }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    check(mark, tag, anchor);
    if (++depth_ > 1)
      refuse(mark, name_ + " may hold a value, or a list of values, but nothing nested; JSON goes between quotes");
  }
  void OnMapEnd() override { --depth_; }

  struct Refused {
    int line;
    std::string what;
  };

 private:
  [[noreturn]] static void refuse(const YAML::Mark& mark, std::string what) {
    throw Refused{mark.line + 1, std::move(what)};
  }
  // Plain scalars have the tag "?", quoted ones "!".
  static void check(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) {
    if (anchor != YAML::NullAnchor) refuse(mark, "anchors have no meaning here");
    if (!tag.empty() && tag != "?" && tag != "!") refuse(mark, "tags have no meaning here");
  }
  void take_name(const YAML::Mark& mark, std::string_view text) {
    const size_t dashes = std::min(text.find_first_not_of('-'), text.size());
    name_ = text.substr(dashes > 2 ? 0 : dashes);
    std::ranges::replace(name_, '_', '-');
    if (name_.empty()) refuse(mark, "a name is empty");
    name_ = one_line(name_);
    if (std::ranges::find(entries, name_, &ConfigEntry::name) != entries.end())
      refuse(mark, name_ + " stands there twice");
    entries.push_back({.name = name_, .values = {}, .line = mark.line + 1});
  }

  std::string name_;  // whose value comes next
  int depth_ = 0;
  bool begun_ = false;
};

}  // namespace

Result<std::vector<ConfigEntry>> read_config(const std::filesystem::path& path) {
  auto text = read_file(path, kMaxConfigBytes);
  if (!text) return fail(text.error().kind, "--config: " + text.error().message, "--config");
  const auto wrong = [&](int line, std::string_view what) {
    return fail(ErrorKind::kInvalidRequest, fmt::format("--config: {}, line {}: {}", path.string(), line, what),
                "--config");
  };
  Reader reader;
  try {
    std::istringstream in(*text);
    YAML::Parser parser(in);
    while (parser.HandleNextDocument(reader)) {
    }
  } catch (const Reader::Refused& refused) {
    return wrong(refused.line, refused.what);
  } catch (const YAML::Exception& failure) {
    return wrong(failure.mark.line + 1, failure.msg);
  }
  return std::move(reader.entries);
}

}  // namespace quire::apps
