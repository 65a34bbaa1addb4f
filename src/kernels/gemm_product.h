// One product of a matrix, and running a part of it: what gemm.cc and experts.cc have in common.
#pragma once

#include "kernels/gemm.h"
#include "kernels/gemm_kernels.h"

namespace quire::kernels {

// Behind the last column that is wanted.
inline int columns_end(const PackedMatrix& w, const GemmOutput& output) {
  return output.column_end < 0 ? w.outputs() : output.column_end;
}

// Where results of a panel go, of `rows` rows from `row` on; not where they come from.
FinishArgs destination(const PackedMatrix& w, const GemmOutput& output, int panel, int row, int rows);

// Instead of outputs, slices of rows that mix experts (rule 8).
struct Mixing {
  const int32_t* rows = nullptr;  // of each row of activations, the one that it is added to
  const float* weights = nullptr;
  float* sums = nullptr;  // of panel `first_panel` on [panels][slices][count][panel columns]
  int first_panel = 0;
  int count = 0;  // of rows
};

// One product: a matrix, its activations, and where results go.
struct Product {
  const KernelTable& table;
  const PackedMatrix& w;
  const ActivationRows& a;
  const GemmOutput& output;
  const Mixing* mixing = nullptr;  // then of `output` only the columns count

  int width() const { return panel_columns(w.layout()); }
  int rows(int tile) const { return a.tile_begin(tile + 1) - a.tile_begin(tile); }
  // Where slice s begins, as the tiles count inputs.
  int slice_begin(int s) const {
    const auto inputs = static_cast<int64_t>(padded_inputs(w.layout(), static_cast<size_t>(w.inputs())));
    return static_cast<int>(inputs * s / w.slices());
  }
  int columns_end() const { return kernels::columns_end(w, output); }
};

void run(const Product& product, const GemmPart& part);

}  // namespace quire::kernels
