// How words of q, p, K and V multiply, for attention_body.h: what a word holds (kPerWord numbers), in which chains and
// blocks numbers are summed up (numerics rule 1), and how the words of a chain and their factors, numbers of q or p,
// are loaded. Include after a math_lanes.h.
#pragma once

#include "kernels/attention_kernels.h"
#include "kernels/shared/math_body.h"

namespace quire::kernels {
namespace {

// fp32: one chain, acc = fma(word, factor, acc).
struct F32Words {
  static constexpr int kPerWord = 1;
  static constexpr int kChains = 1;
  static constexpr int kStepWords = 1;          // that one step of a chain takes
  static constexpr int kBlock = kSoftmaxChunk;  // numbers that a chain goes over before it is added
  static constexpr bool kScaled = false;        // whether rows of the cache have scales
  using Element = float;                        // a number of q and p
  using Stored = float;                         // a number of the cache
  using Word = uint32_t;
  using Words = Lanes;
  using Factor = Lanes;
  // Sixteen neighbours' words of a chain; `stride` bytes further are those of their next word. Or the first n.
  template <int Chain>
  static Words load(const std::byte* p, size_t) {
    return Lanes::load(reinterpret_cast<const float*>(p));
  }
  template <int Chain>
  static Words load_part(const std::byte* p, size_t, int n) {
    return Lanes::load_part(reinterpret_cast<const float*>(p), n);
  }
  // The factor of a chain's words at `word` of the block that starts at x.
  template <int Chain>
  static Factor factor(const Element* x, int word) {
    return Lanes::set(x[word]);
  }
  static Lanes dot(Lanes acc, Words w, Factor f) { return fma(w, f, acc); }
  // Sixteen numbers of q or p, from number i of the row on, which starts at `row`.
  static void encode16(Lanes x, Element* row, int i) { x.store(row + i); }
  static void store16(Lanes x, Stored* out) { x.store(out); }
};

// To nearest even, in the lower half of each lane; a NaN stays a quiet NaN.
inline LaneInts rounded_bf16(Lanes x) {
  const LaneInts bits = bits_of(x);
  const LaneInts odd = bit_and(shift_right<16>(bits), LaneInts::set(1));
  const LaneInts rounded = shift_right<16>(add(bits, add(odd, LaneInts::set(0x7fff))));
  const LaneInts nan = bit_or(shift_right<16>(bits), LaneInts::set(0x40));
  return select(greater_equal(x, x), rounded, nan);
}

// bf16 by FMAs: in blocks of 32 numbers one chain of the even and one of the odd. Factors are rounded, and fp32 again.
struct Bf16Words {
  static constexpr int kPerWord = 2;
  static constexpr int kChains = 2;
  static constexpr int kStepWords = 1;
  static constexpr int kBlock = kRule1Block;
  static constexpr bool kScaled = false;
  using Element = float;
  using Stored = uint16_t;
  using Word = uint32_t;
  using Words = Lanes;
  using Factor = Lanes;
  template <int Chain>
  static Words widen(LaneInts w) {
    return from_bits(Chain == 0 ? shift_left<16>(w) : bit_and(w, LaneInts::set(static_cast<int32_t>(0xffff0000U))));
  }
  template <int Chain>
  static Words load(const std::byte* p, size_t) {
    return widen<Chain>(LaneInts::load(p));
  }
  template <int Chain>
  static Words load_part(const std::byte* p, size_t, int n) {
    return widen<Chain>(LaneInts::load_part(p, n));
  }
  template <int Chain>
  static Factor factor(const Element* x, int word) {
    return Lanes::set(x[2 * word + Chain]);
  }
  static Lanes dot(Lanes acc, Words w, Factor f) { return fma(w, f, acc); }
  static void encode16(Lanes x, Element* row, int i) { from_bits(shift_left<16>(rounded_bf16(x))).store(row + i); }
  static void store16(Lanes x, Stored* out) { rounded_bf16(x).store_low_halves(out); }
};

// int8 numbers times bf16 q and p, as bf16 numbers; scales come in between (numerics rule 13).
struct I8Words : Bf16Words {
  static constexpr bool kScaled = true;
  using Stored = int8_t;
  using Word = uint16_t;
  // Pairs of numbers, sign-extended to lanes.
  template <int Chain>
  static Words widen(LaneInts w) {
    return to_floats(Chain == 0 ? shift_right_signed<24>(shift_left<24>(w)) : shift_right_signed<8>(w));
  }
  template <int Chain>
  static Words load(const std::byte* p, size_t) {
    return widen<Chain>(LaneInts::load_halves(p));
  }
  template <int Chain>
  static Words load_part(const std::byte* p, size_t, int n) {
    return widen<Chain>(LaneInts::load_halves_part(p, n));
  }
};

}  // namespace
}  // namespace quire::kernels
