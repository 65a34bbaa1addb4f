// For tests alone: files written byte by byte, also wrong ones, and a folder that goes away.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quire/error.h"

namespace quire::weights {

using Bytes = std::vector<std::byte>;

inline Bytes bytes_of(std::string_view text) {
  const auto view = std::as_bytes(std::span(text));
  return {view.begin(), view.end()};
}

inline Bytes read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return bytes_of(std::string(std::istreambuf_iterator<char>(in), {}));
}

inline void write_file(const std::filesystem::path& path, std::string_view content) {
  std::ofstream(path, std::ios::binary) << content;
}

inline std::filesystem::path golden(std::string_view name) {
  return std::filesystem::path(QUIRE_TEST_DATA) / "weights" / name;
}

// Little-endian fields one after the other.
class ByteWriter {
 public:
  template <class T>
  ByteWriter& put(T value) {
    text_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  ByteWriter& raw(std::string_view text) {
    text_ += text;
    return *this;
  }
  ByteWriter& string(std::string_view text) { return put<uint64_t>(text.size()).raw(text); }
  ByteWriter& pad_to(size_t multiple) {
    text_.resize((text_.size() + multiple - 1) / multiple * multiple);
    return *this;
  }
  const std::string& text() const { return text_; }
  Bytes bytes() const { return bytes_of(text_); }

 private:
  std::string text_;
};

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "quire-weights-XXXXXX").native();
    if (mkdtemp(name.data()) == nullptr) std::abort();
    path_ = name;
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// Expects an error of that kind whose message has all of the parts.
template <class T>
void expect_error(const Result<T>& result, ErrorKind kind, std::initializer_list<std::string_view> parts) {
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().kind, kind) << result.error().message;
  for (std::string_view part : parts)
    EXPECT_NE(result.error().message.find(part), std::string::npos)
        << "no \"" << part << "\" in: " << result.error().message;
}

}  // namespace quire::weights
