// Quantised matrices against the packages that write them, and against files that are wrong.
#include "weights/quantised_checkpoint.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "weights/quantised_matrix.h"
#include "weights/quantised_parts.h"
#include "weights/test_files.h"

namespace quire::weights {
namespace {

using enum ErrorKind;
using Layout = QuantisationScheme::Layout;

const QuantisationScheme kAwq{.layout = Layout::kAwq, .group_inputs = 32};
const QuantisationScheme kGptq{.layout = Layout::kGptq, .zeros_less_one = true, .group_inputs = 32};
const QuantisationScheme kPacked{.layout = Layout::kPacked, .group_inputs = 32};
const QuantisationScheme kInt8{.layout = Layout::kInt8, .bits = 8, .symmetric = true};
const QuantisationScheme kMxfp4{.layout = Layout::kMxfp4, .symmetric = true, .group_inputs = 32};
const QuantisationScheme kFp8{.layout = Layout::kFp8, .bits = 8, .symmetric = true};

template <class F>
QuantisationScheme with(QuantisationScheme scheme, F change) {
  change(scheme);
  return scheme;
}

struct Case {
  const char* name;
  QuantisationScheme scheme;
  WeightFormat format;
};

// The cases of tests/golden/generate/quantised.py.
std::vector<Case> cases() {
  using S = QuantisationScheme;
  const auto symmetric = [](S& s) { s.symmetric = true; };
  const auto eight = [](S& s) { s.bits = 8; };
  return {
      {"awq", kAwq, WeightFormat::kQ5_0},
      {"gptq4", kGptq, WeightFormat::kQ5_0},
      {"gptq4_wrapped", kGptq, WeightFormat::kQ5_0},
      {"gptq4_v2", with(kGptq, [](S& s) { s.zeros_less_one = false; }), WeightFormat::kQ5_0},
      {"gptq4_sym", with(with(kGptq, symmetric), [](S& s) { s.group_inputs.reset(); }), WeightFormat::kQ4_0},
      {"gptq4_order", kGptq, WeightFormat::kBF16},
      {"gptq8", with(kGptq, eight), WeightFormat::kAffine8},
      {"gptq8_sym", with(with(kGptq, eight), symmetric), WeightFormat::kQ8_0},
      {"packed4", kPacked, WeightFormat::kQ5_0},
      {"packed4_sym", with(kPacked, symmetric), WeightFormat::kQ4_0},
      {"packed4_fine", with(with(kPacked, symmetric), [](S& s) { s.group_inputs.reset(); }), WeightFormat::kAffine4},
      {"int8", kInt8, WeightFormat::kQ8_0},
      {"int8_fine", kInt8, WeightFormat::kAffine8},
      {"int8_zeros", with(kInt8, [](S& s) { s.symmetric = false; }), WeightFormat::kAffine8},
      {"fp8_channel", kFp8, WeightFormat::kBF16},
      {"fp8_tensor", with(kFp8, [](S& s) { s.group_rows = 0; }), WeightFormat::kBF16},
      {"fp8_every", with(kFp8, [](S& s) { s.group_rows = 0; }), WeightFormat::kBF16},
      {"fp8_block", with(kFp8, [](S& s) { s.group_rows = 16, s.group_inputs = 32; }), WeightFormat::kBF16},
  };
}

std::unique_ptr<SafetensorsFiles> open_files(const std::filesystem::path& folder) {
  auto files = SafetensorsFiles::open(folder);
  EXPECT_TRUE(files) << files.error().message;
  return files ? std::move(*files) : nullptr;
}

TEST(QuantisedMatrix, RowsHaveTheValuesOfThePackagesThatPackedThem) {
  const auto files = open_files(golden("quantised"));
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    const auto parts = find_parts(*files, c.name, c.scheme);
    ASSERT_TRUE(parts) << parts.error().message;
    const QuantisedMatrix matrix(*parts);
    EXPECT_EQ(format_info(matrix.format()).name, std::string(format_info(c.format).name));
    const Tensor* expected = files->find(std::string(c.name) + ".expected");
    ASSERT_NE(expected, nullptr);
    const Tensor tensor{.name = c.name, .format = matrix.format(), .shape = matrix.shape(), .made = &matrix};
    ASSERT_EQ(tensor.shape, expected->shape);
    std::vector<float> got(static_cast<size_t>(tensor.elements())), want(got.size());
    widen(tensor, got);
    widen(*expected, want);
    for (size_t i = 0; i < got.size(); ++i) {
      if (std::isnan(want[i])) {
        EXPECT_TRUE(std::isnan(got[i])) << i;
      } else {
        ASSERT_EQ(std::bit_cast<uint32_t>(got[i] + 0.F), std::bit_cast<uint32_t>(want[i] + 0.F))
            << "element " << i << ": " << got[i] << ", not " << want[i];
      }
    }
  }
}

// A tensor to be written, its data in bytes of `fill`, unless given.
struct Written {
  std::string dtype;
  std::vector<int64_t> shape;
  std::string data = {};
  char fill = 0;
};
using Content = std::map<std::string, Written>;

template <class T>
std::string numbers(std::initializer_list<T> values) {
  ByteWriter out;
  for (T value : values) out.put(value);
  return out.text();
}

void write_model(const TemporaryFolder& folder, const Content& content) {
  const std::map<std::string, size_t> bytes = {{"I8", 1},   {"U8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F16", 2},
                                               {"BF16", 2}, {"F32", 4}, {"I32", 4},     {"I64", 8}};
  std::string header = "{", data;
  for (const auto& [name, tensor] : content) {
    size_t size = bytes.at(tensor.dtype);
    std::string shape;
    for (int64_t extent : tensor.shape) {
      size *= static_cast<size_t>(extent);
      shape += (shape.empty() ? "" : ",") + std::to_string(extent);
    }
    header += (header.size() > 1 ? ",\"" : "\"") + name + R"(":{"dtype":")" + tensor.dtype + R"(","shape":[)" + shape +
              R"(],"data_offsets":[)" + std::to_string(data.size()) + "," + std::to_string(data.size() + size) + "]}";
    data += tensor.data.empty() ? std::string(size, tensor.fill) : tensor.data;
  }
  write_file(folder / "model.safetensors", ByteWriter().string(header + "}").raw(data).text());
}

Result<std::unique_ptr<QuantisedCheckpoint>> open_quantised(const Content& content,
                                                            std::vector<QuantisationScheme> schemes) {
  const TemporaryFolder folder;
  write_model(folder, content);
  auto files = open_files(folder.path());
  const SafetensorsFiles& stored = *files;
  return QuantisedCheckpoint::open(std::move(files), stored, schemes);
}

// 64 inputs, 16 outputs, two groups.
Content awq_parts() {
  return {{"m.qweight", {"I32", {64, 2}}}, {"m.qzeros", {"I32", {2, 2}}}, {"m.scales", {"F16", {2, 16}}}};
}
Content gptq_parts() {
  return {{"m.qweight", {"I32", {8, 16}}},
          {"m.qzeros", {"I32", {2, 2}}},
          {"m.scales", {"F16", {2, 16}}},
          {"m.g_idx", {"I32", {64}, {}, -1}}};
}
Content packed_parts() {
  return {{"m.weight_packed", {"I32", {16, 8}}},
          {"m.weight_scale", {"BF16", {16, 2}}},
          {"m.weight_zero_point", {"I32", {2, 2}}},
          {"m.weight_shape", {"I64", {2}, numbers<int64_t>({16, 64})}}};
}
Content int8_parts() { return {{"m.weight", {"I8", {16, 64}}}, {"m.weight_scale", {"BF16", {16, 1}}}}; }
Content fp8_parts() { return {{"m.weight", {"F8_E4M3", {20, 70}}}, {"m.weight_scale_inv", {"F32", {2, 3}}}}; }
Content mxfp4_parts() { return {{"m_blocks", {"U8", {3, 4, 2, 16}}}, {"m_scales", {"U8", {3, 4, 2}, {}, 120}}}; }
const QuantisationScheme kFp8Blocks = with(kFp8, [](auto& s) { s.group_rows = 16, s.group_inputs = 32; });

Content changed(Content content, const std::string& name, const Written& tensor) {
  content[name] = tensor;
  return content;
}
Content without(Content content, const std::string& name) {
  content.erase(name);
  return content;
}

TEST(QuantisedCheckpoint, HandOutMatricesInsteadOfTheirParts) {
  Content content = awq_parts();
  content["norm.weight"] = {"F32", {64}};
  content["ids"] = {"I64", {4}};
  content["m.input_scale"] = {"F32", {1}};
  content["attn.k_scale"] = {"F32", {1}};
  const auto tensors = open_quantised(content, {kAwq});
  ASSERT_TRUE(tensors) << tensors.error().message;
  ASSERT_EQ((*tensors)->tensors().size(), 2U);
  const Tensor* matrix = (*tensors)->find("m.weight");
  ASSERT_NE(matrix, nullptr);
  EXPECT_EQ(describe(*matrix), "[16, 64] Q5_0");
  EXPECT_NE((*tensors)->find("norm.weight"), nullptr);
  for (const char* gone : {"m.qweight", "m.qzeros", "m.scales", "m.input_scale", "attn.k_scale"})
    EXPECT_EQ((*tensors)->find(gone), nullptr) << gone;
  expect_error((*tensors)->require("m.qweight"), kCorruptFile, {"missing"});
  expect_error((*tensors)->require("ids"), kUnsupported, {"I64"});
}

// The values of E2M1 by their codes, and powers of two: the OCP's specification of microscaling formats, version 1.0.
TEST(QuantisedCheckpoint, ReadMxfp4AsItIsDefined) {
  const float codes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.F, -0.5, -1, -1.5, -2, -3, -4, -6};
  std::string blocks;
  for (int byte = 0; byte < 3 * 4 * 2 * 16; ++byte) blocks += static_cast<char>(byte * 37 + 11);
  std::string scales;
  for (int i = 0; i < 3 * 4 * 2; ++i) scales += static_cast<char>(115 + i);
  const Content content = {{"m_blocks", {"U8", {3, 4, 2, 16}, blocks}}, {"m_scales", {"U8", {3, 4, 2}, scales}}};
  const TemporaryFolder folder;
  write_model(folder, content);
  auto files = open_files(folder.path());
  const SafetensorsFiles& stored = *files;
  const auto tensors = QuantisedCheckpoint::open(std::move(files), stored, std::vector{kMxfp4});
  ASSERT_TRUE(tensors) << tensors.error().message;
  const Tensor& matrix = *(*tensors)->find("m");
  EXPECT_EQ(describe(matrix), "[3, 4, 64] MXFP4");
  std::vector<float> values(static_cast<size_t>(matrix.elements()));
  widen(matrix, values);
  for (size_t i = 0; i < values.size(); ++i) {
    const auto byte = static_cast<unsigned char>(blocks[i / 2]);
    const int power = static_cast<unsigned char>(scales[i / 32]) - 127;
    ASSERT_EQ(values[i], std::ldexp(codes[i % 2 == 0 ? byte & 15 : byte >> 4], power)) << i;
  }
}

TEST(QuantisedCheckpoint, OfSeveralSchemesTakeTheOneThatFits) {
  Content content = packed_parts();
  for (auto& [name, tensor] : int8_parts()) content["other" + name.substr(1)] = tensor;
  // As its name says nothing of them: two of one kind that differ in the groups alone.
  content["wide.weight_packed"] = {"I32", {16, 8}};
  content["wide.weight_scale"] = {"BF16", {16, 1}};
  content["wide.weight_shape"] = {"I64", {2}, numbers<int64_t>({16, 64})};
  const auto wide = with(kPacked, [](auto& s) { s.symmetric = true, s.group_inputs.reset(); });
  const auto tensors = open_quantised(content, {kPacked, kInt8, wide});
  ASSERT_TRUE(tensors) << tensors.error().message;
  EXPECT_EQ(describe(*(*tensors)->find("m.weight")), "[16, 64] Q5_0");
  EXPECT_EQ(describe(*(*tensors)->find("other.weight")), "[16, 64] Q8_0");
  EXPECT_EQ(describe(*(*tensors)->find("wide.weight")), "[16, 64] Q4_0");
}

// Two of one kind that differ in the zero points alone: those say which it is, whatever comes first.
TEST(QuantisedCheckpoint, OfSymmetricAndNotTakeTheOneThatFitsTheZeroPoints) {
  const auto symmetric = [](auto& s) { s.symmetric = true; };
  const auto fine = with(kInt8, [](auto& s) { s.symmetric = false; });
  Content packed = packed_parts(), bytes = int8_parts();
  packed["m.weight_zero_point"].fill = 0x33;
  bytes["m.weight_zero_point"] = {"I8", {16, 1}, {}, 3};
  for (bool first : {true, false}) {
    SCOPED_TRACE(first ? "symmetric first" : "symmetric last");
    const auto both = [&](const QuantisationScheme& asymmetric) {
      std::vector<QuantisationScheme> schemes = {with(asymmetric, symmetric), asymmetric};
      if (!first) std::ranges::reverse(schemes);
      return schemes;
    };
    const auto format_of = [](const Content& content, const std::vector<QuantisationScheme>& schemes) {
      const auto tensors = open_quantised(content, schemes);
      EXPECT_TRUE(tensors) << tensors.error().message;
      return tensors ? describe(*(*tensors)->find("m.weight")) : "";
    };
    EXPECT_EQ(format_of(packed, both(kPacked)), "[16, 64] Q5_0");
    EXPECT_EQ(format_of(without(packed, "m.weight_zero_point"), both(kPacked)), "[16, 64] Q4_0");
    EXPECT_EQ(format_of(bytes, both(fine)), "[16, 64] AFFINE8");
    EXPECT_EQ(format_of(without(bytes, "m.weight_zero_point"), both(fine)), "[16, 64] Q8_0");
  }
}

TEST(QuantisedCheckpoint, ZeroPointsOfFloatsMayBeZero) {
  const auto tensors = open_quantised(changed(fp8_parts(), "m.weight_zero_point", {"F8_E4M3", {2, 3}}), {kFp8Blocks});
  ASSERT_TRUE(tensors) << tensors.error().message;
  EXPECT_EQ((*tensors)->find("m.weight_zero_point"), nullptr);
}

TEST(QuantisedCheckpoint, WithoutASchemeNothingMayBeQuantised) {
  const auto check = [](const Content& content) {
    const TemporaryFolder folder;
    write_model(folder, content);
    return check_unquantised(*open_files(folder.path()));
  };
  for (const Content& content : {awq_parts(), gptq_parts(), packed_parts(), int8_parts(), fp8_parts(), mxfp4_parts()})
    expect_error(check(content), kCorruptFile, {"\"m", "quantization_config"});
  EXPECT_TRUE(check({{"m.weight", {"BF16", {16, 64}}}, {"m.bias", {"F32", {16}}}, {"m.ids", {"I64", {4}}}}));
}

TEST(QuantisedCheckpoint, ShapesAreNumbersOfEitherSize) {
  const Written narrow = {"I32", {2}, numbers<int32_t>({16, 64})};
  const auto tensors = open_quantised(changed(packed_parts(), "m.weight_shape", narrow), {kPacked});
  ASSERT_TRUE(tensors) << tensors.error().message;
  EXPECT_EQ((*tensors)->find("m.weight")->shape, (std::vector<int64_t>{16, 64}));
}

TEST(QuantisedCheckpoint, AcceptGroupsThatSayNothingNew) {
  std::string neighbours, unset;
  for (int k = 0; k < 64; ++k) neighbours += numbers<int32_t>({k / 32}), unset += numbers<int32_t>({-1});
  for (const std::string& groups : {neighbours, unset}) {
    const auto tensors = open_quantised(changed(gptq_parts(), "m.g_idx", {"I32", {64}, groups}), {kGptq});
    ASSERT_TRUE(tensors) << tensors.error().message;
    EXPECT_EQ((*tensors)->find("m.weight")->format, WeightFormat::kQ5_0);
  }
  const auto tensors = open_quantised(changed(gptq_parts(), "m.g_idx", {"I32", {64}, {}, 0}), {kGptq});
  ASSERT_TRUE(tensors) << tensors.error().message;
  EXPECT_EQ((*tensors)->find("m.weight")->format, WeightFormat::kBF16);
}

// The zero points of AutoGPTQ, and those of writers that do not store them less one but say so.
TEST(QuantisedCheckpoint, SymmetricZeroPointsAreWhatTheyMustBe) {
  const auto symmetric = with(kGptq, [](auto& s) { s.symmetric = true; });
  for (char zero : {'\x77', '\x88'})
    EXPECT_TRUE(open_quantised(changed(gptq_parts(), "m.qzeros", {"I32", {2, 2}, {}, zero}), {symmetric}));
  EXPECT_TRUE(open_quantised(without(gptq_parts(), "m.qzeros"), {symmetric}));
  const std::string mixed = numbers<uint32_t>({0x77777777, 0x77777777, 0x77777778, 0x77777777});
  for (const Written& wrong : {Written{"I32", {2, 2}, {}, 0x66}, Written{"I32", {2, 2}, mixed}})
    expect_error(open_quantised(changed(gptq_parts(), "m.qzeros", wrong), {symmetric}), kCorruptFile,
                 {"\"m.qzeros\"", "not all 8"});
}

TEST(QuantisedCheckpoint, ZeroPointsOfSymmetricMatricesMoveNothing) {
  const auto packed = with(kPacked, [](auto& s) { s.symmetric = true; });
  const auto zeros = [](const Content& content, const Written& tensor) {
    return changed(content, "m.weight_zero_point", tensor);
  };
  const auto neutral = open_quantised(zeros(packed_parts(), {"I32", {2, 2}, {}, '\x88'}), {packed});
  ASSERT_TRUE(neutral) << neutral.error().message;
  EXPECT_EQ(describe(*(*neutral)->find("m.weight")), "[16, 64] Q4_0");
  const auto bytes = open_quantised(zeros(int8_parts(), {"I8", {16, 1}, {}, 0}), {kInt8});
  ASSERT_TRUE(bytes) << bytes.error().message;
  EXPECT_EQ(describe(*(*bytes)->find("m.weight")), "[16, 64] Q8_0");

  const std::string one = numbers<uint32_t>({0x88888888, 0x88888888, 0x88888888, 0x78888888});
  for (const Written& wrong :
       {Written{"I32", {2, 2}, {}, 0}, Written{"I32", {2, 2}, {}, 0x77}, Written{"I32", {2, 2}, one}})
    expect_error(open_quantised(zeros(packed_parts(), wrong), {packed}), kCorruptFile,
                 {"\"m.weight_zero_point\"", "not all 8"});
  expect_error(open_quantised(zeros(int8_parts(), {"I8", {16, 1}, std::string(15, '\0') + '\1'}), {kInt8}),
               kCorruptFile, {"\"m.weight_zero_point\"", "not all 0"});
  expect_error(open_quantised(zeros(packed_parts(), {"I32", {16, 2}, {}, '\x88'}), {packed}), kCorruptFile,
               {"\"m.weight_zero_point\"", "[2, 2] would fit"});

  // Nine outputs: the second word of a group has one zero point.
  Content nine = packed_parts();
  nine["m.weight_packed"].shape = {9, 8};
  nine["m.weight_scale"].shape = {9, 2};
  nine["m.weight_shape"].data = numbers<int64_t>({9, 64});
  const std::string filled = numbers<uint32_t>({0x88888888, 0x88888888, 8, 0xfffffff8});
  EXPECT_TRUE(open_quantised(zeros(nine, {"I32", {2, 2}, filled}), {packed}));
}

TEST(QuantisedCheckpoint, DigestsFollowPartsAndMethod) {
  const auto digest = [](const Content& content, const QuantisationScheme& scheme) {
    const auto tensors = open_quantised(content, {scheme});
    EXPECT_TRUE(tensors) << tensors.error().message;
    Sha256 hash;
    add_to_digest(*(*tensors)->find("m.weight"), hash);
    return hash.finish();
  };
  const Content parts = awq_parts();
  const auto usual = digest(parts, kAwq);
  EXPECT_EQ(digest(parts, kAwq), usual);
  for (const auto& [name, tensor] : parts) {
    Content other = parts;
    other[name].fill = 1;
    EXPECT_NE(digest(other, kAwq), usual) << name;
  }
  const Content gptq = without(gptq_parts(), "m.g_idx");
  EXPECT_NE(digest(gptq, kGptq), digest(gptq, with(kGptq, [](auto& s) { s.zeros_less_one = false; })));
}

struct Wrong {
  Content content;
  QuantisationScheme scheme;
  ErrorKind kind;
  std::vector<std::string> parts;  // of the message; the tensor first
};

TEST(QuantisedCheckpoint, NameThePartThatIsWrong) {
  const Wrong cases[] = {
      {without(awq_parts(), "m.qzeros"), kAwq, kCorruptFile, {"m.qzeros", "missing", "m.qweight"}},
      {without(awq_parts(), "m.scales"), kAwq, kCorruptFile, {"m.scales", "missing"}},
      {changed(awq_parts(), "m.qweight", {"F32", {64, 2}}), kAwq, kCorruptFile, {"m.qweight", "I32 is needed"}},
      {changed(awq_parts(), "m.qweight", {"I32", {128}}), kAwq, kCorruptFile, {"m.qweight", "a matrix"}},
      {changed(awq_parts(), "m.qweight", {"I32", {0, 2}}), kAwq, kCorruptFile, {"m.qweight", "empty"}},
      {changed(awq_parts(), "m.qweight", {"I32", {40, 2}}), kAwq, kUnsupported, {"m.qweight", "40 inputs"}},
      {changed(awq_parts(), "m.qweight", {"I32", {96, 2}}), kAwq, kCorruptFile, {"m.scales", "[3, 16] would fit"}},
      {changed(awq_parts(), "m.scales", {"F16", {2, 15}}), kAwq, kCorruptFile, {"m.scales", "[2, 16] would fit"}},
      {changed(awq_parts(), "m.scales", {"F16", {32}}), kAwq, kCorruptFile, {"m.scales", "[2, 16] would fit"}},
      {changed(awq_parts(), "m.scales", {"I8", {2, 16}}), kAwq, kCorruptFile, {"m.scales", "F16 or BF16 or F32"}},
      {changed(awq_parts(), "m.qzeros", {"I32", {2, 1}}), kAwq, kCorruptFile, {"m.qzeros", "[2, 2] would fit"}},
      {changed(awq_parts(), "m.weight", {"F32", {16, 64}}), kAwq, kCorruptFile, {"m.weight", "twice"}},
      {without(gptq_parts(), "m.qweight"), kGptq, kCorruptFile, {"GPTQ", ".qweight"}},
      {changed(gptq_parts(), "m.qweight", {"I32", {8, 20}}), kGptq, kCorruptFile, {"m.scales", "[2, 20]"}},
      {changed(changed(gptq_parts(), "m.qweight", {"I32", {8, 20}}), "m.scales", {"F16", {2, 20}}),
       kGptq,
       kCorruptFile,
       {"m.qweight", "a multiple of 8 outputs"}},
      {changed(gptq_parts(), "m.g_idx", {"I32", {63}}), kGptq, kCorruptFile, {"m.g_idx", "[64] would fit"}},
      {changed(gptq_parts(), "m.g_idx", {"I64", {64}}), kGptq, kCorruptFile, {"m.g_idx", "I32 is needed"}},
      {changed(gptq_parts(), "m.g_idx", {"I32", {64}, {}, 2}), kGptq, kCorruptFile, {"m.g_idx", "input 0"}},
      {changed(gptq_parts(), "m.g_idx", {"I32", {64}, numbers<int32_t>({-1, 1}) + std::string(248, 0)}),
       kGptq,
       kCorruptFile,
       {"m.g_idx", "group -1"}},
      {without(packed_parts(), "m.weight_shape"), kPacked, kCorruptFile, {"m.weight_shape", "missing"}},
      {changed(packed_parts(), "m.weight_shape", {"I64", {3}}), kPacked, kCorruptFile, {"m.weight_shape", "[2]"}},
      {changed(packed_parts(), "m.weight_shape", {"F32", {2}}), kPacked, kCorruptFile, {"m.weight_shape", "I64"}},
      {changed(packed_parts(), "m.weight_zero_point", {"I32", {16, 2}}),
       kPacked,
       kCorruptFile,
       {"m.weight_zero_point", "[2, 2] would fit"}},
      {packed_parts(), with(kPacked, [](auto& s) { s.bits = 8; }), kCorruptFile, {"m.weight_shape", "4 integers"}},
      {without(int8_parts(), "m.weight_scale"), kInt8, kCorruptFile, {"m.weight_scale", "missing"}},
      {changed(int8_parts(), "m.weight_scale", {"BF16", {1, 16}}), kInt8, kCorruptFile, {"m.weight_scale", "[16, 1]"}},
      {int8_parts(), with(kInt8, [](auto& s) { s.symmetric = false; }), kCorruptFile, {"m.weight_zero_point"}},
      {int8_parts(), kFp8, kCorruptFile, {"float-quantized", ".weight"}},
      {without(mxfp4_parts(), "m_scales"), kMxfp4, kCorruptFile, {"m_scales", "missing", "m_blocks"}},
      {without(mxfp4_parts(), "m_blocks"), kMxfp4, kCorruptFile, {"MXFP4", "_blocks"}},
      {changed(mxfp4_parts(), "m_scales", {"U8", {3, 4, 1}}),
       kMxfp4,
       kCorruptFile,
       {"m_scales", "[3, 4, 2] would fit"}},
      {changed(mxfp4_parts(), "m_scales", {"I8", {3, 4, 2}}), kMxfp4, kCorruptFile, {"m_scales", "U8 is needed"}},
      {changed(mxfp4_parts(), "m_scales", {"U8", {3, 4, 2}, std::string(23, 1) + '\xff'}),
       kMxfp4,
       kCorruptFile,
       {"m_scales", "number 23", "255"}},
      {changed(mxfp4_parts(), "m_blocks", {"I8", {3, 4, 2, 16}}), kMxfp4, kCorruptFile, {"m_blocks", "U8 is needed"}},
      {changed(mxfp4_parts(), "m_blocks", {"U8", {3, 4, 4, 8}}), kMxfp4, kCorruptFile, {"m_blocks", "16 bytes"}},
      {changed(mxfp4_parts(), "m_blocks", {"U8", {24, 16}}), kMxfp4, kCorruptFile, {"m_blocks", "16 bytes"}},
      {mxfp4_parts(), kAwq, kCorruptFile, {"m_blocks", "AWQ"}},
      {fp8_parts(), kFp8, kCorruptFile, {"m.weight_scale_inv", "[20, 1] would fit"}},
      {changed(awq_parts(), "m.g_idx", {"I32", {64}}), kAwq, kCorruptFile, {"m.g_idx", "AWQ", "no use for it"}},
      {changed(gptq_parts(), "m.weight_scale", {"F16", {1}}), kGptq, kCorruptFile, {"m.weight_scale", "no use for it"}},
      {changed(packed_parts(), "m.scales", {"F16", {1}}), kPacked, kCorruptFile, {"m.scales", "no use for it"}},
      {changed(int8_parts(), "m.weight_scale_inv", {"F32", {16, 1}}),
       kInt8,
       kCorruptFile,
       {"m.weight_scale_inv", "no use for it", "m.weight_scale"}},
      {changed(fp8_parts(), "m.weight_scale", {"F32", {2, 3}}),
       kFp8Blocks,
       kCorruptFile,
       {"m.weight_scale", "no use for it", "m.weight_scale_inv"}},
      {changed(fp8_parts(), "m.weight_zero_point", {"F8_E4M3", {2, 3}, {}, 8}),
       kFp8Blocks,
       kCorruptFile,
       {"m.weight_zero_point", "must be 0"}},
      {changed(awq_parts(), "n.scales", {"F16", {2, 16}}), kAwq, kCorruptFile, {"n.scales", "not there"}},
      {changed(gptq_parts(), "n.g_idx", {"I32", {64}}), kGptq, kCorruptFile, {"n.g_idx", "not there"}},
      {changed(changed(fp8_parts(), "n.weight", {"BF16", {20, 70}}), "n.weight_scale_inv", {"F32", {2, 3}}),
       kFp8Blocks,
       kCorruptFile,
       {"n.weight_scale_inv", "not there"}},
      {changed(fp8_parts(), "m.weight", {"F8_E5M2", {20, 70}}), kFp8Blocks, kCorruptFile, {"m.weight", "F8_E4M3"}},
      {changed(fp8_parts(), "m.weight_scale_inv", {"F32", {2, 2}}),
       kFp8Blocks,
       kCorruptFile,
       {"m.weight_scale_inv", "[2, 3] would fit", "blocks of 16 x 32"}},
  };
  for (const Wrong& wrong : cases) {
    SCOPED_TRACE(wrong.parts.front());
    const auto tensors = open_quantised(wrong.content, {wrong.scheme});
    ASSERT_FALSE(tensors);
    EXPECT_EQ(tensors.error().kind, wrong.kind) << tensors.error().message;
    for (const std::string& part : wrong.parts)
      EXPECT_NE(tensors.error().message.find(part), std::string::npos) << part << " in: " << tensors.error().message;
  }
  // The shape's own numbers, at the edges of what may be packed.
  for (const auto& shape :
       {numbers<int64_t>({16, 65}), numbers<int64_t>({16, 56}), numbers<int64_t>({15, 64}), numbers<int64_t>({-16, 64}),
        numbers<int64_t>({16, INT64_MIN}), numbers<int64_t>({16, INT64_MAX}), numbers<int64_t>({64, 16})})
    expect_error(open_quantised(changed(packed_parts(), "m.weight_shape", {"I64", {2}, shape}), {kPacked}),
                 kCorruptFile, {"\"m.weight_shape\"", "does not fit \"m.weight_packed\" [16, 8] I32"});
}

// Parts of any shape and content: refused, or rows can be made of them. The sanitizers watch.
TEST(QuantisedCheckpoint, AnyPartsAreRefusedOrRead) {
  std::mt19937 rng(5);
  const auto pick = [&](std::initializer_list<int64_t> list) { return list.begin()[rng() % list.size()]; };
  const std::pair<Content, QuantisationScheme> sound[] = {{awq_parts(), kAwq},       {gptq_parts(), kGptq},
                                                          {packed_parts(), kPacked}, {int8_parts(), kInt8},
                                                          {fp8_parts(), kFp8Blocks}, {mxfp4_parts(), kMxfp4}};
  int read = 0, refused = 0;
  for (int i = 0; i < 1500; ++i) {
    auto [content, scheme] = sound[rng() % std::size(sound)];
    for (auto changes = rng() % 3; changes > 0; --changes) {
      Written& tensor = std::next(content.begin(), static_cast<int>(rng() % content.size()))->second;
      if (!tensor.shape.empty() && rng() % 2 == 0) {
        tensor.shape[rng() % tensor.shape.size()] = pick({0, 1, 2, 3, 8, 15, 16, 17, 32, 64});
      } else {
        tensor.shape.resize(rng() % 4, 2);
      }
      tensor.data.clear();
      tensor.fill = static_cast<char>(rng());
    }
    if (rng() % 4 == 0) scheme.bits = static_cast<int>(pick({4, 8}));
    if (rng() % 4 == 0) scheme.symmetric = !scheme.symmetric;
    if (rng() % 4 == 0 && scheme.group_rows == 1) scheme.group_inputs.reset();
    if (scheme.layout == Layout::kAwq) scheme.bits = 4;
    if (scheme.layout == Layout::kInt8 || scheme.layout == Layout::kFp8) scheme.bits = 8;
    // As in a model: the files are closed behind the last row.
    const TemporaryFolder folder;
    write_model(folder, content);
    auto files = SafetensorsFiles::open(folder.path());
    ASSERT_TRUE(files) << files.error().message;
    const SafetensorsFiles& stored = **files;
    const auto tensors = QuantisedCheckpoint::open(std::move(*files), stored, std::vector{scheme});
    ++(tensors ? read : refused);
    if (!tensors) continue;
    const Tensor& matrix = *(*tensors)->find(scheme.layout == Layout::kMxfp4 ? "m" : "m.weight");
    std::vector<float> values(static_cast<size_t>(matrix.elements()));
    widen(matrix, values);
  }
  EXPECT_GT(read, 300);
  EXPECT_GT(refused, 300);
}

// Scales that are no numbers make values that are none, as in plain tensors: never another crash.
TEST(QuantisedCheckpoint, ScalesMayBeAnything) {
  const auto symmetric = with(kPacked, [](auto& s) { s.symmetric = true; });
  for (const auto& scheme : {kPacked, symmetric}) {
    Content content = changed(packed_parts(), "m.weight_scale", {"F32", {16, 2}, {}, -1});  // NaN
    if (scheme.symmetric) content.erase("m.weight_zero_point");
    const auto tensors = open_quantised(content, {scheme});
    ASSERT_TRUE(tensors) << tensors.error().message;
    const Tensor& matrix = *(*tensors)->find("m.weight");
    EXPECT_EQ(matrix.format, WeightFormat::kAffine4);
    std::vector<float> values(static_cast<size_t>(matrix.elements()));
    widen(matrix, values);
    EXPECT_TRUE(std::ranges::all_of(values, [](float x) { return std::isnan(x); }));
  }
}

}  // namespace
}  // namespace quire::weights
