#include "weights/gguf.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>

#include "weights/gguf_parse.h"
#include "weights/test_files.h"

namespace quire::weights {
namespace {

using enum ErrorKind;

std::unique_ptr<GgufFile> open_golden(std::string_view name) {
  auto file = GgufFile::open(golden(name));
  if (!file) ADD_FAILURE() << file.error().message;
  return file ? std::move(*file) : nullptr;
}

TEST(GgufFile, ReadsMetadataOfEveryType) {
  const auto file = open_golden("formats.gguf");
  ASSERT_NE(file, nullptr);
  EXPECT_EQ(*file->string("general.architecture"), "llama");
  EXPECT_EQ(*file->string("test.text"), "naïve 字");
  EXPECT_EQ(*file->string("test.empty_text"), "");
  EXPECT_EQ(*file->integer("test.u8"), 255);
  EXPECT_EQ(*file->integer("test.i8"), -128);
  EXPECT_EQ(*file->integer("test.u16"), 65535);
  EXPECT_EQ(*file->integer("test.i16"), -32768);
  EXPECT_EQ(*file->integer("test.u32"), 4294967295);
  EXPECT_EQ(*file->integer("test.i32"), -2147483648LL);
  EXPECT_EQ(*file->integer("test.u64"), INT64_MAX);
  EXPECT_EQ(*file->integer("test.i64"), INT64_MIN);
  EXPECT_EQ(*file->number("test.f32"), static_cast<double>(0.1F));
  EXPECT_EQ(*file->number("test.f64"), 0.1);
  EXPECT_EQ(*file->number("test.i8"), -128.0);
  EXPECT_TRUE(*file->boolean("test.yes"));
  EXPECT_FALSE(*file->boolean("test.no"));
  EXPECT_EQ(*file->strings("test.strings"), (std::vector<std::string_view>{"a", "", "b\u2581c"}));
  EXPECT_EQ(*file->floats("test.floats"), (std::vector<float>{1.5F, -2.0F, 1e-30F}));
  EXPECT_EQ(*file->integers("test.integers"), (std::vector<int64_t>{3, -4, 2147483647}));
  EXPECT_EQ(*file->integers("test.booleans"), (std::vector<int64_t>{1, 0, 1}));
  EXPECT_EQ(*file->integers("test.bytes"), (std::vector<int64_t>{1, 2, 255}));
  EXPECT_TRUE(file->has("test.yes"));
  EXPECT_EQ(file->keys().front(), "general.architecture");
}

TEST(GgufFile, NamesTheKeyOfAMissingOrUnfitValue) {
  const auto file = open_golden("formats.gguf");
  ASSERT_NE(file, nullptr);
  EXPECT_FALSE(file->has("test.none"));
  expect_error(file->integer("test.none"), kNotFound, {"\"test.none\""});
  expect_error(file->strings("test.none"), kNotFound, {"\"test.none\""});
  expect_error(file->integer("test.u64_large"), kCorruptFile, {"\"test.u64_large\"", "UINT64", "63 bits"});
  expect_error(file->integer("test.f32"), kCorruptFile, {"\"test.f32\"", "FLOAT32", "an integer"});
  expect_error(file->integer("test.yes"), kCorruptFile, {"\"test.yes\"", "BOOL"});
  expect_error(file->integer("test.integers"), kCorruptFile, {"\"test.integers\"", "an array of INT32"});
  expect_error(file->number("test.text"), kCorruptFile, {"\"test.text\"", "STRING", "a number"});
  expect_error(file->boolean("test.u8"), kCorruptFile, {"\"test.u8\"", "a BOOL"});
  expect_error(file->string("test.strings"), kCorruptFile, {"\"test.strings\"", "an array of STRING"});
  expect_error(file->strings("test.text"), kCorruptFile, {"\"test.text\""});
  expect_error(file->floats("test.integers"), kCorruptFile, {"\"test.integers\""});
  expect_error(file->integers("test.floats"), kCorruptFile, {"\"test.floats\""});
  expect_error(file->integers("test.strings"), kCorruptFile, {"\"test.strings\""});
  expect_error(file->integers("test.u8"), kCorruptFile, {"\"test.u8\""});
}

TEST(GgufFile, ListsTensorsOutermostFirst) {
  const auto file = open_golden("formats.gguf");
  ASSERT_NE(file, nullptr);
  const Tensor* cube = file->find("cube");
  ASSERT_NE(cube, nullptr);
  EXPECT_EQ(cube->shape, (std::vector<int64_t>{2, 3, 4}));
  EXPECT_EQ(cube->elements(), 24);
  EXPECT_EQ(describe(*cube), "[2, 3, 4] F32");
  float last = 0;
  std::memcpy(&last, cube->data.data() + 23 * sizeof last, sizeof last);
  EXPECT_EQ(last, 23.0F);
  EXPECT_EQ(file->tensors().front().name, "scale");
  EXPECT_EQ(file->find("none"), nullptr);
  expect_error(file->require("none"), kCorruptFile, {"\"none\"", "missing"});
  EXPECT_EQ(file->find("indices"), nullptr);
  expect_error(file->require("indices"), kUnsupported, {"\"indices\"", "I32"});
  EXPECT_EQ(*file->require("cube"), cube);
}

TEST(GgufFile, AnyPartOfASplitModelOpensTheWhole) {
  for (const char* name : {"split-00001-of-00003.gguf", "split-00002-of-00003.gguf", "split-00003-of-00003.gguf"}) {
    const auto file = open_golden(name);
    ASSERT_NE(file, nullptr);
    EXPECT_EQ(*file->string("test.text"), "whole");
    ASSERT_EQ(file->tensors().size(), 5U);
    for (int i = 0; i < 5; ++i) {
      const Tensor* tensor = file->find("blk." + std::to_string(i) + ".weight");
      ASSERT_NE(tensor, nullptr);
      float first = -1;
      std::memcpy(&first, tensor->data.data(), sizeof first);
      EXPECT_EQ(first, static_cast<float>(i));
    }
  }
}

TEST(GgufFile, RefusesAnIncompleteOrMisnamedSplitModel) {
  TemporaryFolder folder;
  std::filesystem::copy_file(golden("split-00001-of-00003.gguf"), folder / "m-00001-of-00003.gguf");
  std::filesystem::copy_file(golden("split-00002-of-00003.gguf"), folder / "m-00002-of-00003.gguf");
  expect_error(GgufFile::open(folder / "m-00001-of-00003.gguf"), kNotFound, {"m-00003-of-00003.gguf"});
  std::filesystem::copy_file(golden("split-00002-of-00003.gguf"), folder / "m-00003-of-00003.gguf");
  expect_error(GgufFile::open(folder / "m-00001-of-00003.gguf"), kCorruptFile, {"m-00003-of-00003.gguf", "split.no"});
  std::filesystem::copy_file(golden("split-00001-of-00003.gguf"), folder / "m.gguf");
  expect_error(GgufFile::open(folder / "m.gguf"), kUnsupported, {"part 1 of 3", "NAME-00001-of-00003.gguf"});
}

// A file of one entry and one tensor, every field of which a test may set wrong.
struct Small {
  std::string magic = "GGUF";
  uint32_t version = 3;
  uint64_t tensors = 1;
  uint64_t entries = 1;
  std::string key = "general.alignment";
  uint32_t value_type = 4;  // UINT32
  std::string value = ByteWriter().put<uint32_t>(32).text();
  std::string second_entry = {};
  std::string name = "w";
  std::vector<uint64_t> extents = {32, 2};
  uint32_t type = 8;  // Q8_0
  uint64_t offset = 0;
  std::string second_tensor = {};
  size_t data_size = 68;

