// The matrix products of a mixture of experts: every expert that a row of the step chose times the rows that chose it,
// as one parallel call. No weight is copied; rows of activations are, to lie beside others of their expert.
//
// A row's bits depend on the row alone (numerics rule 8), whatever other rows the step has. One thread makes these
// values and calls the products; they borrow matrices and rows.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/buffer.h"
#include "kernels/gemm.h"
#include "kernels/routing.h"

namespace quire::kernels {

// The rows of an expert: pairs [first, first + count).
struct ExpertGroup {
  int expert = 0;
  int first = 0;
  int count = 0;
};

// A step's pairs of a row and an expert that it chose, by expert and then by row, both ascending.
class ExpertPairs {
 public:
  // Room for so many, so that assign() allocates nothing.
  void reserve(int pairs, int experts);
  // Routes of rows 0, 1, ..., `chosen` of each.
  void assign(std::span<const Route> routes, int chosen, int experts);

  int count() const { return static_cast<int>(rows_.size()); }
  std::span<const ExpertGroup> groups() const { return groups_; }  // of experts that were chosen
  const int32_t* rows() const { return rows_.data(); }             // of each pair
  const float* weights() const { return weights_.data(); }

 private:
  std::vector<ExpertGroup> groups_;
  std::vector<int32_t> rows_, next_;
  std::vector<float> weights_;
};

// Activations of pairs, those of each group by themselves.
class ExpertActivations {
 public:
  // Room for rows of any kind. kExhausted.
  Result<void> reserve(int pairs, int experts, int inputs, Allocator& allocator);
  void reshape(const KernelTable& table, ActivationKind kind, std::span<const ExpertGroup> groups, int inputs);
  ActivationRows& group(size_t g) { return groups_[g]; }

 private:
  Buffer storage_;
  std::vector<ActivationRows> groups_;
};

// As gemm() of one.
struct ExpertProduct {
  const PackedMatrix* matrix = nullptr;
  const ActivationRows* activations = nullptr;
  GemmOutput output = {};
};
void gemm(const KernelTable& table, std::span<const ExpertProduct> products, ThreadPool& pool);

// An expert's last matrix, and what becomes of its rows: row r of the activations counts to row rows[r] of the result.
struct ExpertTerm {
  const PackedMatrix* matrix = nullptr;
  const ActivationRows* activations = nullptr;
  const int32_t* rows = nullptr;
  const float* weights = nullptr;
  const float* bias = nullptr;  // of each output; null: none
};

// What mix_experts() needs beside its results.
class MixWorkspace {
 public:
  // For results of up to `rows` rows, of matrices of up to `slices` slices. kExhausted.
  Result<void> reserve(int rows, int slices, int workers, Allocator& allocator);
  std::span<float> of_worker(int worker) const;

 private:
  Buffer storage_;
  size_t floats_ = 0;  // of a worker
};

// Rule 8: the terms, in the given order, are added up slice by slice as acc = fma(weight, sum, acc), from
// acc = acc + weight * bias, likewise in order from +0, in the first slice, and from +0 in others; then the slices by
// the tree of rule 11; then as GemmOutput says. All matrices have the same slices, outputs and panel_columns().
void mix_experts(const KernelTable& table, std::span<const ExpertTerm> terms, int rows, const GemmOutput& output,
                 const MixWorkspace& workspace, ThreadPool& pool);

}  // namespace quire::kernels
