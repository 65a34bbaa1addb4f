#include "text/chat_template.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <ctime>

#include "base/sha256.h"
#include "fmt/core.h"
#include "text/test_data.h"

namespace quire::text {
namespace {

using nlohmann::ordered_json;

// The local time 2025-03-09 12:34:56, wherever the test runs.
std::chrono::system_clock::time_point frozen_now() {
  std::tm parts{};
  parts.tm_year = 125;
  parts.tm_mon = 2;
  parts.tm_mday = 9;
  parts.tm_hour = 12;
  parts.tm_min = 34;
  parts.tm_sec = 56;
  parts.tm_isdst = -1;
  return std::chrono::system_clock::from_time_t(std::mktime(&parts));
}

ChatTemplate compiled(const ChatTemplateSource& source) {
  auto chat_template = ChatTemplate::compile(source, frozen_now);
  EXPECT_TRUE(chat_template.has_value()) << why(chat_template);
  return std::move(*chat_template);
}

std::string hex(const Sha256Digest& digest) {
  std::string text;
  for (const std::byte b : digest) text += fmt::format("{:02x}", static_cast<int>(b));
  return text;
}

// Template texts by their SHA-256: the one in the golden file, and those of the files in QUIRE_TEMPLATE_DIR.
std::map<std::string, std::string> known_templates(const ordered_json& file) {
  std::map<std::string, std::string> known;
  for (const auto& [name, entry] : file["templates"].items()) {
    if (entry.contains("text")) known.emplace(entry["sha256"].get<std::string>(), entry["text"].get<std::string>());
  }
  if (const char* folder = std::getenv("QUIRE_TEMPLATE_DIR")) {
    for (const auto& path : std::filesystem::directory_iterator(folder)) {
      if (path.path().extension() != ".jinja") continue;
      std::string text = read_file(path.path());
      const std::string digest = hex(sha256(std::as_bytes(std::span(text))));
      known.emplace(digest, std::move(text));
    }
  }
  return known;
}

ordered_json conversation(const ordered_json& file, const std::string& name) {
  for (const auto& entry : file["conversations"]) {
    if (entry["name"] == name) return entry;
  }
  ADD_FAILURE() << "no conversation " << name;
  return {};
}

TEST(ChatTemplate, RendersOfTransformersAgree) {
  const auto file = read_json(golden("chat.json"));
  const auto known = known_templates(file);
  size_t rendered = 0;
  for (const auto& render : file["renders"]) {
    const auto& entry = file["templates"][render["template"].get<std::string>()];
    const auto source = known.find(entry["sha256"].get<std::string>());
    if (source == known.end()) continue;
    const ChatTemplate chat_template =
        compiled({.text = source->second,
                  .special_tokens = {{"bos_token", entry["bos_token"].get<std::string>()},
                                     {"eos_token", entry["eos_token"].get<std::string>()}}});
    const auto chat = conversation(file, render["conversation"]);
    ordered_json options = render["kwargs"];
    options["add_generation_prompt"] = render["add_generation_prompt"];
    options["tools"] = chat["tools"];
    const auto text = chat_template.render(chat["messages"].dump(), options.dump());
    const std::string where = render["template"].get<std::string>() + " " + render["conversation"].get<std::string>();
    if (render.contains("error")) {
      ASSERT_FALSE(text.has_value()) << where;
      EXPECT_EQ(text.error().kind, ErrorKind::kInvalidRequest);
      const auto message = render["error"].get<std::string>().substr(sizeof("TemplateError: ") - 1);
      EXPECT_NE(text.error().message.find(message), std::string::npos) << text.error().message;
    } else {
      ASSERT_TRUE(text.has_value()) << where << ": " << why(text);
      EXPECT_EQ(*text, render["text"].get<std::string>()) << where;
    }
    ++rendered;
  }
  if (std::getenv("QUIRE_TEMPLATE_DIR") != nullptr) {
    EXPECT_EQ(rendered, file["renders"].size()) << "QUIRE_TEMPLATE_DIR lacks a template";
  }
  EXPECT_GE(rendered, 24U);
}

TEST(ChatTemplate, TemplatesOfTheFieldCompile) {
  const char* folder = std::getenv("QUIRE_TEMPLATE_DIR");
  if (folder == nullptr) GTEST_SKIP() << "QUIRE_TEMPLATE_DIR is not set";
  for (const auto& path : std::filesystem::directory_iterator(folder)) {
    if (path.path().extension() != ".jinja") continue;
    const auto chat_template = ChatTemplate::compile({.text = read_file(path.path())});
    EXPECT_TRUE(chat_template.has_value()) << path << ": " << why(chat_template);
  }
}

TEST(ChatTemplate, RendersOfJinjaAgree) {
  // Small templates of our own, with what Jinja as transformers runs it makes of them.
  const auto file = read_json(golden("jinja.json"));
  ASSERT_GT(file["cases"].size(), 40U);
  for (const auto& c : file["cases"]) {
    const auto source = c["template"].get<std::string>();
    const ChatTemplate chat_template =
        compiled({.text = source, .special_tokens = {{"bos_token", "<s>"}, {"eos_token", "</s>"}}});
    const auto text = chat_template.render(file["messages"].dump(), file["options"].dump());
    if (c.contains("error")) {
      EXPECT_FALSE(text.has_value()) << source << " gave " << *text;
    } else {
      EXPECT_EQ(text.value_or(why(text)), c["text"].get<std::string>()) << source;
    }
  }
}

TEST(ChatTemplate, ToolTemplateIsForRequestsWithTools) {
  const ChatTemplate chat_template = compiled({.text = "plain", .tool_use = "tools"});
  EXPECT_EQ(chat_template.render("[]"), "plain");
  EXPECT_EQ(chat_template.render("[]", R"({"tools": null})"), "plain");
  EXPECT_EQ(chat_template.render("[]", R"({"tools": [{}]})"), "tools");
}

TEST(ChatTemplate, BadSourcesAreErrorsThatSayWhere) {
  for (const char* source :
       {"{% if %}", "{{ x", "{% for a in b %}", "\n\n{% nonsense %}", "{% include 'x' %}", "{{ 1 | }}"}) {
    const auto chat_template = ChatTemplate::compile({.text = source});
    ASSERT_FALSE(chat_template.has_value()) << source;
    EXPECT_EQ(chat_template.error().kind, ErrorKind::kCorruptFile);
    EXPECT_NE(chat_template.error().message.find("line"), std::string::npos) << chat_template.error().message;
  }
  EXPECT_FALSE(ChatTemplate::compile({.text = "\xff"}).has_value());
  const std::string deep = std::string(100000, '(') + "1" + std::string(100000, ')');
  EXPECT_FALSE(ChatTemplate::compile({.text = "{{ " + deep + " }}"}).has_value());
}

TEST(ChatTemplate, BadMessagesAreErrors) {
  const ChatTemplate chat_template = compiled({.text = "{% for m in messages %}{{ m.role.upper() }}{% endfor %}"});
  const std::vector<std::pair<std::string, std::string>> bad = {
      {"", "{}"},
      {"{", "{}"},
      {"{}", "{}"},
      {"3", "{}"},
      {"[{}]", "{}"},
      {"[3]", "{}"},
      {"[]", "[]"},
      {"[]", ""},
      {"[]", R"({"messages": []})"},
      {"[\"\xff\"]", "{}"},
      {std::string(100000, '[') + std::string(100000, ']'), "{}"}};
  for (const auto& [messages, options] : bad) {
    const auto text = chat_template.render(messages, options);
    ASSERT_FALSE(text.has_value()) << messages.substr(0, 50);
    EXPECT_EQ(text.error().kind, ErrorKind::kInvalidRequest) << text.error().message;
  }
}

TEST(ChatTemplate, HostileTemplatesEnd) {
  for (const char* source : {
           "{% for i in range(100000) %}{% for j in range(100000) %}x{% endfor %}{% endfor %}",
           "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
           "{% set n = namespace(s='x') %}{% for i in range(100) %}{% set n.s = n.s ~ n.s %}{% endfor %}{{ n.s }}",
           "{{ 'x' * 100000000000 }}",
           "{{ range(1000000000000) | list }}",
           "{% set n = namespace(l=[]) %}{% for i in range(300) %}{% set n.l = [n.l] %}{% endfor %}{{ n.l | tojson }}",
       }) {
    const auto text = compiled({.text = source}).render("[]");
    ASSERT_FALSE(text.has_value()) << source;
    EXPECT_EQ(text.error().kind, ErrorKind::kInvalidRequest) << text.error().message;
  }
}

}  // namespace
}  // namespace quire::text
