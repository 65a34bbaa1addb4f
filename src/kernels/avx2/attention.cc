#include "kernels/avx2/math_lanes.h"
#include "kernels/shared/attention_body.h"
#include "kernels/shared/attention_write_body.h"

namespace quire::kernels {
namespace {

using Bf16 = Tile<Bf16Words, 6, 1>;
using F32 = Tile<F32Words, 6, 1>;
using I8 = Tile<I8Words, 6, 1>;

constexpr AttentionKernels kKernels = {
    .bf16 = {chunk<Bf16>, write_tokens<Bf16>, encode_row<Bf16>, sizeof(float), Bf16::kRows},
    .f32 = {chunk<F32>, write_tokens<F32>, nullptr, sizeof(float), F32::kRows},
    .i8 = {chunk<I8>, write_tokens<I8>, encode_row<I8>, sizeof(float), I8::kRows},
    .merge = merge_states,
    .finish = finish_row};

}  // namespace

const AttentionKernels& attention_kernels_avx2() { return kKernels; }

}  // namespace quire::kernels
