#include "kernels/roofline.h"

#include <fmt/format.h>

#include <numeric>

#include "kernels/attention_kernels.h"

namespace quire::kernels {

std::string_view name_of(Unit unit) {
  constexpr std::string_view kNames[kUnits] = {"f32", "bf16", "int8", "bf16 tiles", "int8 tiles"};
  return kNames[static_cast<size_t>(unit)];
}

Unit unit_of(const KernelTable& table, ActivationKind kind, int rows) {
  const bool wide = multiplies_wide(table, kind, rows);
  if (kind == ActivationKind::kInt8) return wide ? Unit::kTileInt8 : Unit::kInt8;
  if (kind == ActivationKind::kBF16) return wide ? Unit::kTileBF16 : Unit::kBF16;
  return Unit::kF32;
}

Unit attention_unit(const KernelTable& table, DType dtype, int rows) {
  if (dtype != DType::kBF16) return Unit::kF32;
  const int least = table.attention->bf16.least_tile_rows;
  return least > 0 && rows >= least ? Unit::kTileBF16 : Unit::kBF16;
}

std::string describe(const MachinePeaks& peaks) {
  std::string text = fmt::format("{:.1f} GB/s of memory, {:.0f} of cache", peaks.bytes / 1e9, peaks.cached_bytes / 1e9);
  for (size_t u = 0; u < kUnits; ++u)
    if (peaks.operations[u] > 0)
      text += fmt::format(", {} {:.0f}", name_of(static_cast<Unit>(u)), peaks.operations[u] / 1e9);
  return text + " Gop/s";
}

Work& Work::operator+=(const Work& other) {
  bytes += other.bytes;
  cached_bytes += other.cached_bytes;
  for (size_t u = 0; u < kUnits; ++u) operations[u] += other.operations[u];
  return *this;
}

double Work::all_operations() const { return std::accumulate(operations.begin(), operations.end(), 0.0); }

UnitNumbers operations_of(Unit unit, double count) {
  UnitNumbers operations = {};
  operations[static_cast<size_t>(unit)] = count;
  return operations;
}

std::string_view name_of(Bound bound) {
  constexpr std::string_view kNames[] = {"memory", "cache", "compute"};
  return kNames[static_cast<size_t>(bound)];
}

Roof roof_of(const Work& work, const MachinePeaks& peaks) {
  const auto seconds = [](double amount, double peak) { return peak > 0 ? amount / peak : 0; };
  Roof roof{seconds(work.bytes, peaks.bytes), Bound::kMemory};
  if (const double t = seconds(work.cached_bytes, peaks.cached_bytes); t > roof.seconds) roof = {t, Bound::kCache};
  double computing = 0;
  for (size_t u = 0; u < kUnits; ++u) computing += seconds(work.operations[u], peaks.operations[u]);
  if (computing > roof.seconds) roof = {computing, Bound::kCompute};
  return roof;
}

}  // namespace quire::kernels
