#include "weights/checkpoint.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <string>

#include "weights/mapped_file.h"
#include "weights/test_files.h"

namespace quire::weights {
namespace {

using enum ErrorKind;
namespace fs = std::filesystem;

TEST(OpenCheckpoint, ReadsAHuggingFaceFolder) {
  const auto sharded = open_checkpoint(golden("sharded"));
  ASSERT_TRUE(sharded) << sharded.error().message;
  EXPECT_EQ(sharded->kind, Checkpoint::Kind::kHuggingFace);
  EXPECT_EQ(sharded->gguf, nullptr);
  EXPECT_EQ(sharded->config_json, "{\"model_type\": \"llama\"}\n");
  EXPECT_EQ(sharded->generation_config_json, "{\"eos_token_id\": 2}\n");
  EXPECT_NE(sharded->tensors->find("a.weight"), nullptr);
  const auto single = open_checkpoint(golden("single"));
  ASSERT_TRUE(single) << single.error().message;
  // 6 F32, 4 F16, a scalar of F32, and the ids in I64, which no tensor is.
  EXPECT_EQ(file_bytes(*single), 24U + 8 + 4 + 8U * static_cast<size_t>(single->safetensors->stored("ids")->shape[0]));
  EXPECT_EQ(single->generation_config_json, "");
}

TEST(OpenCheckpoint, ReadsAGgufFileOrTheOnlyOneInAFolder) {
  TemporaryFolder folder;
  fs::copy_file(golden("formats.gguf"), folder / "a.gguf");
  fs::copy_file(golden("formats.gguf"), folder / "blob");
  for (const fs::path& path : {folder / "a.gguf", folder / "blob", folder.path()}) {
    const auto checkpoint = open_checkpoint(path);
    ASSERT_TRUE(checkpoint) << checkpoint.error().message;
    EXPECT_EQ(checkpoint->kind, Checkpoint::Kind::kGguf);
    ASSERT_NE(checkpoint->gguf, nullptr);
    EXPECT_EQ(*checkpoint->gguf->string("general.architecture"), "llama");
    EXPECT_NE(checkpoint->tensors->find("cube"), nullptr);
  }
  fs::copy_file(golden("formats.gguf"), folder / "b.gguf");
  expect_error(open_checkpoint(folder.path()), kUnsupported, {"a.gguf, b.gguf"});
}

TEST(OpenCheckpoint, FindsASplitModelInAFolder) {
  TemporaryFolder folder;
  for (const char* name : {"split-00001-of-00003.gguf", "split-00002-of-00003.gguf", "split-00003-of-00003.gguf"})
    fs::copy_file(golden(name), folder / name);
  const auto checkpoint = open_checkpoint(folder.path());
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  EXPECT_EQ(checkpoint->tensors->tensors().size(), 5U);
}

TEST(OpenCheckpoint, SaysWhyAPathIsNoModel) {
  TemporaryFolder folder;
  expect_error(open_checkpoint(folder / "none"), kNotFound, {"none"});
  expect_error(open_checkpoint(folder / "none/deeper"), kNotFound, {"deeper"});
  expect_error(open_checkpoint(folder.path()), kUnsupported, {"holds no model", "needed"});
  write_file(folder / "config.json", "{}");
  expect_error(open_checkpoint(folder.path()), kUnsupported, {"config.json", "no model.safetensors"});
  write_file(folder / "model.safetensors", "12345678");
  expect_error(open_checkpoint(folder.path()), kCorruptFile, {"model.safetensors"});
  fs::remove(folder / "config.json");
  expect_error(open_checkpoint(folder.path()), kUnsupported, {"no config.json"});
  expect_error(open_checkpoint(folder / "model.safetensors"), kUnsupported, {"no GGUF file"});
  write_file(folder / "bad.gguf", "not one");
  expect_error(open_checkpoint(folder / "bad.gguf"), kCorruptFile, {"bad.gguf", "not a GGUF file"});
  write_file(folder / "empty.gguf", "");
  expect_error(open_checkpoint(folder / "empty.gguf"), kCorruptFile, {"empty.gguf"});
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  expect_error(open_checkpoint(folder / "pipe"), kUnsupported, {"not a regular file"});
  expect_error(open_checkpoint(std::string(5000, 'a')), kUnsupported, {"cannot read"});
}

TEST(OpenCheckpoint, BoundsTheConfiguration) {
  TemporaryFolder folder;
  write_file(folder / "model.safetensors", ByteWriter().string("{}").text());
  write_file(folder / "config.json", std::string((16U << 20) + 1, ' '));
  expect_error(open_checkpoint(folder.path()), kCorruptFile, {"config.json", "16777216"});
  write_file(folder / "config.json", "");
  expect_error(open_checkpoint(folder.path()), kCorruptFile, {"config.json", "is empty"});
  write_file(folder / "config.json", "{}");
  write_file(folder / "generation_config.json", "");
  expect_error(open_checkpoint(folder.path()), kCorruptFile, {"generation_config.json", "is empty"});
}

TEST(MappedFile, HoldsTheBytesAndMoves) {
  TemporaryFolder folder;
  write_file(folder / "f", "content");
  auto file = MappedFile::open(folder / "f");
  ASSERT_TRUE(file);
  MappedFile moved = std::move(*file);
  EXPECT_EQ(file->size(), 0U);
  EXPECT_EQ(Bytes(moved.bytes().begin(), moved.bytes().end()), bytes_of("content"));
  write_file(folder / "empty", "");
  auto empty = MappedFile::open(folder / "empty");
  ASSERT_TRUE(empty);
  EXPECT_TRUE(empty->bytes().empty());
  moved = std::move(*empty);
  EXPECT_EQ(moved.size(), 0U);
}

}  // namespace
}  // namespace quire::weights
