#include "kernels/avx512/attention_bf16.h"

#include "kernels/avx512/math_lanes.h"
#include "kernels/shared/attention_body.h"

namespace quire::kernels {
namespace {

struct NativeBf16Words {
  static constexpr int kPerWord = 2;
  static constexpr bool kScaled = false;
  using Element = uint16_t;
  using Stored = uint16_t;
  using Word = uint32_t;
  using Words = __m512bh;
  using Broadcast = __m512bh;
  static Words load(const std::byte* p) { return __builtin_bit_cast(__m512bh, _mm512_loadu_si512(p)); }
  static Words load_part(const std::byte* p, int n) {
    return __builtin_bit_cast(__m512bh, _mm512_maskz_loadu_epi32(first_lanes(n), p));
  }
  static Broadcast broadcast(const std::byte* p) {
    int32_t word;
    __builtin_memcpy(&word, p, sizeof word);
    return __builtin_bit_cast(__m512bh, _mm512_set1_epi32(word));
  }
  static Lanes dot(Lanes acc, Words w, Broadcast b) { return {_mm512_dpbf16_ps(acc.v, w, b)}; }
  // Denormals are flushed before and a NaN comes quiet from arithmetic, so the instruction rounds as rounded_bf16()
  // does.
  static void encode16(Lanes x, Element* out) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), __builtin_bit_cast(__m256i, _mm512_cvtneps_pbh(x.v)));
  }
};

struct NativeI8Words : NativeBf16Words {
  static constexpr bool kScaled = true;
  using Stored = int8_t;
  using Word = uint16_t;
  static Words widen(LaneInts w) {
    const auto pair = widen_bytes(w);
    return __builtin_bit_cast(__m512bh, bit_or(shift_right<16>(bits_of(pair.even)), bits_of(pair.odd)).v);
  }
  static Words load(const std::byte* p) { return widen(LaneInts::load_halves(p)); }
  static Words load_part(const std::byte* p, int n) { return widen(LaneInts::load_halves_part(p, n)); }
};

}  // namespace

void attention_chunk_i8_avx512_bf16(const ChunkArgs& args) { chunk<Tile<NativeI8Words, 6, 4>>(args); }
void attention_chunk_avx512_bf16(const ChunkArgs& args) { chunk<Tile<NativeBf16Words, 6, 4>>(args); }

}  // namespace quire::kernels
