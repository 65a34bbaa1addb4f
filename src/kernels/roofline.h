// The roofline: how long work must take at least on a machine with given peaks.
//
// A unit is what a kernel computes with; an operation is a multiplication or an addition, and a multiply-add is two.
// Values and pure functions, safe from any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/dtype.h"
#include "kernels/gemm.h"
#include "kernels/kernels.h"

namespace quire::kernels {

enum class Unit : uint8_t { kF32, kBF16, kInt8, kTileBF16, kTileInt8 };
inline constexpr int kUnits = 5;

std::string_view name_of(Unit unit);

// What multiplies `rows` rows of activations of this kind.
Unit unit_of(const KernelTable& table, ActivationKind kind, int rows);
// What attention over a cache of this type multiplies with where `rows` query rows read the same keys.
Unit attention_unit(const KernelTable& table, DType dtype, int rows);

using UnitNumbers = std::array<double, kUnits>;

// All of them together, as one process with its threads sees them.
struct MachinePeaks {
  double bytes = 0;             // a second, read from memory
  double cached_bytes = 0;      // a second, read from and written to each core's own cache
  UnitNumbers operations = {};  // a second; 0: not known
};

// "20.1 GB/s of memory, 90 of cache, f32 160, int8 620 Gop/s"
std::string describe(const MachinePeaks& peaks);

// What something reads and writes, each byte once, and computes.
struct Work {
  double bytes = 0;         // that memory holds: weights, the KV cache
  double cached_bytes = 0;  // that caches may hold: rows between operators
  UnitNumbers operations = {};

  Work& operator+=(const Work& other);
  double all_bytes() const { return bytes + cached_bytes; }
  double all_operations() const;
};

UnitNumbers operations_of(Unit unit, double count);

enum class Bound : uint8_t { kMemory, kCache, kCompute };
std::string_view name_of(Bound bound);

// At the peaks memory, caches and units run beside each other, units one after the other. So what takes longest
// decides; what has no known peak takes no time.
struct Roof {
  double seconds = 0;
  Bound bound = Bound::kMemory;
};
Roof roof_of(const Work& work, const MachinePeaks& peaks);

}  // namespace quire::kernels
