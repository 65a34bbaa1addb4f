#include "weights/safetensors.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <random>
#include <string>

#include "weights/safetensors_parse.h"
#include "weights/test_files.h"

namespace quire::weights {
namespace {

using enum ErrorKind;

float first_of(const Tensor& tensor) {
  float value = 0;
  std::memcpy(&value, tensor.data.data(), sizeof value);
  return value;
}

TEST(SafetensorsFiles, ReadsOneFileAndShardsAlike) {
  for (const char* folder : {"single", "sharded"}) {
    const auto files = SafetensorsFiles::open(golden(folder));
    ASSERT_TRUE(files) << files.error().message;
    EXPECT_EQ((*files)->tensors().size(), 3U);
    const Tensor* weight = (*files)->find("a.weight");
    ASSERT_NE(weight, nullptr);
    EXPECT_EQ(describe(*weight), "[2, 3] F32");
    std::vector<float> values(6);
    dequantise(weight->format, weight->data, values);
    EXPECT_EQ(values, (std::vector<float>{0, 1, 2, 3, 4, 5}));
    const Tensor* bias = (*files)->find("b.bias");
    ASSERT_NE(bias, nullptr);
    EXPECT_EQ(describe(*bias), "[4] F16");
    const Tensor* scalar = (*files)->find("scalar");
    ASSERT_NE(scalar, nullptr);
    EXPECT_TRUE(scalar->shape.empty());
    EXPECT_EQ(scalar->elements(), 1);
    EXPECT_EQ(first_of(*scalar), 7.0F);
    EXPECT_EQ((*files)->find("ids"), nullptr);
    expect_error((*files)->require("ids"), kUnsupported, {"\"ids\"", "I64"});
    expect_error((*files)->require("none"), kCorruptFile, {"\"none\"", "missing"});
    EXPECT_EQ(*(*files)->require("a.weight"), weight);
  }
}

Bytes file_of(std::string_view header, size_t data_size) {
  return ByteWriter().string(header).raw(std::string(data_size, 'd')).bytes();
}

TEST(ParseSafetensors, AcceptsPaddingMetadataEmptyTensorsAndNone) {
  EXPECT_TRUE(parse_safetensors(file_of("{}", 0)));
  EXPECT_TRUE(parse_safetensors(file_of(R"({"__metadata__":{"format":"pt"}}   )", 0)));
  const Bytes file = file_of(
      R"({"b":{"dtype":"BF16","shape":[1,2],"data_offsets":[0,4]},"e":{"shape":[0,3],"data_offsets":[4,4],"dtype":"F32"}})",
      4);
  const auto tensors = parse_safetensors(file);
  ASSERT_TRUE(tensors) << tensors.error().message;
  ASSERT_EQ(tensors->size(), 2U);
  EXPECT_EQ((*tensors)[0].tensor.format, WeightFormat::kBF16);
  EXPECT_EQ((*tensors)[0].tensor.data.size(), 4U);
  EXPECT_EQ((*tensors)[1].unreadable, "F32 (empty)");
}

TEST(ParseSafetensors, SaysWhatIsWrongWithTheHeader) {
  const auto header = [](std::string_view json) { return parse_safetensors(file_of(json, 8)); };
  expect_error(parse_safetensors({}), kCorruptFile, {"shorter than 8"});
  expect_error(parse_safetensors(ByteWriter().put(UINT64_MAX).bytes()), kCorruptFile, {"100000000"});
  expect_error(parse_safetensors(ByteWriter().put<uint64_t>(3).raw("{}").bytes()), kCorruptFile,
               {"ends inside the header"});
  for (const char* bad : {"", " {}", "[]", "3", "{", "{}x", "{} {}", "nul", "{\"a\":1}", "{\"a\":[]}", "{\"a\":null}",
                          "{\"\xff\":{}}", "{\"__metadata__\":[]}", "{\"__metadata__\":{\"a\":1}}",
                          "{\"__metadata__\":{\"a\":{}}}", "{\"__metadata__\":{},\"__metadata__\":{}}"})
    expect_error(header(bad), kCorruptFile, {"the header"});
  expect_error(header(std::string(1'000'000, '[')), kCorruptFile, {"the header"});
  expect_error(header("{\"a\":" + std::string(1'000'000, '[')), kCorruptFile, {"the header"});
}

TEST(ParseSafetensors, NamesTheTensorThatIsWrong) {
  const auto tensor = [](std::string_view body) {
    return parse_safetensors(file_of("{\"w\":{" + std::string(body) + "}}", 8));
  };
  ASSERT_TRUE(tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0,8])"));
  for (const char* bad : {R"("dtype":"F32","shape":[2])",
                          R"("dtype":"F32","data_offsets":[0,8])",
                          R"("shape":[2],"data_offsets":[0,8])",
                          R"("dtype":"F31","shape":[2],"data_offsets":[0,8])",
                          R"("dtype":3,"shape":[2],"data_offsets":[0,8])",
                          R"("dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8])",
                          R"("dtype":"F32","shape":"2","data_offsets":[0,8])",
                          R"("dtype":"F32","shape":[2],"shape":[2],"data_offsets":[0,8])",
                          R"("dtype":"F32","shape":[-2],"data_offsets":[0,8])",
                          R"("dtype":"F32","shape":[2.0],"data_offsets":[0,8])",
                          R"("dtype":"F32","shape":[[2]],"data_offsets":[0,8])",
                          R"("dtype":"F32","shape":[2],"data_offsets":[0])",
                          R"("dtype":"F32","shape":[2],"data_offsets":[0,8,8])",
                          R"("dtype":"F32","shape":[2],"data_offsets":[8,0])",
                          R"("dtype":"F32","shape":[2],"data_offsets":[0,9])",
                          R"("dtype":"F32","shape":[2],"data_offsets":[0,7])",
                          R"("dtype":"F32","shape":[3],"data_offsets":[0,8])",
                          R"("dtype":"F16","shape":[2],"data_offsets":[0,8])",
                          R"("dtype":"F32","shape":[2],"data_offsets":[0,8],"more":1)",
                          R"("dtype":"F32","shape":[2],"data_offsets":[0,8],"more":[1])",
                          R"("dtype":"F4","shape":[3],"data_offsets":[0,1])",
                          R"("dtype":"F32","shape":[4294967296,4294967296,2],"data_offsets":[0,8])",
                          R"("dtype":"F32","shape":[0,18446744073709551615],"data_offsets":[0,0])",
                          R"("dtype":"F32","shape":[18446744073709551616],"data_offsets":[0,8])",
                          R"("dtype":"F32","shape":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,2],"data_offsets":[0,8])"})
    expect_error(tensor(bad), kCorruptFile, {"tensor \"w\""});
}

