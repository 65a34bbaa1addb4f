// For tests: random weights of every format, written from the format's own description, and what a product with them
// must give, computed from the numbers before they were encoded. Shares no code with packing or kernels.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "weights/tensor_source.h"

namespace quire::kernels::oracle {

// W[N, K]. Integers: value = (factor * d) * q + min_factor * min.
struct Matrix {
  weights::WeightFormat format;
  int n = 0;
  int k = 0;
  std::vector<int> q;           // [n][k]
  std::vector<float> d;         // [n][k / 32]: scale times its factor, if that is for 32
  std::vector<int> factor;      // [n][k / 16]: factors for 16, otherwise 1
  std::vector<float> min;       // [n][k / 32]: minimum times its factor, if that is for 32
  std::vector<int> min_factor;  // [n][k / 16]: as factor
  std::vector<float> values;    // [n][k]: what the file means
  std::vector<std::byte> file;
  weights::Tensor tensor() const;
};

Matrix random_matrix(weights::WeightFormat format, int n, int k, std::mt19937& rng);

// Rule 4 for one row.
struct QuantisedRow {
  std::vector<int> q;
  std::vector<float> scale;  // [k / 32]
};
QuantisedRow quantise(const float* x, int k);

// Rows of activations with the troubles of real ones: outliers, zero groups, tiny and huge rows.
std::vector<float> random_rows(int m, int k, std::mt19937& rng);

enum class Arithmetic { kF32, kRounded, kBlocks, kIntegers };

// C[m, n] by rules 1, 4 and 11, one output after the other. kRounded and kBlocks round x to bf16,
// kBlocks the weights too.
std::vector<float> product(const Matrix& w, const std::vector<float>& x, int m, Arithmetic arithmetic, int slices);

// The first number that differs, in rows of `columns`: its place and both values. Empty if all bits are equal; NaNs are
// equal whatever their payload.
std::string difference(const float* want, const float* got, size_t count, int columns);

}  // namespace quire::kernels::oracle
