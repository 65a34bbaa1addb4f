// How tiles of unpacked weights walk through the slices of their groups, for any vector width.
//
// Internal linkage, as everything in files of one instruction set.
#pragma once

#include "kernels/gemm_kernels.h"

namespace quire::kernels {
namespace {

// Groups of a slice.
struct Span {
  size_t first;
  size_t last;
  bool resume;  // the chains go on from the tile's sums: storing and reloading an fp32 sum is exact
};

// Calls f(sums, span) for each slice that the tile's groups reach into; a row of sums has `columns`.
template <class F>
inline void for_each_span(const PanelTileArgs& t, int columns, F&& f) {
  const size_t slices = t.first / t.slice;
  float* sums = t.sums + slices * static_cast<size_t>(t.rows * columns);
  size_t slice_end = slices * t.slice;
  bool resume = t.first != slice_end;
  for (size_t first = t.first; first < t.last;) {
    slice_end += t.slice;
    const size_t last = slice_end < t.last ? slice_end : t.last;
    f(sums, Span{first, last, resume});
    sums += t.rows * columns;
    first = last;
    resume = false;
  }
}

}  // namespace
}  // namespace quire::kernels
