// What each instruction set provides for scans over logits. Plain data and function pointers (see gemm_kernels.h).
#pragma once

#include <cstdint>

namespace quire::kernels {

struct ScoredId {
  int32_t id;
  float value;
};

// A sum of exponentials as (maximum, sum of exp(x - maximum)). An empty one has maximum -inf and sum 0.
struct MaxSum {
  float max;
  float sum;
};

// Log-sum-exp blocks, in ids (numerics rule 5).
inline constexpr int kScanBlock = 1024;

struct ScanKernels {
  // Greatest value and its lowest id; id 0 with -inf if there is nothing above -inf.
  ScoredId (*argmax)(const float* x, int n);
  bool (*has_nan)(const float* x, int n);
  // One pair per kScanBlock ids: e^(x - max) summed in 16 lanes (id mod 16), then the tree.
  void (*max_sum_blocks)(const float* x, int n, MaxSum* blocks);
  // Least i >= begin with x[i] > threshold, or n.
  int (*next_above)(const float* x, int begin, int n, float threshold);
  // How many are > threshold: the rank of a value, counted from 0.
  int (*count_above)(const float* x, int n, float threshold);
};

// As the instruction sets define them. Which exist depends on the build; kernels.cc chooses.
const ScanKernels& scan_kernels_scalar();
const ScanKernels& scan_kernels_avx2();
const ScanKernels& scan_kernels_avx512();

}  // namespace quire::kernels
