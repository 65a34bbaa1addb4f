#include "text/load.h"

#include <gtest/gtest.h>

#include "text/test_data.h"

namespace quire::text {
namespace {

// A model's folder, removed at the end.
class Folder {
 public:
  Folder()
      : path_(std::filesystem::path(testing::TempDir()) /
              ("quire_text_" + std::to_string(++count_) + "_" + std::to_string(getpid()))) {
    std::filesystem::create_directories(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  void write(const std::string& name, const std::string& content) const {
    std::ofstream(path_ / name, std::ios::binary) << content;
  }
  void write_tokenizer() const { write("tokenizer.json", read_file(golden("tok_bytelevel_300/tokenizer.json"))); }
  const std::filesystem::path& path() const { return path_; }

 private:
  static inline int count_ = 0;
  std::filesystem::path path_;
};

ModelText loaded(const Folder& folder) {
  auto text = load_text(folder.path());
  EXPECT_TRUE(text.has_value()) << why(text);
  EXPECT_TRUE(text->has_value());
  return std::move(**text);
}

TEST(LoadText, AFolderWithoutTokenizerHasNone) {
  const Folder folder;
  const auto text = load_text(folder.path());
  ASSERT_TRUE(text.has_value()) << why(text);
  EXPECT_FALSE(text->has_value());
}

TEST(LoadText, ATokenizerAloneIsEnough) {
  const Folder folder;
  folder.write_tokenizer();
  const ModelText text = loaded(folder);
  EXPECT_EQ(text.tokenizer.vocab_size(), 300);
  EXPECT_FALSE(text.chat_template.has_value());
  EXPECT_EQ(text.tokenizer.special_ids().eos, std::nullopt);
}

TEST(LoadText, SpecialTokensAreStringsOrObjects) {
  const Folder folder;
  folder.write_tokenizer();
  folder.write("tokenizer_config.json",
               R"({"bos_token": {"content": "<|im_start|>", "lstrip": false}, "eos_token": "<|im_end|>",
      "pad_token": null, "add_bos_token": false, "chat_template": "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}"})");
  const ModelText text = loaded(folder);
  EXPECT_EQ(text.tokenizer.special_ids().bos, 1);
  EXPECT_EQ(text.tokenizer.special_ids().eos, 2);
  EXPECT_EQ(text.tokenizer.special_ids().pad, std::nullopt);
  ASSERT_TRUE(text.chat_template.has_value());
  EXPECT_EQ(text.chat_template->render(R"([{"content": "hi"}])"), "<|im_start|>hi<|im_end|>");
}

TEST(LoadText, TheTemplateFileGoesBeforeTheConfig) {
  const Folder folder;
  folder.write_tokenizer();
  folder.write("tokenizer_config.json", R"({"chat_template": "config"})");
  folder.write("chat_template.jinja", "file");
  EXPECT_EQ(loaded(folder).chat_template->render("[]"), "file");
}

TEST(LoadText, NamedTemplates) {
  const Folder folder;
  folder.write_tokenizer();
  folder.write("tokenizer_config.json", R"({"chat_template": [{"name": "tool_use", "template": "tools"},
      {"name": "default", "template": "plain"}, {"name": "rag", "template": "{{"}]})");
  const ModelText text = loaded(folder);
  EXPECT_EQ(text.chat_template->render("[]"), "plain");
  EXPECT_EQ(text.chat_template->render("[]", R"({"tools": [1]})"), "tools");
}

TEST(LoadText, BadConfigsAreErrorsThatNameTheKey) {
  const std::vector<std::pair<std::string, std::string>> bad = {
      {"[]", "not a JSON object"},
      {"{", "not a JSON object"},
      {R"({"eos_token": 5})", "eos_token"},
      {R"({"eos_token": "<no such token>"})", "<no such token>"},
      {R"({"chat_template": 5})", "chat_template"},
      {R"({"chat_template": [{"name": "default"}]})", "chat_template"},
      {R"({"chat_template": "{% if %}"})", "chat template"},
  };
  for (const auto& [config, named] : bad) {
    const Folder folder;
    folder.write_tokenizer();
    folder.write("tokenizer_config.json", config);
    const auto text = load_text(folder.path());
    ASSERT_FALSE(text.has_value()) << config;
    EXPECT_EQ(text.error().kind, ErrorKind::kCorruptFile);
    EXPECT_NE(text.error().message.find(named), std::string::npos) << text.error().message;
  }
}

TEST(LoadText, TheDigestFollowsTheFiles) {
  const Folder folder;
  folder.write_tokenizer();
  const Sha256Digest before = loaded(folder).digest;
  EXPECT_EQ(loaded(folder).digest, before);
  folder.write("chat_template.jinja", "x");
  EXPECT_NE(loaded(folder).digest, before);
}

}  // namespace
}  // namespace quire::text
