// f32 and f16 on AVX2: fp32 chains of FMAs, up to 6 rows x 16 columns in registers, four passes a panel. bf16: two such
// chains a block, four passes a block (rule 1).
#include <immintrin.h>

#include "kernels/avx2/gemm_tiles.h"

namespace quire::kernels::avx2 {
namespace {

constexpr int kColumns = 64;
constexpr int kVectors = 2;

template <int kRows>
__attribute__((always_inline)) inline void clear(__m256 (&sums)[kRows][kVectors]) {
#pragma GCC unroll 8
  for (int r = 0; r < kRows; r++) sums[r][0] = sums[r][1] = _mm256_setzero_ps();
}

// 8 columns of weights from column c on, at input k; of a bf16 block, at k + kOdd.
template <Layout L, int kOdd>
inline __m256 load_weights(const std::byte* panel, size_t k, size_t c) {
  if constexpr (L == Layout::kF32) return _mm256_load_ps(reinterpret_cast<const float*>(panel) + k * kColumns + c);
  if constexpr (L == Layout::kF16) {
    return _mm256_cvtph_ps(_mm_load_si128(reinterpret_cast<const __m128i*>(panel + (k * kColumns + c) * 2)));
  }
  const __m256i pair = _mm256_load_si256(reinterpret_cast<const __m256i*>(panel + (k / 2 * kColumns + c) * 4));
  const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xffff0000U));  // a bf16 is the upper half of a float
  return _mm256_castsi256_ps(kOdd == 0 ? _mm256_slli_epi32(pair, 16) : _mm256_and_si256(pair, upper));
}

template <Layout L, int kOdd, int kRows>
__attribute__((always_inline)) inline void add_input(const TileArgs& t, size_t k, int c,
                                                     __m256 (&acc)[kRows][kVectors]) {
  __m256 w[kVectors];
#pragma GCC unroll 2
  for (int v = 0; v < kVectors; v++) w[v] = load_weights<L, kOdd>(t.panel, k, static_cast<size_t>(c + 8 * v));
#pragma GCC unroll 8
  for (int r = 0; r < kRows; r++) {
    const auto* row = reinterpret_cast<const float*>(t.a + static_cast<size_t>(r) * t.a_pitch);
    const __m256 b = _mm256_set1_ps(row[k + kOdd]);
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; v++) acc[r][v] = _mm256_fmadd_ps(b, w[v], acc[r][v]);
  }
}

template <Layout L, int kRows>
void chain_tile(const TileArgs& args) {
  const TileArgs t = args;
  for (int c = 0; c < kColumns; c += 8 * kVectors) {
    __m256 acc[kRows][kVectors];
    clear(acc);
    for (auto k = static_cast<size_t>(t.begin); k < static_cast<size_t>(t.end); k++) {
      add_input<L, 0, kRows>(t, k, c, acc);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; r++) {
      _mm256_store_ps(t.sums + r * kColumns + c, acc[r][0]);
      _mm256_store_ps(t.sums + r * kColumns + c + 8, acc[r][1]);
    }
  }
}

// 16 columns of one block: sums + (even + odd). Few rows hold both chains in registers; more rows go over it twice.
template <int kRows>
__attribute__((always_inline)) inline void add_block(const TileArgs& t, size_t k, int c) {
  constexpr bool kBoth = kRows <= 2;
  alignas(32) float even_sums[kBoth ? 1 : kRows][kVectors][8];
  __m256 even[kRows][kVectors];
  clear(even);
  __m256 odd[kRows][kVectors];
  clear(odd);
  for (size_t i = k; i < k + kGroup; i += 2) {
    add_input<Layout::kBF16, 0, kRows>(t, i, c, even);
    if constexpr (kBoth) add_input<Layout::kBF16, 1, kRows>(t, i, c, odd);
  }
  if constexpr (!kBoth) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; r++) {
      _mm256_store_ps(even_sums[r][0], even[r][0]);
      _mm256_store_ps(even_sums[r][1], even[r][1]);
    }
    for (size_t i = k; i < k + kGroup; i += 2) add_input<Layout::kBF16, 1, kRows>(t, i, c, odd);
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; r++) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; v++) {
      float* sum = t.sums + r * kColumns + c + 8 * v;
      const __m256 first = kBoth ? even[r][v] : _mm256_load_ps(even_sums[kBoth ? 0 : r][v]);
      _mm256_store_ps(sum, _mm256_add_ps(_mm256_load_ps(sum), _mm256_add_ps(first, odd[r][v])));
    }
  }
}

// Memory gives more when lines are asked for so many bytes ahead than the hardware prefetcher asks for.
constexpr size_t kBlockBytes = size_t{kGroup} * kColumns * 2;
constexpr size_t kAhead = 2 * kBlockBytes;

template <int kRows>
void block_tile(const TileArgs& args) {
  const TileArgs t = args;
  for (int i = 0; i < kRows * kColumns; i += 8) _mm256_store_ps(t.sums + i, _mm256_setzero_ps());
  for (auto k = static_cast<size_t>(t.begin); k < static_cast<size_t>(t.end); k += kGroup) {
    const std::byte* ahead = t.panel + k * kColumns * 2 + kAhead;
    for (size_t i = 0; i < kBlockBytes; i += 64) __builtin_prefetch(ahead + i, 0, 2);
    for (int c = 0; c < kColumns; c += 8 * kVectors) add_block<kRows>(t, k, c);
  }
}

template <Layout L, int kRows>
constexpr GemmKernels::Tile kTile = L == Layout::kBF16 ? block_tile<kRows> : chain_tile<L, kRows>;

template <Layout L>
void any_tile(const TileArgs& t) {
  constexpr GemmKernels::Tile kByRows[] = {kTile<L, 1>, kTile<L, 2>, kTile<L, 3>,
                                           kTile<L, 4>, kTile<L, 5>, kTile<L, 6>};
  kByRows[t.rows - 1](t);
}

template <Layout L>
void set_tile(GemmKernels& kernels) {
  kernels.tile[static_cast<int>(L)] = any_tile<L>;
}

}  // namespace

void set_float_tiles(GemmKernels& kernels) {
  set_tile<Layout::kF32>(kernels);
  set_tile<Layout::kF16>(kernels);
  set_tile<Layout::kBF16>(kernels);
}

}  // namespace quire::kernels::avx2