TEST(ParseSafetensors, TensorsMustTileTheData) {
  const auto two = [](std::string_view first, std::string_view second, size_t data) {
    const auto entry = [](std::string_view name, std::string_view offsets) {
      return "\"" + std::string(name) + R"(":{"dtype":"U8","shape":[4],"data_offsets":[)" + std::string(offsets) + "]}";
    };
    return parse_safetensors(file_of("{" + entry("v", first) + "," + entry("w", second) + "}", data));
  };
  EXPECT_TRUE(two("0,4", "4,8", 8));
  EXPECT_TRUE(two("4,8", "0,4", 8));
  expect_error(two("0,4", "3,7", 7), kCorruptFile, {"\"w\"", "4 was due"});
  expect_error(two("0,4", "0,4", 4), kCorruptFile, {"4 was due"});
  expect_error(two("0,4", "5,9", 9), kCorruptFile, {"\"w\"", "4 was due"});
  expect_error(two("1,5", "5,9", 9), kCorruptFile, {"\"v\"", "0 was due"});
  expect_error(two("0,4", "4,8", 9), kCorruptFile, {"byte 8", "9 bytes"});
  const std::string u8 = R"(:{"dtype":"U8","shape":[4],"data_offsets":)";
  expect_error(parse_safetensors(file_of("{\"w\"" + u8 + "[0,4]},\"w\"" + u8 + "[4,8]}}", 8)), kCorruptFile,
               {"\"w\"", "twice"});
}

