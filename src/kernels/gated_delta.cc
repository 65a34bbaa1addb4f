#include "kernels/gated_delta.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "kernels/gated_delta_kernels.h"
#include "kernels/shape_check.h"

namespace quire::kernels {
namespace {

constexpr int kMaxConv = 8;
constexpr float kLowestFloor = -100;

int head_channels(const GatedDeltaShape& s) { return 2 * s.key_dim + s.heads_per_key() * s.value_dim; }

KeyHeadArgs key_head_args(const GatedDeltaArgs& args, int key_head, const GatedDeltaSequence& sequence, float* state) {
  const GatedDeltaShape& s = args.shape;
  const auto row = static_cast<size_t>(sequence.first_row), at = row * args.stride;
  return {.key_dim = s.key_dim,
          .value_dim = s.value_dim,
          .conv_width = s.conv_width,
          .channels = s.channels(),
          .first_q = key_head * s.key_dim,
          .first_k = s.key_rows() + key_head * s.key_dim,
          .first_v = 2 * s.key_rows(),
          .heads = s.heads_per_key(),
          .first_head = s.tiled ? key_head : key_head * s.heads_per_key(),
          .head_step = s.tiled ? s.key_heads : 1,
          .conv = args.conv,
          .rate = args.rate,
          .dt_bias = args.dt_bias,
          .decay_floor = s.decay_floor,
          .rows = sequence.num_rows,
          .x = args.x + at,
          .b = args.b + at,
          .a = args.a + row * args.a_stride,
          .stride = args.stride,
          .a_stride = args.a_stride,
          .out = args.out + row * args.out_stride,
          .out_stride = args.out_stride,
          .state = state};
}

size_t key_head_state_size(const GatedDeltaShape& s) {
  return static_cast<size_t>(s.conv_width - 1) * static_cast<size_t>(head_channels(s)) +
         static_cast<size_t>(s.heads_per_key()) * static_cast<size_t>(s.key_dim) * static_cast<size_t>(s.value_dim);
}

}  // namespace

Result<void> check_gated_delta_shape(const GatedDeltaShape& s) {
  constexpr int kMaxHeads = 1 << 16;
  if (auto ok = check_ranges("gated delta", {{"heads", s.heads, 1, kMaxHeads},
                                             {"key heads", s.key_heads, 1, kMaxHeads},
                                             {"key dimension", s.key_dim, 1, kMostGatedDim},
                                             {"value dimension", s.value_dim, 1, kMostGatedDim},
                                             {"convolution", s.conv_width, 1, kMaxConv}});
      !ok)
    return ok;
  if (s.heads % s.key_heads != 0)
    return fail(ErrorKind::kUnsupported,
                fmt::format("gated delta: {} heads are no multiple of {} key heads", s.heads, s.key_heads),
                "key heads");
  if (s.decay_floor <= 0 && s.decay_floor >= kLowestFloor) return {};
  return fail(ErrorKind::kUnsupported,
              fmt::format("gated delta: decay floor must be from {} to 0, not {}", kLowestFloor, s.decay_floor),
              "decay floor");
}

size_t gated_delta_state_size(const GatedDeltaShape& shape) {
  return static_cast<size_t>(shape.key_heads) * key_head_state_size(shape);
}

void gated_delta(const KernelTable& table, const GatedDeltaArgs& args, std::span<const GatedDeltaSequence> sequences,
                 ThreadPool& pool) {
  const int key_heads = args.shape.key_heads;
  const size_t size = key_head_state_size(args.shape);
  pool.split(key_heads * static_cast<int>(sequences.size()), [&](int begin, int end) {
    for (int item = begin; item < end; item++) {
      const GatedDeltaSequence& sequence = sequences[static_cast<size_t>(item / key_heads)];
      const int key_head = item % key_heads;
      float* state = sequence.to + static_cast<size_t>(key_head) * size;
      if (sequence.from == nullptr) {
        std::fill_n(state, size, 0.0F);
      } else if (sequence.from != sequence.to) {
        std::memcpy(state, sequence.from + static_cast<size_t>(key_head) * size, size * sizeof(float));
      }
      table.gated_delta->key_head(key_head_args(args, key_head, sequence, state));
    }
  });
}

}  // namespace quire::kernels
