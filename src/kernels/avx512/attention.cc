#include "kernels/avx512/attention_amx_bf16.h"
#include "kernels/avx512/attention_bf16.h"
#include "kernels/avx512/math_lanes.h"
#include "kernels/shared/attention_body.h"
#include "kernels/shared/attention_write_body.h"

namespace quire::kernels {
namespace {

using Bf16 = Tile<Bf16Words, 6, 4>;
using F32 = Tile<F32Words, 6, 4>;
using I8 = Tile<I8Words, 6, 4>;

constexpr CacheKernels kF32 = {chunk<F32>, write_tokens<F32>, nullptr, sizeof(float), F32::kRows};

constexpr AttentionKernels kFma = {
    .bf16 = {chunk<Bf16>, write_tokens<Bf16>, encode_row<Bf16>, sizeof(float), Bf16::kRows},
    .f32 = kF32,
    .i8 = {chunk<I8>, write_tokens<I8>, encode_row<I8>, sizeof(float), I8::kRows},
    .merge = merge_states,
    .finish = finish_row};

constexpr AttentionKernels kNative = {
    .bf16 = {attention_chunk_avx512_bf16, write_tokens<Bf16>, attention_encode_avx512_bf16, sizeof(uint16_t),
             Bf16::kRows},
    .f32 = kF32,
    .i8 = {attention_chunk_i8_avx512_bf16, write_tokens<I8>, attention_encode_avx512_bf16, sizeof(uint16_t), I8::kRows},
    .merge = merge_states,
    .finish = finish_row};

// Tiles need to be set up, which fewer rows do not pay for.
constexpr int kLeastTileRows = 4;

void chunk_by_rows(const ChunkArgs& a) {
  if (a.rows >= kLeastTileRows) return attention_chunk_amx_bf16(a);
  alignas(64) float q[kLeastTileRows][kMaxHeadDim];
  ChunkArgs few = a;
  for (int r = 0; r < a.rows; r++) {
    const auto* row = static_cast<const uint16_t*>(a.row[r].q);
    for (int i = 0; i < a.head_dim; i += Lanes::kCount) {
      const int count = least(Lanes::kCount, a.head_dim - i);
      from_bits(shift_left<16>(LaneInts::load_halves_part(row + i, count))).store(q[r] + i);
    }
    few.row[r].q = q[r];
  }
  chunk<Bf16>(few);
}

constexpr AttentionKernels kTiles = {.bf16 = {chunk_by_rows, write_tokens<Bf16>, attention_encode_amx_bf16,
                                              sizeof(uint16_t), kAttentionTileRows, kLeastTileRows},
                                     .f32 = kF32,
                                     .i8 = kFma.i8,
                                     .merge = merge_states,
                                     .finish = finish_row};

}  // namespace

const AttentionKernels& attention_kernels_avx512() { return kFma; }
const AttentionKernels& attention_kernels_avx512_bf16() { return kNative; }
const AttentionKernels& attention_kernels_avx512_amx() { return kTiles; }

}  // namespace quire::kernels
