#include "kernels/avx512/attention_bf16.h"
#include "kernels/avx512/math_lanes.h"
#include "kernels/shared/attention_body.h"
#include "kernels/shared/attention_write_body.h"

namespace quire::kernels {
namespace {

using Bf16 = Tile<Bf16Words, 6, 2>;
using F32 = Tile<F32Words, 6, 4>;
using I8 = Tile<I8Words, 6, 2>;

constexpr AttentionKernels kernels(void (*bf16_chunk)(const ChunkArgs&), void (*i8_chunk)(const ChunkArgs&)) {
  return {.bf16 = {bf16_chunk, write_tokens<Bf16>, encode_row<Bf16>},
          .f32 = {chunk<F32>, write_tokens<F32>, nullptr},
          .i8 = {i8_chunk, write_tokens<I8>, encode_row<I8>},
          .merge = merge_states,
          .finish = finish_row};
}

constexpr AttentionKernels kFma = kernels(chunk<Bf16>, chunk<I8>);
constexpr AttentionKernels kNative = kernels(attention_chunk_avx512_bf16, attention_chunk_i8_avx512_bf16);

}  // namespace

const AttentionKernels& attention_kernels_avx512() { return kFma; }
const AttentionKernels& attention_kernels_avx512_bf16() { return kNative; }

}  // namespace quire::kernels
