#include "base/sha256_blocks.h"

#if defined(__x86_64__) && !defined(QUIRE_SCALAR_ONLY)
#include <cpuid.h>
#include <immintrin.h>

namespace quire::sha256_blocks {
namespace {

// The instructions want the state as (a, b, e, f) and (c, d, g, h), highest element first.
[[gnu::target("sha,sse4.1")]] void compress_sha(State& state, const std::byte* blocks, size_t count) {
  const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
  const __m128i abcd = _mm_loadu_si128(reinterpret_cast<const __m128i*>(&state[0]));
  const __m128i efgh = _mm_loadu_si128(reinterpret_cast<const __m128i*>(&state[4]));
  const __m128i cdab = _mm_shuffle_epi32(abcd, 0xb1), hgfe = _mm_shuffle_epi32(efgh, 0x1b);
  __m128i abef = _mm_alignr_epi8(cdab, hgfe, 8);
  __m128i cdgh = _mm_blend_epi16(hgfe, cdab, 0xf0);

  for (; count > 0; --count, blocks += 64) {
    const __m128i abef_before = abef, cdgh_before = cdgh;
    __m128i w[4];
    for (int i = 0; i < 4; ++i)
      w[i] = _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(blocks) + i), big_endian);
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {  // four rounds each; w holds the last 16 words of the message schedule
      if (i >= 4) {
        const __m128i last = w[(i + 3) % 4];
        const __m128i seven_ago = _mm_alignr_epi8(last, w[(i + 2) % 4], 4);
        w[i % 4] = _mm_sha256msg2_epu32(_mm_add_epi32(_mm_sha256msg1_epu32(w[i % 4], w[(i + 1) % 4]), seven_ago), last);
      }
      const __m128i k = _mm_load_si128(reinterpret_cast<const __m128i*>(kRound.data()) + i);
      const __m128i wk = _mm_add_epi32(w[i % 4], k);
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, wk);
      abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(wk, 0x0e));
    }
    abef = _mm_add_epi32(abef, abef_before);
    cdgh = _mm_add_epi32(cdgh, cdgh_before);
  }

  const __m128i feba = _mm_shuffle_epi32(abef, 0x1b), dchg = _mm_shuffle_epi32(cdgh, 0xb1);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(&state[0]), _mm_blend_epi16(feba, dchg, 0xf0));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(&state[4]), _mm_alignr_epi8(dchg, feba, 8));
}

}  // namespace

Compress hardware_compress() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return nullptr;
  const bool sha = (ebx >> 29 & 1U) != 0;
  return sha && __builtin_cpu_supports("sse4.1") ? &compress_sha : nullptr;
}

}  // namespace quire::sha256_blocks
#else
namespace quire::sha256_blocks {

Compress hardware_compress() { return nullptr; }

}  // namespace quire::sha256_blocks
#endif
