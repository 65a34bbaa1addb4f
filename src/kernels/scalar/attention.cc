#include "kernels/scalar/math_lanes.h"
#include "kernels/shared/attention_body.h"
#include "kernels/shared/attention_write_body.h"

namespace quire::kernels {
namespace {

using Bf16 = Tile<Bf16Words, 1, 1>;
using F32 = Tile<F32Words, 1, 1>;
using I8 = Tile<I8Words, 1, 1>;

constexpr AttentionKernels kKernels = {
    .bf16 = {chunk<Bf16>, write_tokens<Bf16>, encode_row<Bf16>, sizeof(float), kAttentionTileRows},
    .f32 = {chunk<F32>, write_tokens<F32>, nullptr, sizeof(float), kAttentionTileRows},
    .i8 = {chunk<I8>, write_tokens<I8>, encode_row<I8>, sizeof(float), kAttentionTileRows},
    .merge = merge_states,
    .finish = finish_row};

}  // namespace

const AttentionKernels& attention_kernels_scalar() { return kKernels; }

}  // namespace quire::kernels
