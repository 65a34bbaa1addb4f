// Reads the golden data of the text room (tests/golden/text). For tests alone.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "text/tokenizer.h"

namespace quire::text {

inline std::filesystem::path golden(const std::string& name) {
  return std::filesystem::path(QUIRE_TEST_DATA) / "text" / name;
}

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  std::ostringstream content;
  content << file.rdbuf();
  return std::move(content).str();
}

inline nlohmann::ordered_json read_json(const std::filesystem::path& path) {
  return nlohmann::ordered_json::parse(read_file(path));
}

template <class T>
std::string why(const Result<T>& result) {
  return result ? std::string() : result.error().message;
}

inline std::vector<TokenId> encoded(const Tokenizer& tokenizer, std::string_view text, EncodeOptions options) {
  auto ids = tokenizer.encode(text, options);
  EXPECT_TRUE(ids.has_value()) << why(ids) << " in: " << text;
  return ids.value_or(std::vector<TokenId>{-1});
}

inline std::string decoded(const Tokenizer& tokenizer, const std::vector<TokenId>& ids, bool skip_special) {
  auto text = tokenizer.decode(ids, skip_special);
  EXPECT_TRUE(text.has_value()) << why(text);
  return text.value_or("<error>");
}

// Runs the "incremental" vectors: text that may be passed out after each token, and after flush().
void check_incremental(const Tokenizer& tokenizer, const nlohmann::ordered_json& vectors);

}  // namespace quire::text
