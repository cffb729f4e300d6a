// Counter-based random numbers: Philox 4x32 with 10 rounds (Salmon, Moraes, Dror, Shaw, SC 2011).
//
// The key is the 64-bit seed (low word first), the counter (offset low, offset high, 0, 0), so that an
// element's number depends on its offset alone. Below double four elements share the counter offset / 4. With the four
// words w0 ... w3, and w the word number offset % 4:
//   rand      float (w >> 8) 2^-24; f16 (w >> 21) 2^-11; bf16 (w >> 24) 2^-8;
//             double ((w1 2^32 + w0) >> 11) 2^-53
//   randn     sqrt(-2 log(1 - u)) cos(2 pi v), u and v the float rand of the words of offset and its neighbour, v a
//             quarter less where offset is odd; for double the double rand of (w0, w1) and of (w2, w3)
//   randint64 low + (w1 2^32 + w0) mod (high - low), unsigned
// gyrator.ir.philox is the same in torch.
#pragma once
#include "special.h"

namespace gy {

// Each word lies in the low half of 64 bits, where the multiply instruction wants it; the high half is not
// cleared.
template <int L> struct PhiloxWords { Vec<uint64_t, L> w0, w1, w2, w3; };

// The product of the low halves.
template <uint32_t M, class P> GY_FN P multiply_words(P x) {
  if constexpr (sizeof(P) == 8) return P(uint32_t(x)) * M;
#if defined(GY_AVX512)
  else if constexpr (sizeof(P) == 64)
    return (P)__builtin_ia32_pmuludq512_mask((v16si)x, v16si{} + int(M), v8di{}, no_mask);
#endif
#if defined(GY_SIMD)
  else if constexpr (sizeof(P) == 32) return (P)__builtin_ia32_pmuludq256((v8si)x, v8si{} + int(M));
  else return (P)__builtin_ia32_pmuludq128((v4si)x, v4si{} + int(M));
#endif
}
template <class P> GY_FN P exclusive_or(P a, P b, uint64_t c) {
#if defined(GY_AVX512)
  if constexpr (sizeof(P) == 64)
    return (P)__builtin_ia32_pternlogq512_mask((v8di)a, (v8di)b, v8di{} + (long long)c, 0x96, no_mask);
#endif
  return a ^ b ^ c;
}

template <int L> GY_FN PhiloxWords<L> philox(int64_t seed, Vec<int64_t, L> offset) {
  using V = Vec<uint64_t, L>;
  const auto zero = broadcast<L>(uint64_t(0));
  PhiloxWords<L> c = {bitcast<uint64_t>(offset), zero, zero, zero};
  GY_EACH(V, c.w1.p[i] = c.w0.p[i] >> 32;)
  uint32_t key0 = uint32_t(seed), key1 = uint32_t(uint64_t(seed) >> 32);
#pragma GCC unroll 1
  for (int round = 0; round < 10; ++round) {
    GY_EACH(V, const auto product0 = multiply_words<0xD2511F53u>(c.w0.p[i]);
               const auto product1 = multiply_words<0xCD9E8D57u>(c.w2.p[i]);
               c.w0.p[i] = exclusive_or(product1 >> 32, c.w1.p[i], key0); c.w1.p[i] = product1;
               c.w2.p[i] = exclusive_or(product0 >> 32, c.w3.p[i], key1); c.w3.p[i] = product0;)
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return c;
}

// The top Bits bits of each word as a float in [0, 1).
template <int Bits, int L> GY_FN Vec<float, L> unit_float(Vec<uint32_t, L> low) {
  using V = Vec<uint32_t, L>;
  GY_EACH(V, low.p[i] = low.p[i] >> (32 - Bits);)
  return mul(convert<float>(bitcast<int32_t>(low)), broadcast<L>(1.0f / float(1 << Bits)));
}
// high * 2^32 + low
template <int L> GY_FN Vec<uint64_t, L> join_words(Vec<uint64_t, L> low, Vec<uint64_t, L> high) {
  using V = Vec<uint64_t, L>;
  GY_EACH(V, low.p[i] = (low.p[i] & 0xffffffffu) | (high.p[i] << 32);)
  return low;
}
template <int L> GY_FN Vec<double, L> unit_double(Vec<uint64_t, L> low, Vec<uint64_t, L> high) {
  auto all = join_words(low, high);
  using V = Vec<uint64_t, L>;
  GY_EACH(V, all.p[i] = all.p[i] >> 11;)
  return mul(convert<double>(bitcast<int64_t>(all)), broadcast<L>(0x1p-53));
}

#if defined(GY_SIMD)
// Numbers Start, Start + 1, ... of a[0], b[0], a[1], b[1], ...
template <int Start, int... I, class P> GY_FN auto alternate(P a, P b, sequence<I...>) {
  return __builtin_shufflevector(a, b, ((Start + I) / 2 + (Start + I) % 2 * int(sizeof(P) / 8))...);
}
// The words of a run of offsets from a multiple of 4 on, a quarter as many counters.
template <int L> GY_FN Vec<uint32_t, L> words_of_run(int64_t seed, int64_t first) {
  using V = Vec<uint64_t, L / 4>;
  using W = Vec<uint32_t, L>;
  const auto c = philox(seed, iota<L / 4>(first >> 2, 1));
  const auto a = join_words(c.w0, c.w1), b = join_words(c.w2, c.w3);
  W found;
  constexpr int half = W::bytes / 8, ratio = W::parts / V::parts;  // registers of words for one of counters
  GY_EACH(V, found.p[ratio * i] = bits_as<typename W::P>(alternate<0>(a.p[i], b.p[i], indices<half>{}));
             if constexpr (ratio == 2)
               found.p[2 * i + 1] = bits_as<typename W::P>(alternate<half>(a.p[i], b.p[i], indices<half>{}));)
  return found;
}
#endif
template <int L> GY_FN bool begins_a_run([[maybe_unused]] Vec<int64_t, L> offset) {
#if defined(GY_SIMD)
  if constexpr (L >= 8) {
    const int64_t first = lane(offset, 0);
    return (first & 3) == 0 && all(eq(offset, iota<L>(first, 1)));
  }
#endif
  return false;
}

// The words of an offset and its neighbour, an even offset's first.
template <int L> struct WordPair { Vec<uint32_t, L> first, second; };
template <int L> GY_FN WordPair<L> pair_of_four(int64_t seed, Vec<int64_t, L> offset) {
#if defined(GY_SIMD)
  if constexpr (L >= 8) if (begins_a_run(offset)) {
    const auto words = words_of_run<L>(seed, lane(offset, 0));
    WordPair<L> found;
    using V = Vec<uint32_t, L>;
    GY_EACH(V, const auto both = bits_as<native<uint64_t, V::lanes / 2>>(words.p[i]);
               found.first.p[i] = bits_as<typename V::P>((both & 0xffffffffu) | (both << 32));
               found.second.p[i] = bits_as<typename V::P>((both >> 32) | (both & 0xffffffff00000000u));)
    return found;
  }
#endif
  using V = Vec<int64_t, L>;
  auto counter = offset;
  GY_EACH(V, counter.p[i] = counter.p[i] >> 2;)
  auto c = philox(seed, counter);
  GY_EACH(V, const auto high = (offset.p[i] & 2) != 0; c.w0.p[i] = high ? c.w2.p[i] : c.w0.p[i];
             c.w1.p[i] = high ? c.w3.p[i] : c.w1.p[i];)
  return {convert<uint32_t>(c.w0), convert<uint32_t>(c.w1)};
}
template <int L> GY_FN Vec<bool, L> is_odd(Vec<int64_t, L> offset) {
  using V = Vec<int64_t, L>;
  GY_EACH(V, offset.p[i] = offset.p[i] & 1;)
  return eq(offset, broadcast<L>(int64_t(1)));
}

template <class T, int L> GY_FN Vec<T, L> rand(Vec<int64_t, 1> seed, Vec<int64_t, L> offset) {
  if constexpr (same<T, double>) {
    const auto c = philox(scalar(seed), offset);
    return unit_double(c.w0, c.w1);
  } else {
    constexpr int bits = same<T, f16> ? 11 : same<T, bf16> ? 8 : 24;
#if defined(GY_SIMD)
    if constexpr (L >= 8) if (begins_a_run(offset))
      return convert<T>(unit_float<bits>(words_of_run<L>(scalar(seed), lane(offset, 0))));
#endif
    const auto pair = pair_of_four(scalar(seed), offset);
    return convert<T>(unit_float<bits>(where(is_odd(offset), pair.second, pair.first)));
  }
}

template <class T, int L> GY_FN Vec<T, L> randn(Vec<int64_t, 1> seed, Vec<int64_t, L> offset) {
  const auto normal = [](auto u, auto v) {
    using F = pick<same<T, double>, double, float>;
    const auto radius = sqrt(mul(broadcast<L>(F(-2)), log(sub(broadcast<L>(F(1)), u))));
    return mul(radius, cos(mul(v, broadcast<L>(F(6.283185307179586)))));
  };
  if constexpr (same<T, double>) {
    const auto c = philox(scalar(seed), offset);
    return normal(unit_double(c.w0, c.w1), unit_double(c.w2, c.w3));
  } else {
    const auto pair = pair_of_four(scalar(seed), offset);
    const auto v = unit_float<24>(pair.second);
    return convert<T>(normal(unit_float<24>(pair.first), where(is_odd(offset), sub(v, broadcast<L>(0.25f)), v)));
  }
}

template <class T, int L>
GY_FN Vec<T, L> randint64(Vec<int64_t, 1> seed, Vec<int64_t, L> offset, Vec<int64_t, 1> low,
                          Vec<int64_t, 1> high) {
  const auto c = philox(scalar(seed), offset);
  const uint64_t start = uint64_t(scalar(low)), span = uint64_t(scalar(high)) - start;
  return convert<T>(map<int64_t>(join_words(c.w0, c.w1),
                                 [=](uint64_t x) { return int64_t(start + x % (span == 0 ? 1 : span)); }));
}

}  // namespace gy
