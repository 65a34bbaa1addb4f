// Rotary position embedding: tables of cos and sin by absolute position, and their use on rows of q and k.
//
// Angles are formed in double as position * inverse_frequency[i], i < rotary_dim / 2, then cos and sin are rounded to
// fp32 (numerics rule 7): a row depends on its position alone. Only the first rotary_dim dimensions of a head turn.
// Rows are computed when a step first needs them: prepare() belongs to the engine thread, reading to any.
#pragma once

#include <cstddef>
#include <vector>

#include "base/buffer.h"
#include "base/thread_pool.h"
#include "kernels/kernels.h"
#include "quire/error.h"

namespace quire::kernels {

enum class RopeType {
  kDefault,
  kLinear,   // every frequency divided by `factor`
  kLlama3,   // long wavelengths divided, short ones kept, linear between (models.md)
  kYarn,     // the same with a ramp over the dimensions, from beta_fast to beta_slow rotations in the original length
  kDynamic,  // theta grows with `longest` beyond the original length
};

struct RopeParameters {
  RopeType type = RopeType::kDefault;
  double theta = 10000;
  int rotary_dim = 0;        // even, at most the head's dimension
  bool interleaved = false;  // pairs (2i, 2i + 1) instead of (i, i + rotary_dim / 2)
  double factor = 1;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  double beta_fast = 32;
  double beta_slow = 1;
  bool truncate = true;  // whether the ends of YaRN's ramp are whole dimensions
  double original_max_position = 8192;
  double attention_factor = 1;                 // cos and sin times this
  std::vector<float> frequency_divisors = {};  // rotary_dim / 2 numbers, applied last; empty: none
  std::vector<float> long_divisors = {};  // instead of those, if `longest` exceeds the original length; empty: none
  // The length that kDynamic and long_divisors go by: that of the longest request which the configuration or a flag
  // allows, whatever the length of those that come.
  double longest = 0;

  bool depends_on_longest() const { return type == RopeType::kDynamic || !long_divisors.empty(); }
};

// kUnsupported, naming the value, unless tables for so many positions can be made of them.
Result<void> check_rope(const RopeParameters& parameters, int max_positions);

class RopeTable {
 public:
  RopeTable() = default;
  // Address space for `max_positions` rows; nothing is computed yet. As check_rope(), or kExhausted.
  static Result<RopeTable> make(const RopeParameters& parameters, int max_positions, Allocator& allocator);

  // Makes positions [0, end) readable, end <= max_positions. Cheap if they are.
  void prepare(int end, ThreadPool& pool);

  int half() const { return half_; }  // rotary_dim / 2
  bool interleaved() const { return interleaved_; }
  int prepared() const { return prepared_; }
  // half() numbers each.
  const float* cos(int position) const { return row(position); }
  const float* sin(int position) const { return row(position) + half_; }

 private:
  float* row(int position) const;
  void compute(int begin, int end);

  Buffer storage_;
  std::vector<double> inverse_;
  double attention_factor_ = 1;
  int half_ = 0;
  int max_positions_ = 0;
  int prepared_ = 0;
  bool interleaved_ = false;
};

// Inverse frequencies, rotary_dim / 2 of them, for parameters that RopeTable::make() takes.
std::vector<double> rope_inverse_frequencies(const RopeParameters& parameters);

// Turns `heads` heads that start `head_stride` floats apart, in place, to a prepared position:
//   out1 = fma(x1, cos, -(x2 * sin)), out2 = fma(x2, cos, x1 * sin), every product rounded once.
void apply_rope(const KernelTable& table, const RopeTable& rope, int position, float* x, int heads, size_t head_stride);

}  // namespace quire::kernels