  Bytes bytes() const {
    ByteWriter out;
    out.raw(magic).put(version).put(tensors).put(entries).string(key).put(value_type).raw(value).raw(second_entry);
    out.string(name).put(static_cast<uint32_t>(extents.size()));
    for (uint64_t extent : extents) out.put(extent);
    out.put(type).put(offset).raw(second_tensor).pad_to(32).raw(std::string(data_size, 'd'));
    return out.bytes();
  }
};

std::string value_of(auto... fields) {
  ByteWriter out;
  (out.put(fields), ...);
  return out.text();
}

TEST(ParseGguf, ReadsTheSmallFile) {
  const Bytes file = Small().bytes();
  const auto part = parse_gguf(file);
  ASSERT_TRUE(part) << part.error().message;
  ASSERT_EQ(part->tensors.size(), 1U);
  EXPECT_EQ(part->tensors[0].tensor.shape, (std::vector<int64_t>{2, 32}));
  EXPECT_EQ(part->tensors[0].tensor.data.data() + 68, file.data() + file.size());
  EXPECT_TRUE(parse_gguf(Small{.version = 2}.bytes()));
  EXPECT_TRUE(parse_gguf(Small{.extents = {}, .type = 0}.bytes()));  // a scalar
}

TEST(ParseGguf, SaysWhatIsWrongWithTheHeader) {
  expect_error(parse_gguf({}), kCorruptFile, {"not a GGUF file"});
  expect_error(parse_gguf(Small{.magic = "GGML"}.bytes()), kCorruptFile, {"not a GGUF file"});
  expect_error(parse_gguf(Small{.version = 1}.bytes()), kUnsupported, {"version 1"});
  expect_error(parse_gguf(Small{.version = 0x03000000}.bytes()), kUnsupported, {"big-endian"});
  expect_error(parse_gguf(Small{.tensors = UINT64_MAX}.bytes()), kCorruptFile, {"tensor 1"});
  expect_error(parse_gguf(Small{.entries = UINT64_MAX}.bytes()), kCorruptFile, {"key"});
}

TEST(ParseGguf, NamesTheKeyThatIsWrong) {
  const auto entry = [](uint32_t type, std::string value) {
    return parse_gguf(Small{.key = "k", .value_type = type, .value = std::move(value)}.bytes());
  };
  expect_error(entry(13, ""), kCorruptFile, {"\"k\"", "unknown type 13"});
  expect_error(entry(7, value_of(uint8_t{2})), kCorruptFile, {"\"k\"", "neither 0 nor 1"});
  expect_error(entry(8, value_of(UINT64_MAX)), kCorruptFile, {"\"k\"", "ends inside"});
  expect_error(entry(9, value_of(uint32_t{4}, UINT64_MAX)), kCorruptFile, {"\"k\"", "ends inside"});
  expect_error(entry(9, value_of(uint32_t{8}, UINT64_MAX)), kCorruptFile, {"\"k\"", "ends inside"});
  expect_error(entry(9, value_of(uint32_t{99}, uint64_t{0})), kCorruptFile, {"\"k\"", "unknown element type 99"});
  expect_error(entry(9, value_of(uint32_t{9}, uint64_t{0})), kUnsupported, {"\"k\"", "arrays of arrays"});
  expect_error(entry(9, value_of(uint32_t{7}, uint64_t{1}, uint8_t{3})), kCorruptFile, {"\"k\"", "neither 0 nor 1"});
  expect_error(parse_gguf(Small{.key = ""}.bytes()), kCorruptFile, {"key 0", "0 bytes"});
  expect_error(parse_gguf(Small{.key = "a\xff"}.bytes()), kCorruptFile, {"key 0", "UTF-8", "\\xff"});
  expect_error(parse_gguf(Small{.key = std::string(70000, 'k')}.bytes()), kCorruptFile, {"key 0", "65535"});
  const Small once;
  const std::string again = ByteWriter().string(once.key).put(once.value_type).raw(once.value).text();
  expect_error(parse_gguf(Small{.entries = 2, .second_entry = again}.bytes()), kCorruptFile,
               {"\"general.alignment\"", "twice"});
  for (uint32_t alignment : {0U, 3U, 48U})
    expect_error(parse_gguf(Small{.value = value_of(alignment)}.bytes()), kCorruptFile,
                 {"general.alignment", "power of two"});
  expect_error(parse_gguf(Small{.value_type = 6}.bytes()), kCorruptFile, {"general.alignment", "FLOAT32"});
}

TEST(ParseGguf, NamesTheTensorThatIsWrong) {
  expect_error(parse_gguf(Small{.name = ""}.bytes()), kCorruptFile, {"tensor 0"});
  expect_error(parse_gguf(Small{.name = std::string(65, 'w')}.bytes()), kCorruptFile, {"tensor 0", "64"});
  expect_error(parse_gguf(Small{.name = "\xc0\x80"}.bytes()), kCorruptFile, {"tensor 0", "UTF-8"});
  expect_error(parse_gguf(Small{.extents = {32, 1, 1, 1, 1}}.bytes()), kCorruptFile, {"\"w\"", "5 dimensions"});
  expect_error(parse_gguf(Small{.extents = {32, 0}}.bytes()), kCorruptFile, {"\"w\"", "zero extent"});
  expect_error(parse_gguf(Small{.extents = {32, UINT64_MAX}}.bytes()), kCorruptFile, {"\"w\"", "extent"});
  expect_error(parse_gguf(Small{.extents = {1ULL << 32, 1ULL << 32}}.bytes()), kCorruptFile, {"\"w\"", "63 bits"});
  expect_error(parse_gguf(Small{.extents = {1ULL << 32, 1ULL << 30}, .type = 0}.bytes()), kCorruptFile, {"\"w\""});
  expect_error(parse_gguf(Small{.extents = {33, 2}}.bytes()), kCorruptFile, {"\"w\"", "33", "multiple of 32"});
  for (uint32_t unknown : {4U, 5U, 31U, 38U, 4096U})
    expect_error(parse_gguf(Small{.type = unknown}.bytes()), kCorruptFile, {"\"w\"", "unknown type"});
  expect_error(parse_gguf(Small{.offset = 1}.bytes()), kCorruptFile, {"\"w\"", "alignment 32"});
  expect_error(parse_gguf(Small{.offset = 32}.bytes()), kCorruptFile, {"\"w\"", "68 bytes at offset 32"});
  expect_error(parse_gguf(Small{.offset = ~31ULL}.bytes()), kCorruptFile, {"\"w\"", "offset"});
  expect_error(parse_gguf(Small{.data_size = 67}.bytes()), kCorruptFile, {"\"w\"", "only 67 bytes"});
}

TEST(ParseGguf, RefusesTensorsThatShareBytesOrANameButNotNeighbours) {
  const auto with_second = [](std::string_view name, uint64_t offset) {
    const std::string info =
        ByteWriter().string(name).put<uint32_t>(1).put<uint64_t>(32).put<uint32_t>(8).put(offset).text();
    return Small{.tensors = 2, .second_tensor = info, .data_size = 96 + 34}.bytes();
  };
  EXPECT_TRUE(parse_gguf(with_second("v", 96)));
  expect_error(parse_gguf(with_second("v", 64)), kCorruptFile, {"\"v\"", "overlaps", "\"w\""});
  expect_error(parse_gguf(with_second("v", 0)), kCorruptFile, {"overlaps"});
  TemporaryFolder folder;
  const Bytes twice = with_second("w", 96);
  write_file(folder / "twice.gguf", {reinterpret_cast<const char*>(twice.data()), twice.size()});
  expect_error(GgufFile::open(folder / "twice.gguf"), kCorruptFile, {"\"w\"", "twice", "twice.gguf"});
}

// Asks for everything that a parsed file offers, so that a wrong view would be read.
void touch(const GgufPart& part) {
  for (const GgufEntry& entry : part.entries) {
    (void)to_string(entry), (void)to_integer(entry), (void)to_number(entry), (void)to_boolean(entry);
    (void)to_strings(entry), (void)to_floats(entry), (void)to_integers(entry);
  }
  unsigned sum = 0;
  for (const TensorEntry& entry : part.tensors)
    for (std::byte b : entry.tensor.data) sum += std::to_integer<unsigned>(b);
  EXPECT_GE(sum, 0U);
}

TEST(ParseGguf, RefusesEveryTruncation) {
  const Bytes whole = read_file(golden("formats.gguf"));
  ASSERT_TRUE(parse_gguf(whole));
  const auto part = parse_gguf(whole);
  const auto header = static_cast<size_t>(part->tensors.front().tensor.data.data() - whole.data());
  const size_t end = static_cast<size_t>(part->tensors.back().tensor.data.data() - whole.data()) +
                     part->tensors.back().tensor.data.size();  // padding may follow
  for (size_t size = 0; size < end; size += size < header ? 1 : 61) {
    const Bytes cut(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(size));
    const auto result = parse_gguf(cut);
    ASSERT_FALSE(result) << size;
    ASSERT_NE(result.error().kind, kInternal);
  }
}

TEST(ParseGguf, SurvivesMutations) {
  const Bytes whole = read_file(golden("formats.gguf"));
  const auto intact = parse_gguf(whole);
  ASSERT_TRUE(intact);
  const auto header = static_cast<size_t>(intact->tensors.front().tensor.data.data() - whole.data());
  std::mt19937 random(7);
  int refused = 0;
  for (int round = 0; round < 20000; ++round) {
    Bytes mutated = whole;
    for (int changes = 1 + static_cast<int>(random() % 3); changes > 0; --changes)
      mutated[random() % header] = static_cast<std::byte>(random() % 4 == 0 ? 0xff : random());
    const auto part = parse_gguf(mutated);
    if (part) touch(*part);
    refused += part ? 0 : 1;
  }
  EXPECT_GT(refused, 1000);
  EXPECT_LT(refused, 20000);
}

TEST(RealModels, Open) {
  const char* folder = std::getenv("QUIRE_MODEL_DIR");
  if (folder == nullptr) GTEST_SKIP() << "QUIRE_MODEL_DIR names no folder with smollm2.gguf and gemma3.gguf";
  const auto smollm2 = GgufFile::open(std::filesystem::path(folder) / "smollm2.gguf");
  ASSERT_TRUE(smollm2) << smollm2.error().message;
  EXPECT_EQ(*(*smollm2)->string("general.architecture"), "llama");
  EXPECT_EQ(*(*smollm2)->integer("llama.block_count"), 30);
  EXPECT_EQ((*(*smollm2)->strings("tokenizer.ggml.tokens")).size(), 49152U);
  const auto embedding = (*smollm2)->require("token_embd.weight");
  ASSERT_TRUE(embedding);
  EXPECT_EQ((*embedding)->shape, (std::vector<int64_t>{49152, 576}));
  const auto gemma3 = GgufFile::open(std::filesystem::path(folder) / "gemma3.gguf");
  ASSERT_TRUE(gemma3) << gemma3.error().message;
  EXPECT_EQ(*(*gemma3)->string("general.architecture"), "gemma3");
  const auto down = (*gemma3)->require("blk.0.ffn_down.weight");
  ASSERT_TRUE(down);
  EXPECT_EQ((*down)->shape, (std::vector<int64_t>{640, 2048}));
}

}  // namespace
}  // namespace quire::weights
