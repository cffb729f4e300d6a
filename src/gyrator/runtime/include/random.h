// Counter-based random numbers: Philox 4x32 with 10 rounds (Salmon, Moraes, Dror, Shaw, SC 2011).
//
// The key is the 64-bit seed (low word first), the counter (offset low, offset high, 0, 0), so that an element's
// number depends on its offset alone. With the four words w0 ... w3:
//   rand      float (w0 >> 8) 2^-24; f16 (w0 >> 21) 2^-11; bf16 (w0 >> 24) 2^-8; double ((w1 2^32 + w0) >> 11) 2^-53
//   randn     sqrt(-2 log(1 - u)) cos(2 pi v), u and v the float rand of w0 and of w1; for double the double rand
//             of (w0, w1) and of (w2, w3)
//   randint64 low + (w1 2^32 + w0) mod (high - low), unsigned
// gyrator.ir.philox is the same in torch.
#pragma once
#include "special.h"

namespace gy {

template <int L> struct PhiloxWords { Vec<uint32_t, L> w0, w1, w2, w3; };

// The high and low words of x * M for each lane.
template <uint32_t M, int L> GY_FN void multiply_words(Vec<uint32_t, L> x, Vec<uint32_t, L>& high, Vec<uint32_t, L>& low) {
  using V = Vec<uint32_t, L>;
#if defined(GY_SIMD)
  if constexpr (V::lanes > 1) {
    using P = typename V::P;
    using W = native<uint64_t, V::lanes / 2>;
    constexpr auto product = [](W a) {
#if defined(GY_AVX512)
      if constexpr (sizeof(W) == 64) {
        const v16si m = v16si{} + int(M);
        return (W)__builtin_ia32_pmuludq512_mask((v16si)a, m, v8di{}, no_mask);
      } else
#endif
      if constexpr (sizeof(W) == 32) return (W)__builtin_ia32_pmuludq256((v8si)a, v8si{} + int(M));
      else return (W)__builtin_ia32_pmuludq128((v4si)a, v4si{} + int(M));
    };
    GY_EACH(V, const W even = product((W)x.p[i]); const W odd = product((W)x.p[i] >> 32);
               const W high_mask = W{} + 0xffffffff00000000u;
               high.p[i] = (P)((even >> 32) | (odd & high_mask)); low.p[i] = (P)((even & ~high_mask) | (odd << 32));)
  } else
#endif
  {
    GY_EACH(V, const uint64_t p = uint64_t(x.p[i]) * M; high.p[i] = uint32_t(p >> 32); low.p[i] = uint32_t(p);)
  }
}

template <int L> GY_FN PhiloxWords<L> philox(int64_t seed, Vec<int64_t, L> offset) {
  const auto zero = broadcast<L>(uint32_t(0));
  PhiloxWords<L> c = {convert<uint32_t>(offset), convert<uint32_t>(rshift(offset, broadcast<L>(int64_t(32)))), zero, zero};
  uint32_t key0 = uint32_t(seed), key1 = uint32_t(uint64_t(seed) >> 32);
#pragma GCC unroll 1
  for (int round = 0; round < 10; ++round) {
    Vec<uint32_t, L> high0, low0, high1, low1;
    multiply_words<0xD2511F53u>(c.w0, high0, low0);
    multiply_words<0xCD9E8D57u>(c.w2, high1, low1);
    c = {bitwise_xor(bitwise_xor(high1, c.w1), broadcast<L>(key0)), low1,
         bitwise_xor(bitwise_xor(high0, c.w3), broadcast<L>(key1)), low0};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return c;
}

// The top Bits bits of each word as a float in [0, 1).
template <int Bits, int L> GY_FN Vec<float, L> unit_float(Vec<uint32_t, L> w) {
  const auto top = rshift(w, broadcast<L>(uint32_t(32 - Bits)));
  return mul(convert<float>(bitcast<int32_t>(top)), broadcast<L>(1.0f / float(1 << Bits)));
}
template <int L> GY_FN Vec<double, L> unit_double(Vec<uint32_t, L> low, Vec<uint32_t, L> high) {
  const auto all = bitwise_or(lshift(convert<int64_t>(high), broadcast<L>(int64_t(21))),
                              convert<int64_t>(rshift(low, broadcast<L>(uint32_t(11)))));
  return mul(convert<double>(all), broadcast<L>(0x1p-53));
}

template <class T, int L> GY_FN Vec<T, L> rand(Vec<int64_t, 1> seed, Vec<int64_t, L> offset) {
  const auto c = philox(scalar(seed), offset);
  if constexpr (same<T, double>) return unit_double(c.w0, c.w1);
  else return convert<T>(unit_float<(same<T, f16> ? 11 : same<T, bf16> ? 8 : 24)>(c.w0));
}

template <class T, int L> GY_FN Vec<T, L> randn(Vec<int64_t, 1> seed, Vec<int64_t, L> offset) {
  const auto c = philox(scalar(seed), offset);
  const auto normal = [](auto u, auto v) {
    using F = pick<same<T, double>, double, float>;
    const auto radius = sqrt(mul(broadcast<L>(F(-2)), log(sub(broadcast<L>(F(1)), u))));
    return mul(radius, cos(mul(v, broadcast<L>(F(6.283185307179586)))));
  };
  if constexpr (same<T, double>) return normal(unit_double(c.w0, c.w1), unit_double(c.w2, c.w3));
  else return convert<T>(normal(unit_float<24>(c.w0), unit_float<24>(c.w1)));
}

template <class T, int L>
GY_FN Vec<T, L> randint64(Vec<int64_t, 1> seed, Vec<int64_t, L> offset, Vec<int64_t, 1> low, Vec<int64_t, 1> high) {
  const auto c = philox(scalar(seed), offset);
  const auto bits = bitwise_or(lshift(convert<uint64_t>(c.w1), broadcast<L>(uint64_t(32))), convert<uint64_t>(c.w0));
  const uint64_t start = uint64_t(scalar(low)), span = uint64_t(scalar(high)) - start;
  return convert<T>(map<int64_t>(bits, [=](uint64_t x) { return int64_t(start + x % (span == 0 ? 1 : span)); }));
}

}  // namespace gy
