#include "kernels/avx512/attention_bf16.h"

#include "kernels/avx512/math_lanes.h"
#include "kernels/shared/attention_body.h"
#include "kernels/shared/attention_write_body.h"

namespace quire::kernels {
namespace {

// vdpbf16ps adds the product of the upper halves, then that of the lower ones: two steps of a chain, if they hold two
// neighbours of it. Words of the cache are combined so on the way; q and p lie so in memory, a block's even chain
// before its odd one.
struct NativeBf16Words : Bf16Words {
  static constexpr int kStepWords = 2;
  using Element = uint16_t;
  using Words = __m512bh;
  using Factor = __m512bh;
  template <int Chain>
  static Words combine(__m512i first, __m512i second) {
    constexpr __mmask32 kUpper = 0xaaaaaaaa;
    const __m512i upper = Chain == 0 ? _mm512_slli_epi32(first, 16) : first;
    const __m512i lower = Chain == 0 ? second : _mm512_srli_epi32(second, 16);
    return __builtin_bit_cast(__m512bh, _mm512_mask_blend_epi16(kUpper, lower, upper));
  }
  template <int Chain>
  static Words load(const std::byte* p, size_t stride) {
    return combine<Chain>(_mm512_loadu_si512(p), _mm512_loadu_si512(p + stride));
  }
  template <int Chain>
  static Words load_part(const std::byte* p, size_t stride, int n) {
    const __mmask16 lanes = first_lanes(n);
    return combine<Chain>(_mm512_maskz_loadu_epi32(lanes, p), _mm512_maskz_loadu_epi32(lanes, p + stride));
  }
  template <int Chain>
  static Factor factor(const Element* x, int word) {
    int32_t pair;
    __builtin_memcpy(&pair, x + word + Chain * (kBlock / 2), sizeof pair);
    return __builtin_bit_cast(__m512bh, _mm512_set1_epi32(pair));
  }
  static Lanes dot(Lanes acc, Words w, Factor f) { return {_mm512_dpbf16_ps(acc.v, w, f)}; }
  // Denormals are flushed before and a NaN comes quiet from arithmetic, so the instruction rounds as rounded_bf16()
  // does.
  static void encode16(Lanes x, Element* row, int i) {
    const __m256i order =
        _mm256_broadcastsi128_si256(_mm_set_epi8(11, 10, 15, 14, 3, 2, 7, 6, 9, 8, 13, 12, 1, 0, 5, 4));
    const auto numbers = __builtin_bit_cast(__m256i, _mm512_cvtneps_pbh(x.v));
    const __m256i chains = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(numbers, order), 0b11011000);
    Element* even = row + i / kBlock * kBlock + i % kBlock / 2;
    _mm_storeu_si128(reinterpret_cast<__m128i*>(even), _mm256_castsi256_si128(chains));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(even + kBlock / 2), _mm256_extracti128_si256(chains, 1));
  }
};

struct NativeI8Words : NativeBf16Words {
  static constexpr bool kScaled = true;
  using Stored = int8_t;
  using Word = uint16_t;
  // Two words' numbers of a chain as bf16.
  template <int Chain>
  static Words combine(LaneInts first, LaneInts second) {
    const LaneInts upper = bits_of(I8Words::widen<Chain>(first));
    return __builtin_bit_cast(__m512bh, bit_or(upper, shift_right<16>(bits_of(I8Words::widen<Chain>(second)))).v);
  }
  template <int Chain>
  static Words load(const std::byte* p, size_t stride) {
    return combine<Chain>(LaneInts::load_halves(p), LaneInts::load_halves(p + stride));
  }
  template <int Chain>
  static Words load_part(const std::byte* p, size_t stride, int n) {
    return combine<Chain>(LaneInts::load_halves_part(p, n), LaneInts::load_halves_part(p + stride, n));
  }
};

}  // namespace

void attention_encode_avx512_bf16(const float* x, int n, void* out) {
  encode_row<Tile<NativeBf16Words, 6, 4>>(x, n, out);
}
void attention_chunk_i8_avx512_bf16(const ChunkArgs& args) { chunk<Tile<NativeI8Words, 6, 4>>(args); }
void attention_chunk_avx512_bf16(const ChunkArgs& args) { chunk<Tile<NativeBf16Words, 6, 4>>(args); }

}  // namespace quire::kernels
