// Times matrix products by format, shape and number of rows: gemm_bench [FORMAT or SHAPE...] [--isa NAME] [--threads
// N] [--without-amx].
//
// Weights are copied until they exceed the second-level caches many times over, so that few rows measure memory. Each
// figure is the best of several rounds, and includes reading the activations but not preparing them. Behind it stands
// the share of what the machine allows: the weights' bytes and the operations at the peaks probed at the start.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "kernels/gemm.h"
#include "kernels/probe.h"
#include "kernels/roofline.h"
#include "setup.h"

namespace quire::kernels {
namespace {

using weights::WeightFormat;

struct Shape {
  const char* name;
  int n;
  int k;
  int slices;
};

// SmolLM2-135M's matrices, and a square one.
constexpr Shape kShapes[] = {{"square", 2048, 2048, 1}, {"qkv", 960, 576, 1},   {"o", 576, 576, 1},
                             {"gate+up", 3072, 576, 1}, {"down", 576, 1536, 8}, {"head", 49152, 576, 1}};
constexpr int kRows[] = {1, 2, 4, 8, 16, 32, 64, 256};
constexpr size_t kWeightBytes = size_t{96} << 20;
constexpr int kRounds = 9;

// Random blocks. Byte patterns that would be a huge or infinite fp16 or bf16 are avoided everywhere, at no loss.
std::vector<std::byte> random_file(WeightFormat format, const Shape& shape, std::mt19937& rng) {
  const weights::FormatInfo& info = weights::format_info(format);
  const size_t blocks = static_cast<size_t>(shape.n) * static_cast<size_t>(shape.k / info.block_elements);
  std::vector<std::byte> file(blocks * static_cast<size_t>(info.block_bytes));
  for (std::byte& b : file) b = static_cast<std::byte>(rng() & 0xbfU);
  return file;
}

// Seconds for one product, averaged over all copies; the best of the rounds.
double best_time(const KernelTable& table, const std::vector<PackedMatrix>& copies, const Activations& a,
                 std::vector<float>& out, ThreadPool& pool) {
  double best = INFINITY;
  const double work = 2.0 * a.rows() * a.inputs() * copies[0].outputs();
  const size_t count = std::min(copies.size(), std::max<size_t>(1, static_cast<size_t>(4e9 / work)));
  for (int round = 0; round < kRounds; round++) {
    const double start = seconds(pool.size() == 1);
    for (size_t i = 0; i < count; i++) {
      gemm(table, copies[i], a, {.out = out.data(), .stride = static_cast<size_t>(copies[i].outputs())}, pool);
    }
    best = std::min(best, (seconds(pool.size() == 1) - start) / static_cast<double>(count));
  }
  return best;
}

void bench(const KernelTable& table, WeightFormat format, const Shape& shape, ThreadPool& pool,
           const MachinePeaks& peaks) {
  std::mt19937 rng(1);
  Allocator allocator;
  const auto file = random_file(format, shape, rng);
  const weights::Tensor tensor{.name = shape.name, .format = format, .shape = {shape.n, shape.k}, .data = file};
  const PackSource source{&tensor};
  std::vector<PackedMatrix> copies;
  do {
    auto packed = pack({&source, 1}, WeightTarget::kNative, shape.slices, allocator, pool);
    if (!packed) {
      fmt::print("{}: {}\n", shape.name, packed.error().message);
      return;
    }
    copies.push_back(std::move(*packed));
  } while (copies.size() * copies[0].bytes() < kWeightBytes);

  std::normal_distribution<float> normal;
  const int most = *std::ranges::max_element(kRows);
  std::vector<float> x(static_cast<size_t>(most) * static_cast<size_t>(shape.k));
  for (float& value : x) value = normal(rng);
  std::vector<float> out(static_cast<size_t>(most) * static_cast<size_t>(shape.n));
  Activations a;
  if (!a.reserve(most, shape.k, allocator)) return;

  fmt::print("{:5} {:8} {:5} x {:4}:", weights::format_info(format).name, shape.name, shape.n, shape.k);
  for (int rows : kRows) {
    const ActivationKind kind = activation_kind(copies[0].layout());
    a.reshape(table, kind, rows, shape.k);
    a.set_rows(table, x.data(), static_cast<size_t>(shape.k), 0, rows);
    const double time = best_time(table, copies, a, out, pool);
    const double bytes = static_cast<double>(copies[0].bytes()), operations = 2.0 * rows * shape.n * shape.k;
    const Work work = {.bytes = bytes, .operations = operations_of(unit_of(table, kind, rows), operations)};
    if (rows == 1) {
      fmt::print("  M=1 {:5.1f} GB/s", bytes / time / 1e9);
    } else {
      fmt::print("  {} {:4.0f}", rows, operations / time / 1e9);
    }
    fmt::print(" ({:.0f}%)", 100 * roof_of(work, peaks).seconds / time);
  }
  fmt::print(" GOP/s\n");
  std::fflush(stdout);
}

int run(const std::vector<std::string>& args) {
  const auto setup = bench_setup(args);
  if (!setup) return fmt::print("{}\n", setup.error().message), 2;
  const auto& [table, threads, wanted] = *setup;
  ThreadPool pool(threads);
  Allocator allocator;
  const auto peaks = probe_peaks(table, pool, allocator);
  if (!peaks) return fmt::print("{}\n", peaks.error().message), 2;
  fmt::print("{}, {} threads; peaks: {}\n", describe(table), threads, describe(*peaks));
  const auto is_wanted = [&names = setup->wanted](const char* name) {
    return std::ranges::find(names, name) != names.end();
  };
  const bool all_shapes = std::ranges::none_of(kShapes, is_wanted, &Shape::name);
  const bool all_formats = wanted.empty() || std::ranges::all_of(wanted, [](const std::string& name) {
                             return std::ranges::find(kShapes, name, &Shape::name) != std::end(kShapes);
                           });
  for (int f = 0; f < weights::kWeightFormats; f++) {
    const auto format = static_cast<WeightFormat>(f);
    const weights::FormatInfo& info = weights::format_info(format);
    if (!all_formats && !is_wanted(info.name)) continue;
    for (const Shape& shape : kShapes) {
      if (!all_shapes && !is_wanted(shape.name)) continue;
      if (shape.k % (info.block_elements * shape.slices) == 0) bench(table, format, shape, pool, *peaks);
    }
  }
  return 0;
}

}  // namespace
}  // namespace quire::kernels

int main(int argc, char** argv) { return quire::kernels::run({argv + 1, argv + argc}); }
