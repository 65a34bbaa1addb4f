// Every kernel of every instruction set this CPU has, compared bit for bit with an oracle that knows only the formats.
#include "kernels/gemm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <tuple>

#include "kernels/gemm_oracle.h"
#include "kernels/gemm_self_check.h"

namespace quire::kernels {
namespace {

using oracle::Arithmetic;
using weights::WeightFormat;

constexpr WeightFormat kFormats[] = {
    WeightFormat::kF32,  WeightFormat::kF16,    WeightFormat::kBF16,   WeightFormat::kQ8_0,
    WeightFormat::kQ4_0, WeightFormat::kQ4_1,   WeightFormat::kQ5_0,   WeightFormat::kQ5_1,
    WeightFormat::kQ2_K, WeightFormat::kQ3_K,   WeightFormat::kQ4_K,   WeightFormat::kQ5_K,
    WeightFormat::kQ6_K, WeightFormat::kIQ4_NL, WeightFormat::kIQ4_XS, WeightFormat::kMXFP4};
constexpr WeightTarget kTargets[] = {WeightTarget::kF32, WeightTarget::kBF16, WeightTarget::kNative};

struct NamedTable {
  std::string name;
  KernelTable table;
};

// Each instruction set with and without the extensions that have kernels of their own, also those that are not the
// fastest here.
std::vector<NamedTable> tables() {
  CpuFeatures cpu = detect_cpu();
  std::vector<NamedTable> all;
  const auto add = [&](std::string name, Isa isa) {
    auto table = kernel_table(isa, cpu);
    if (table) all.push_back({std::move(name), *table});
  };
  add("scalar", Isa::kScalar);
  if (cpu.avx_vnni) add("avx2 vnni", Isa::kAvx2);
#if defined(__x86_64__) && !defined(QUIRE_SCALAR_ONLY)
  if (cpu.avx512_bf16 && vdpbf16ps_follows_rule_1()) {
    add("avx512 bf16", Isa::kAvx512);
    all.back().table.gemm = &gemm_kernels_avx512_bf16();
    all.back().table.wide_int8 = nullptr;
    all.back().table.wide_bf16 = nullptr;
  }
#endif
  cpu.avx_vnni = cpu.avx512_bf16 = false;
  if (cpu.amx_int8 || cpu.amx_bf16) add("avx512 amx", Isa::kAvx512);
  cpu.amx_int8 = cpu.amx_bf16 = false;
  add("avx2", Isa::kAvx2);
  add("avx512", Isa::kAvx512);
  return all;
}

// Whether these rows are multiplied in wide tiles.
bool are_wide(const KernelTable& table, ActivationKind kind, int rows) {
  if (kind == ActivationKind::kInt8) return table.wide_int8 != nullptr && rows >= table.wide_int8->least_rows;
  return kind == ActivationKind::kBF16 && table.wide_bf16 != nullptr && rows >= table.wide_bf16->least_rows;
}

Arithmetic arithmetic_of(Layout layout) {
  if (is_integer(layout)) return Arithmetic::kIntegers;
  if (layout == Layout::kBF16) return Arithmetic::kBlocks;
  return layout == Layout::kF16 ? Arithmetic::kRounded : Arithmetic::kF32;
}

class Gemm : public testing::Test {
 protected:
  Gemm() { set_flush_denormals(); }

  PackedMatrix packed(const oracle::Matrix& w, WeightTarget target, int slices) {
    const weights::Tensor tensor = w.tensor();
    const PackSource source{&tensor};
    auto matrix = pack({&source, 1}, target, slices, allocator, pool);
    EXPECT_TRUE(matrix.has_value()) << matrix.error().message;
    return std::move(*matrix);
  }

  // The first m rows of x through the kernels, in a vector as long as `x` has rows.
  std::vector<float> run(const KernelTable& table, const PackedMatrix& w, const float* x, int m, ThreadPool& threads) {
    Activations a;
    EXPECT_TRUE(a.reserve(m, w.inputs(), allocator));
    a.reshape(table, activation_kind(w.layout()), m, w.inputs());
    threads.split(m, [&](int begin, int end) { a.set_rows(table, x, static_cast<size_t>(w.inputs()), begin, end); });
    std::vector<float> c(static_cast<size_t>(m) * static_cast<size_t>(w.outputs()), std::nanf(""));
    gemm(table, w, a, {.out = c.data(), .stride = static_cast<size_t>(w.outputs())}, threads);
    return c;
  }