TEST(ParseSafetensors, RefusesEveryTruncationAndSurvivesMutations) {
  const Bytes whole = read_file(golden("single/model.safetensors"));
  ASSERT_TRUE(parse_safetensors(whole));
  for (size_t size = 0; size < whole.size(); ++size)
    ASSERT_FALSE(parse_safetensors(Bytes(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(size)))) << size;
  Bytes longer = whole;
  longer.push_back(std::byte{0});
  EXPECT_FALSE(parse_safetensors(longer));
  std::mt19937 random(11);
  int refused = 0;
  for (int round = 0; round < 20000; ++round) {
    Bytes mutated = whole;
    for (int changes = 1 + static_cast<int>(random() % 2); changes > 0; --changes)
      mutated[random() % mutated.size()] = static_cast<std::byte>(random());
    const auto tensors = parse_safetensors(mutated);
    refused += tensors ? 0 : 1;
    for (size_t i = 0; tensors && i < tensors->size(); ++i) {
      const auto data = (*tensors)[i].tensor.data;
      ASSERT_TRUE(data.empty() ||
                  (data.data() >= mutated.data() && data.data() + data.size() <= mutated.data() + mutated.size()));
    }
  }
  EXPECT_GT(refused, 10000);
  EXPECT_LT(refused, 20000);
}

TEST(ParseShardIndex, MapsTensorsToPlainFileNames) {
  const auto index = parse_shard_index(
      R"({"metadata":{"total_size":1,"more":[{"weight_map":null}]},"weight_map":{"a":"x.safetensors","b":"x.safetensors"},"other":-1.5})");
  ASSERT_TRUE(index) << index.error().message;
  EXPECT_EQ(index->size(), 2U);
  EXPECT_EQ(index->at("a"), "x.safetensors");
}

TEST(ParseShardIndex, RefusesOtherFoldersAndOtherShapes) {
  for (const char* name : {"/etc/x.safetensors", "../x.safetensors", "a/x.safetensors", "..\\\\x.safetensors", "x.bin",
                           "", "x\\u0000.safetensors"})
    expect_error(parse_shard_index("{\"weight_map\":{\"w\":\"" + std::string(name) + "\"}}"), kCorruptFile,
                 {"\"w\"", "plain name"});
  expect_error(parse_shard_index(R"({"weight_map":{"w":"x.safetensors","w":"y.safetensors"}})"), kCorruptFile,
               {"\"w\"", "twice"});
  for (const char* bad :
       {"", "{", "[]", "3", "{}", R"({"weight_map":"x.safetensors"})", R"({"weight_map":[]})", R"({"weight_map":1})",
        R"({"weight_map":null})", R"({"weight_map":{"w":1}})", R"({"weight_map":{"w":null}})",
        R"({"weight_map":{"w":["x.safetensors"]}})", R"({"weight_map":{"w":{"v":"x.safetensors"}}})",
        R"({"weight_map":{},"weight_map":{}})", R"([{"weight_map":{}}])", R"({"a":{"weight_map":{}}})"})
    EXPECT_FALSE(parse_shard_index(bad)) << bad;
  EXPECT_FALSE(parse_shard_index(std::string(1'000'000, '[')));
}

TEST(SafetensorsFiles, TheIndexDecidesAndIsHeldToItsWord) {
  const std::string header =
      R"({"v":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"w":{"dtype":"F32","shape":[],"data_offsets":[4,8]}})";
  TemporaryFolder folder;
  write_file(folder / "x.safetensors", ByteWriter().string(header).put(1.0F).put(2.0F).text());
  write_file(folder / "y.safetensors", ByteWriter().string(header).put(3.0F).put(4.0F).text());
  const auto open_with = [&](std::string_view map) {
    write_file(folder / "model.safetensors.index.json", "{\"weight_map\":{" + std::string(map) + "}}");
    return SafetensorsFiles::open(folder.path());
  };
  const auto crossed = open_with(R"("v":"y.safetensors","w":"x.safetensors")");
  ASSERT_TRUE(crossed) << crossed.error().message;
  EXPECT_EQ((*crossed)->tensors().size(), 2U);
  EXPECT_EQ(first_of(**(*crossed)->require("v")), 3.0F);
  EXPECT_EQ(first_of(**(*crossed)->require("w")), 2.0F);
  expect_error(open_with(R"("u":"x.safetensors")"), kCorruptFile, {"\"u\"", "not in \"x.safetensors\"", "index.json"});
  expect_error(open_with(R"("v":"z.safetensors")"), kNotFound, {"z.safetensors"});
  write_file(folder / "z.safetensors", "12345678");
  expect_error(open_with(R"("v":"z.safetensors")"), kCorruptFile, {"z.safetensors"});
  TemporaryFolder empty;
  expect_error(SafetensorsFiles::open(empty.path()), kNotFound, {"model.safetensors.index.json"});
}

}  // namespace
}  // namespace quire::weights
