// How rows of q, K and V become numbers of the cache, and how they are put into pages (attention.h, numerics rule 13):
// include after a math_lanes.h.
#pragma once

#include "kernels/shared/attention_body.h"

namespace quire::kernels {
namespace {

// A row of q as the kernels want it; whole vectors are written.
template <class T>
void encode_row(const float* x, int n, void* out) {
  auto* row = static_cast<typename T::Element*>(out);
  for (int i = 0; i < n; i += Lanes::kCount) T::encode16(Lanes::load_part(x + i, least(Lanes::kCount, n - i)), row, i);
}

// n numbers as the cache stores them.
template <class T>
void store_numbers(const float* x, int n, typename T::Stored* out) {
  int i = 0;
  for (; i + Lanes::kCount <= n; i += Lanes::kCount) T::store16(Lanes::load(x + i), out + i);
  if (i < n) {
    typename T::Stored rest[Lanes::kCount];
    T::store16(Lanes::load_part(x + i, n - i), rest);
    __builtin_memcpy(out + i, rest, static_cast<size_t>(n - i) * sizeof rest[0]);
  }
}

// The largest magnitude of a row, as bits: those of NaN and infinity are the greatest.
inline uint32_t peak_bits(const float* x, int n) {
  LaneInts peak = LaneInts::set(0);
  for (int i = 0; i < n; i += Lanes::kCount) {
    const LaneInts bits =
        bit_and(bits_of(Lanes::load_part(x + i, least(Lanes::kCount, n - i))), LaneInts::set(0x7fffffff));
    peak = select(greater(bits, peak), bits, peak);
  }
  uint32_t lanes[Lanes::kCount];
  peak.store(lanes);
  uint32_t most = 0;
  for (const uint32_t lane : lanes) most = lane > most ? lane : most;
  return most;
}

// A row as int8 numbers (numerics rule 13); returns its scale: NaN if a number is not finite, 0 if all are tiny.
inline float quantise_row(const float* x, int n, int8_t* out) {
  const uint32_t bits = peak_bits(x, n);
  const float peak = __builtin_bit_cast(float, bits);
  const bool finite = bits < 0x7f800000U;
  if (!finite || peak < 1e-30F) {
    __builtin_memset(out, 0, static_cast<size_t>(n));
    return finite ? 0 : __builtin_nanf("");
  }
  const Lanes inverse = Lanes::set(127.0F / peak);
  for (int i = 0; i < n; i += Lanes::kCount) {
    const int count = least(Lanes::kCount, n - i);
    int32_t q[Lanes::kCount];
    to_ints(mul(Lanes::load_part(x + i, count), inverse)).store(q);
    for (int j = 0; j < count; j++) out[i + j] = static_cast<int8_t>(q[j]);
  }
  return peak / 127.0F;
}

// A row as the cache stores it; returns its scale where rows have one.
template <class T>
inline float store_row(const float* x, int n, typename T::Stored* out) {
  if constexpr (T::kScaled) {
    return quantise_row(x, n, out);
  } else {
    store_numbers<T>(x, n, out);
    return 1;
  }
}

// One row of V, next to the tokens that share its words.
template <class T>
void write_value_row(const WriteArgs& a, int place, const typename T::Stored* row) {
  constexpr auto kPer = static_cast<size_t>(T::kPerWord);
  auto* to = reinterpret_cast<typename T::Stored*>(a.v_tile);
  const auto at = static_cast<size_t>(place);
  for (int block = 0; block * kValueBlock < a.head_dim; block++) {
    const auto width = static_cast<size_t>(block_width(a.head_dim, block));
    typename T::Stored* line = to + at / kPer * width * kPer + at % kPer;
    for (size_t d = 0; d < width; d++) line[d * kPer] = *row++;
    to += width * static_cast<size_t>(a.page_tokens);
  }
}

// Places are written in groups of a vector, so that a group's words of K are neighbours.
template <class T>
void write_tokens(const WriteArgs& a) {
  using Word = typename T::Word;
  alignas(64) typename T::Stored rows[kKeyRun][kMaxHeadDim];
  auto* k_words = reinterpret_cast<Word*>(a.k_tile);
  for (int first = 0; first < a.count; first += kKeyRun) {
    const int count = least(kKeyRun, a.count - first);
    for (int i = 0; i < count; i++) {
      const float scale = store_row<T>(a.k + static_cast<size_t>(first + i) * a.k_stride, a.head_dim, rows[i]);
      if constexpr (T::kScaled) a.scales[a.place + first + i] = scale;
    }
    for (int d = 0; d < a.head_dim / T::kPerWord; d++) {
      Word* line = k_words + static_cast<size_t>(d) * static_cast<size_t>(a.page_tokens) + a.place + first;
      for (int i = 0; i < count; i++) __builtin_memcpy(line + i, rows[i] + d * T::kPerWord, sizeof *line);
    }
    for (int i = 0; i < count; i++) {
      const float scale = store_row<T>(a.v + static_cast<size_t>(first + i) * a.v_stride, a.head_dim, rows[i]);
      if constexpr (T::kScaled) a.scales[a.page_tokens + a.place + first + i] = scale;
      write_value_row<T>(a, a.place + first + i, rows[i]);
    }
  }
}

}  // namespace
}  // namespace quire::kernels