  Allocator allocator;
  ThreadPool pool{2};
  ThreadPool one{1};
  std::mt19937 rng{7};
};

std::string place(const NamedTable& t, WeightFormat format, WeightTarget target, int m) {
  return t.name + " " + weights::format_info(format).name + " target " + std::to_string(static_cast<int>(target)) +
         " M=" + std::to_string(m);
}

// All formats and targets on all instruction sets, with one number of rows after the other: each row must be what it is
// alone.
TEST_F(Gemm, EveryFormatHasTheOraclesBitsForEveryNumberOfRows) {
  constexpr int kN = 70;
  constexpr int kMost = 255;
  for (WeightFormat format : kFormats) {
    const int k = weights::format_info(format).block_elements == 256 ? 256 : 96;
    const oracle::Matrix w = oracle::random_matrix(format, kN, k, rng);
    const std::vector<float> x = oracle::random_rows(kMost, k, rng);
    for (WeightTarget target : kTargets) {
      const PackedMatrix matrix = packed(w, target, 1);
      const auto want = oracle::product(w, x, kMost, arithmetic_of(matrix.layout()), 1);
      for (const NamedTable& t : tables()) {
        for (int m : {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 31, 32, 33, 64, 255}) {
          const auto got = run(t.table, matrix, x.data(), m, m % 2 == 0 ? one : pool);
          ASSERT_EQ(oracle::difference(want.data(), got.data(), got.size(), w.n), "") << place(t, format, target, m);
        }
      }
    }
  }
}

// Rule 11, with ragged and small numbers of outputs.
TEST_F(Gemm, SlicesAreAddedInTheFixedTree) {
  for (WeightFormat format : kFormats) {
    const int unit = std::max(32, weights::format_info(format).block_elements);
    for (int slices : {1, 2, 4, 8}) {
      const int n = 1 + static_cast<int>(rng() % 130);
      const int k = slices * unit;
      const oracle::Matrix w = oracle::random_matrix(format, n, k, rng);
      const std::vector<float> x = oracle::random_rows(17, k, rng);
      for (WeightTarget target : kTargets) {
        const PackedMatrix matrix = packed(w, target, slices);
        const auto want = oracle::product(w, x, 17, arithmetic_of(matrix.layout()), slices);
        for (const NamedTable& t : tables()) {
          const auto got = run(t.table, matrix, x.data(), 17, pool);
          ASSERT_EQ(oracle::difference(want.data(), got.data(), got.size(), w.n), "")
              << place(t, format, target, 17) << " slices " << slices << " N=" << n;
        }
      }
    }
  }
}

TEST_F(Gemm, OddInputsOfFloatFormats) {
  constexpr int kM = 21;
  for (WeightFormat format : {WeightFormat::kF32, WeightFormat::kF16, WeightFormat::kBF16}) {
    for (int k : {1, 2, 7, 31, 33, 100, 129, 700}) {
      const oracle::Matrix w = oracle::random_matrix(format, 67, k, rng);
      const std::vector<float> x = oracle::random_rows(kM, k, rng);
      for (WeightTarget target : kTargets) {
        const PackedMatrix matrix = packed(w, target, 1);
        const auto want = oracle::product(w, x, kM, arithmetic_of(matrix.layout()), 1);
        for (const NamedTable& t : tables()) {
          const auto got = run(t.table, matrix, x.data(), kM, pool);
          ASSERT_EQ(oracle::difference(want.data(), got.data(), got.size(), w.n), "")
              << place(t, format, target, kM) << " K=" << k;
        }
      }
    }
  }
}

// A row that is not finite gives NaN in every output, and leaves its neighbours alone.
TEST_F(Gemm, NotFiniteInputsSpoilTheirOwnRowAlone) {
  constexpr int kK = 256;
  constexpr int kM = 40;
  for (WeightFormat format : kFormats) {
    oracle::Matrix w = oracle::random_matrix(format, 40, kK, rng);
    std::vector<float> x = oracle::random_rows(kM, kK, rng);
    const float bad[] = {std::numeric_limits<float>::infinity(), std::nanf(""),
                         -std::numeric_limits<float>::infinity()};
    for (size_t r = 1; r < kM; r += 2) x[r * kK + rng() % kK] = bad[r % 3];
    for (WeightTarget target : kTargets) {
      const PackedMatrix matrix = packed(w, target, 1);
      const auto want = oracle::product(w, x, kM, arithmetic_of(matrix.layout()), 1);
      for (const NamedTable& t : tables()) {
        const auto got = run(t.table, matrix, x.data(), kM, pool);
        ASSERT_EQ(oracle::difference(want.data(), got.data(), got.size(), w.n), "") << place(t, format, target, kM);
        for (size_t i = 0; i < got.size() && is_integer(matrix.layout()); i++) {
          ASSERT_EQ(std::isnan(got[i]), i / 40 % 2 == 1) << place(t, format, target, kM) << " at " << i;
        }
      }
    }
  }
}

TEST_F(Gemm, AddsAddendBiasAndResidualInThisOrder) {
  constexpr int kN = 75;
  constexpr int kK = 64;
  constexpr int kM = 55;  // 3 full tiles for matrix instructions, and one that is not
  for (WeightFormat format : {WeightFormat::kQ4_1, WeightFormat::kBF16}) {
    const oracle::Matrix w = oracle::random_matrix(format, kN, kK, rng);
    const std::vector<float> x = oracle::random_rows(kM, kK, rng);
    const std::vector<float> added = oracle::random_rows(2 * kM + 1, kN, rng);
    const float* bias = added.data() + 2 * kM * kN;
    for (int slices : {1, 2}) {
      const PackedMatrix matrix = packed(w, WeightTarget::kNative, slices);
      const auto sums = oracle::product(w, x, kM, arithmetic_of(matrix.layout()), slices);
      for (const NamedTable& t : tables()) {
        Activations a;
        ASSERT_TRUE(a.reserve(kM, kK, allocator));
        a.reshape(t.table, activation_kind(matrix.layout()), kM, kK);
        a.set_rows(t.table, x.data(), kK, 0, kM);
        for (int steps = 0; steps < 8; steps++) {
          // The residual is added to where it lies; rows are further apart than they are long.
          constexpr size_t kStride = kN + 5;
          std::vector<float> out(kM * kStride, 1.5F);
          GemmOutput output{.out = out.data(), .stride = kStride};
          if ((steps & 1) != 0) output.addend = added.data(), output.addend_stride = kN, output.addend_scale = 0.7F;
          if ((steps & 2) != 0) output.bias = bias;
          if ((steps & 4) != 0) output.residual = out.data(), output.residual_stride = kStride;
          gemm(t.table, matrix, a, output, pool);
          for (size_t m = 0; m < kM; m++) {
            for (size_t n = 0; n < kStride; n++) {
              float want = 1.5F;
              if (n < kN) {
                want = sums[m * kN + n];
                if ((steps & 1) != 0) want = std::fma(0.7F, added[m * kN + n], want);
                if ((steps & 2) != 0) want += bias[n];
                if ((steps & 4) != 0) want = 1.5F + want;
              }
              ASSERT_EQ(oracle::difference(&want, &out[m * kStride + n], 1, 1), "")
                  << place(t, format, WeightTarget::kNative, kM) << " steps " << steps << " at " << m << "," << n;
            }
          }
        }
      }
    }
  }
}

TEST_F(Gemm, ColumnRangesAreThoseColumns) {
  constexpr int kN = 200;
  constexpr int kK = 64;
  constexpr int kM = 40;
  for (WeightFormat format : {WeightFormat::kQ8_0, WeightFormat::kBF16}) {
    const oracle::Matrix w = oracle::random_matrix(format, kN, kK, rng);
    const std::vector<float> x = oracle::random_rows(kM, kK, rng);
    const PackedMatrix matrix = packed(w, WeightTarget::kNative, 1);
    for (const NamedTable& t : tables()) {
      const std::vector<float> all = run(t.table, matrix, x.data(), kM, pool);
      Activations a;
      ASSERT_TRUE(a.reserve(kM, kK, allocator));
      a.reshape(t.table, activation_kind(matrix.layout()), kM, kK);
      a.set_rows(t.table, x.data(), kK, 0, kM);
      for (auto [begin, end] : {std::pair{0, 200}, {64, 128}, {64, 200}, {128, 129}, {0, 33}}) {
        const auto width = static_cast<size_t>(end - begin);
        std::vector<float> out(kM * width);
        gemm(t.table, matrix, a, {.out = out.data(), .stride = width, .column_begin = begin, .column_end = end}, pool);
        for (size_t m = 0; m < kM; m++) {
          ASSERT_EQ(oracle::difference(&all[m * kN + static_cast<size_t>(begin)], &out[m * width], width, end - begin),
                    "")
              << t.name << " columns " << begin << " to " << end << " of row " << m;
        }
      }
    }
  }
}

// More groups than are unpacked at a time, with slices that end inside of those; more tiles than read them in turn, or
// than are multiplied in one go; and rows that start anywhere in memory that nobody set.
TEST_F(Gemm, UnpackedWeightsHaveTheSameBits) {
  struct Case {
    int k, m, slices;
  };
  for (WeightFormat format : kFormats) {
    if (!weights::is_quantised(format) && format != WeightFormat::kBF16) continue;
    for (const auto [k, m, slices] : {Case{2304, 70, 1}, {6144, 75, 8}, {4608, 42, 2}, {256, 600, 1}, {2048, 150, 8}}) {
      const oracle::Matrix w = oracle::random_matrix(format, 37, k, rng);
      const std::vector<float> x = oracle::random_rows(m, k, rng);
      const PackedMatrix matrix = packed(w, WeightTarget::kNative, slices);
      const auto want = oracle::product(w, x, m, arithmetic_of(matrix.layout()), slices);
      for (const NamedTable& t : tables()) {
        if (weights::is_quantised(format) ? t.table.unpacked_int8 == nullptr : t.table.wide_bf16 == nullptr) continue;
        const auto got = run(t.table, matrix, x.data(), m, pool);
        ASSERT_EQ(oracle::difference(want.data(), got.data(), got.size(), w.n), "")
            << place(t, format, WeightTarget::kNative, m) << " K=" << k << " slices " << slices;
      }
    }
  }
}

// The largest sums that int8 gives: every activation +127 or -127, every weight the lowest or the highest.
TEST_F(Gemm, ExtremesAreExact) {
  constexpr int kK = 512;
  constexpr int kM = 48;
  for (WeightFormat format : kFormats) {
    if (!weights::is_quantised(format)) continue;
    const oracle::Matrix w = oracle::random_matrix(format, 64, kK, rng);  // its first row is all the lowest
    std::vector<float> x(size_t{kM} * kK);
    for (size_t i = 0; i < x.size(); i++)
      x[i] = i / kK % 3 == 0 ? 3.F : i / kK % 3 == 1 ? -3.F : i % 2 == 0 ? 3.F : -3.F;
    const PackedMatrix matrix = packed(w, WeightTarget::kNative, 1);
    const auto want = oracle::product(w, x, kM, Arithmetic::kIntegers, 1);
    for (const NamedTable& t : tables()) {
      const auto got = run(t.table, matrix, x.data(), kM, pool);
      ASSERT_EQ(oracle::difference(want.data(), got.data(), got.size(), w.n), "")
          << place(t, format, WeightTarget::kNative, kM);
    }
  }
}

// Tiles hold all rows, and parts of all workers cover every panel and tile once, whatever the shape.
TEST_F(Gemm, PartsCoverEverythingOnce) {
  const auto check = [&](const NamedTable& t, WeightFormat format) {
    for (int n : {1, 33, 192, 576, 577}) {
      const oracle::Matrix w = oracle::random_matrix(format, n, 32, rng);
      const PackedMatrix matrix = packed(w, WeightTarget::kNative, 1);
      const ActivationKind kind = activation_kind(matrix.layout());
      for (int m : {1, 5, 64, 255, 1000}) {
        Activations a;
        ASSERT_TRUE(a.reserve(m, 32, allocator));
        a.reshape(t.table, kind, m, 32);
        EXPECT_EQ(a.tile_begin(0), 0);
        EXPECT_EQ(a.tile_begin(a.tiles()), m);
        EXPECT_EQ(a.wide(), are_wide(t.table, kind, m));
        for (int i = 0; i < a.tiles(); i++) {
          EXPECT_GT(a.tile_begin(i + 1), a.tile_begin(i));
          EXPECT_LE(a.tile_begin(i + 1) - a.tile_begin(i), a.wide() ? kWideRows : kTileRows);
        }
        for (int workers : {1, 2, 3, 4, 6, 16}) {
          std::vector<int> seen(static_cast<size_t>(matrix.panels() * a.tiles()));
          for (int worker = 0; worker < workers; worker++) {
            const GemmPart part = gemm_part(matrix, a, {}, worker, workers);
            for (int p = part.panel_begin; p < part.panel_end; p++) {
              for (int i = part.tile_begin; i < part.tile_end; i++) seen[static_cast<size_t>(p * a.tiles() + i)]++;
            }
          }
          EXPECT_EQ(seen, std::vector<int>(seen.size(), 1)) << "N=" << n << " M=" << m << " workers " << workers;
        }
      }
    }
  };
  for (const NamedTable& t : tables()) {
    for (WeightFormat format : {WeightFormat::kQ8_0, WeightFormat::kBF16}) check(t, format);
  }
}

TEST_F(Gemm, ManyRowsOfFewPanelsAreSharedByRows) {
  const oracle::Matrix w = oracle::random_matrix(WeightFormat::kQ8_0, 32, 32, rng);
  const PackedMatrix matrix = packed(w, WeightTarget::kNative, 1);
  Activations a;
  ASSERT_TRUE(a.reserve(1000, 32, allocator));
  a.reshape(*kernel_table(Isa::kScalar, {}), ActivationKind::kInt8, 1000, 32);
  ASSERT_EQ(a.tiles(), 167);
  EXPECT_EQ(gemm_part(matrix, a, {}, 0, 2), (GemmPart{0, 1, 0, 83}));
  EXPECT_EQ(gemm_part(matrix, a, {}, 1, 2), (GemmPart{0, 1, 83, 167}));
}

TEST_F(Gemm, SelfTestPassesAndSeesAWrongKernel) {
  for (const NamedTable& t : tables()) {
    EXPECT_TRUE(gemm_self_check(t.table)) << t.name;
    GemmKernels wrong = *t.table.gemm;
    wrong.tile[static_cast<size_t>(Layout::kInt4Min)] = wrong.tile[static_cast<size_t>(Layout::kInt4)];
    KernelTable table = t.table;
    table.gemm = &wrong;
    const auto result = gemm_self_check(table);
    ASSERT_FALSE(result) << t.name;
    EXPECT_NE(result.error().message.find("int4 min"), std::string::npos);
    for (auto member : {&KernelTable::unpacked_int8, &KernelTable::wide_int8}) {
      if (t.table.*member == nullptr) continue;
      PanelKernels mixed = *(t.table.*member);
      // One that reads no more than there is.
      mixed.unpack[static_cast<size_t>(Layout::kInt6Sub)] = mixed.unpack[static_cast<size_t>(Layout::kInt5)];
      table = t.table;
      table.*member = &mixed;
      EXPECT_FALSE(gemm_self_check(table)) << t.name;
    }
    if (t.table.wide_bf16 != nullptr) {
      WidePanelKernels wrong_wide = *t.table.wide_bf16;
      static const WidePanelKernels* right;
      right = t.table.wide_bf16;
      wrong_wide.panel = [](const WidePanelArgs& args) {  // forgets the first blocks of a single slice
        WidePanelArgs some = args;
        const size_t left = args.blocks / 2;
        if (args.out.slices == 1 && args.rows <= kWideRows) {
          some.a += (args.blocks - left) * static_cast<size_t>(args.slots) * kGroup * sizeof(uint16_t);
          some.panel += (args.blocks - left) * group_bytes(Layout::kBF16);
          some.blocks = left;
        }
        right->panel(some);
      };
      table = t.table;
      table.wide_bf16 = &wrong_wide;
      EXPECT_FALSE(gemm_self_check(table)) << t.name;
    }
  }
}

TEST(KernelTable, NamesWhatItUses) {
  const auto expect = [](bool there, Isa isa, const CpuFeatures& cpu, const char* name) {
    if (!there) return;
    const auto table = kernel_table(isa, cpu);
    ASSERT_TRUE(table);
    EXPECT_EQ(describe(*table), name);
  };
  CpuFeatures cpu = detect_cpu();
  cpu.avx512_bf16 = false;  // whether it is used is measured
  expect(true, Isa::kScalar, cpu, "scalar");
  expect(cpu.avx512 && cpu.amx_int8 && cpu.amx_bf16, Isa::kAvx512, cpu, "avx512+amx_bf16+amx_int8");
  expect(cpu.avx2 && cpu.avx_vnni, Isa::kAvx2, cpu, "avx2+avx_vnni");
  cpu.avx_vnni = cpu.amx_int8 = cpu.amx_bf16 = false;
  expect(cpu.avx2, Isa::kAvx2, cpu, "avx2");
  expect(cpu.avx512, Isa::kAvx512, cpu, "avx512");
}

TEST(KernelTable, RefusesWhatTheCpuLacks) {
  EXPECT_TRUE(kernel_table(Isa::kScalar, {}));
  EXPECT_EQ(kernel_table(Isa::kAvx2, {}).error().kind, ErrorKind::kUnsupported);
  EXPECT_EQ(kernel_table(Isa::kAvx512, {}).error().kind, ErrorKind::kUnsupported);
}

}  // namespace
}  // namespace quire::kernels
