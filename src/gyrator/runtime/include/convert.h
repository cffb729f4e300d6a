// Conversions between element types: convert<To>(Vec<From, L>), for every pair of numeric types.
//
// Each pair is a path of steps that double, keep or halve the element's size; each step has an instruction
// per register or a loop over lanes. Rules (those of torch on CPU): float to integer truncates, an integer
// that is too wide wraps, to a 16-bit float rounds to nearest even and keeps NaN. bf16 and f16 go through
// float.
#pragma once
#include "vec.h"

namespace gy {

typedef char v16qi __attribute__((vector_size(16)));
typedef char v32qi __attribute__((vector_size(32)));
typedef char v64qi __attribute__((vector_size(64)));
typedef short v8hi __attribute__((vector_size(16)));
typedef short v16hi __attribute__((vector_size(32)));
typedef short v32hi __attribute__((vector_size(64)));
typedef int v4si __attribute__((vector_size(16)));
typedef int v8si __attribute__((vector_size(32)));
typedef int v16si __attribute__((vector_size(64)));
typedef long long v2di __attribute__((vector_size(16)));
typedef long long v4di __attribute__((vector_size(32)));
typedef long long v8di __attribute__((vector_size(64)));
typedef float v4sf __attribute__((vector_size(16)));
typedef float v8sf __attribute__((vector_size(32)));
typedef float v16sf __attribute__((vector_size(64)));
typedef double v2df __attribute__((vector_size(16)));
typedef double v4df __attribute__((vector_size(32)));
typedef double v8df __attribute__((vector_size(64)));

// ---- 16-bit and 8-bit floats, one value -------------------------------------------------------------------
GY_FN float to_float(bf16 x) { return bits_as<float>(uint32_t(x.bits) << 16); }
GY_FN bf16 to_bf16(float x) {
  const uint32_t u = bits_as<uint32_t>(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return {uint16_t((u >> 16) | 0x40)};
  return {uint16_t((u + 0x7fff + ((u >> 16) & 1)) >> 16)};
}

// A binary float with E exponent bits, M mantissa bits and the usual bias; Finite formats have no infinity.
template <int E, int M, bool Finite> inline float small_to_float(uint32_t bits) {
  const uint32_t sign = (bits >> (E + M) & 1) << 31;
  const int bias = (1 << (E - 1)) - 1;
  const uint32_t exponent = bits >> M & ((1 << E) - 1), mantissa = bits & ((1 << M) - 1);
  if (Finite ? (bits & ((1 << (E + M)) - 1)) == (1u << (E + M)) - 1 : exponent == (1 << E) - 1)
    return bits_as<float>(sign | 0x7f800000u | (Finite ? 1u << 22 : mantissa << (23 - M)));
  if (exponent == 0) {
    const float subnormal = float(mantissa) * bits_as<float>(uint32_t(127 + 1 - bias - M) << 23);
    return bits_as<float>(bits_as<uint32_t>(subnormal) | sign);
  }
  return bits_as<float>(sign | (exponent - bias + 127) << 23 | mantissa << (23 - M));
}
template <int E, int M, bool Finite> inline uint32_t float_to_small(float x) {
  const uint32_t u = bits_as<uint32_t>(x), sign = u >> 31 << (E + M), magnitude = u & 0x7fffffffu;
  const int bias = (1 << (E - 1)) - 1;
  const uint32_t infinity = ((1u << E) - 1) << M, top = Finite ? (1u << (E + M)) - 1 : infinity;
  if (magnitude > 0x7f800000u) {
    const uint32_t payload = magnitude >> (23 - M) & ((1u << M) - 1);
    return sign | (Finite ? top : infinity | payload | 1u << (M - 1));
  }
  const int exponent = int(magnitude >> 23) - 127 + bias;              // of the result, before rounding
  const int shift = 23 - M + (exponent < 1 ? 1 - exponent : 0);
  if (shift > 25) return sign;
  const uint32_t full = (magnitude & 0x7fffffu) | 0x800000u;
  const uint32_t rounded = (full + (1u << (shift - 1)) - 1 + (full >> shift & 1)) >> shift;
  const uint32_t r = exponent < 1 ? rounded : rounded + (uint32_t(exponent - 1) << M);
  const uint32_t largest = Finite ? top - 1 : infinity;         // a finite format saturates
  return sign | (r > largest ? largest : r);
}
GY_FN float to_float(f8e4m3fn x) { return small_to_float<4, 3, true>(x.bits); }
GY_FN float to_float(f8e5m2 x) { return small_to_float<5, 2, false>(x.bits); }
#if defined(GY_SIMD)
GY_FN float to_float(f16 x) { return __builtin_ia32_vcvtph2ps(v8hi{short(x.bits)})[0]; }
GY_FN f16 to_f16(float x) { return {uint16_t(__builtin_ia32_vcvtps2ph(v4sf{x}, 0)[0])}; }
#else
GY_FN float to_float(f16 x) { return small_to_float<5, 10, false>(x.bits); }
GY_FN f16 to_f16(float x) { return {uint16_t(float_to_small<5, 10, false>(x))}; }
#endif
GY_FN float to_float(float x) { return x; }

template <class To> GY_FN To from_float(float x) {
  if constexpr (same<To, bf16>) return to_bf16(x);
  else if constexpr (same<To, f16>) return to_f16(x);
  else if constexpr (same<To, f8e4m3fn>) return {uint8_t(float_to_small<4, 3, true>(x))};
  else if constexpr (same<To, f8e5m2>) return {uint8_t(float_to_small<5, 2, false>(x))};
  else return To(x);
}

// Whether floats become such integers by way of int64: as in torch uint8 too, if they are doubles.
template <class To, class From>
constexpr bool by_int64 = sizeof(To) == 8 || same<To, uint32_t> || (same<To, uint8_t> && same<From, double>);
// One value. Out of range float to integer gives what the processor's conversion to int32 or int64 gives.
template <class To, class From> GY_FN To convert_one(From x) {
  if constexpr (same<To, From>) return x;
  else if constexpr (is_half<From> || is_f8<From>) return convert_one<To>(to_float(x));
  else if constexpr (is_half<To> || is_f8<To>) return from_float<To>(float(x));
  else if constexpr (is_bool<To>) return x != From(0);
  else if constexpr (is_float<From> && is_int<To>) {
    if constexpr (same<To, uint64_t>)
      return x >= From(9223372036854775808.0)
                 ? uint64_t(int64_t(x - From(9223372036854775808.0))) ^ (1ull << 63)
                 : uint64_t(int64_t(x));
    else if constexpr (by_int64<To, From>) return To(int64_t(x));
    else return To(int32_t(x));
  } else return To(x);
}

// ---- one register -----------------------------------------------------------------------------------------
#if defined(GY_SIMD)
constexpr int no_mask = -1, current_rounding = 4;

// Elements of twice the size; To has as many lanes as From.
template <class ToE, class FromE, class To, class From> GY_FN To widen(From v) {
  constexpr bool wide = sizeof(To) == 64;
#if defined(GY_AVX512)
  if constexpr (wide) {
    if constexpr (same<ToE, double> && same<FromE, float>)
      return (To)__builtin_ia32_cvtps2pd512_mask((v8sf)v, v8df{}, no_mask, current_rounding);
    else if constexpr (same<ToE, double>)
      return (To)__builtin_ia32_cvtdq2pd512_mask((v8si)v, v8df{}, no_mask);
    else if constexpr (same<FromE, float>)
      return (To)__builtin_ia32_cvttps2qq512_mask((v8sf)v, v8di{}, no_mask, current_rounding);
    else if constexpr (same<FromE, f16>)
      return (To)__builtin_ia32_vcvtph2ps512_mask((v16hi)v, v16sf{}, no_mask, current_rounding);
    else if constexpr (same<FromE, int8_t>)
      return (To)__builtin_ia32_pmovsxbw512_mask((v32qi)v, v32hi{}, no_mask);
    else if constexpr (same<FromE, uint8_t>)
      return (To)__builtin_ia32_pmovzxbw512_mask((v32qi)v, v32hi{}, no_mask);
    else if constexpr (same<FromE, int16_t>)
      return (To)__builtin_ia32_pmovsxwd512_mask((v16hi)v, v16si{}, no_mask);
    else if constexpr (same<FromE, uint16_t>)
      return (To)__builtin_ia32_pmovzxwd512_mask((v16hi)v, v16si{}, no_mask);
    else if constexpr (same<FromE, int32_t>)
      return (To)__builtin_ia32_pmovsxdq512_mask((v8si)v, v8di{}, no_mask);
    else return (To)__builtin_ia32_pmovzxdq512_mask((v8si)v, v8di{}, no_mask);
  }
  if constexpr (!wide && same<FromE, float> && same<ToE, int64_t>)
    return (To)__builtin_ia32_cvttps2qq256_mask((v4sf)v, v4di{}, no_mask);
#endif
  if constexpr (!wide) {
    if constexpr (same<ToE, double> && same<FromE, float>) return (To)__builtin_ia32_cvtps2pd256((v4sf)v);
    else if constexpr (same<ToE, double>) return (To)__builtin_ia32_cvtdq2pd256((v4si)v);
    else if constexpr (same<FromE, f16>) return (To)__builtin_ia32_vcvtph2ps256((v8hi)v);
    else if constexpr (same<FromE, int8_t>) return (To)__builtin_ia32_pmovsxbw256((v16qi)v);
    else if constexpr (same<FromE, uint8_t>) return (To)__builtin_ia32_pmovzxbw256((v16qi)v);
    else if constexpr (same<FromE, int16_t>) return (To)__builtin_ia32_pmovsxwd256((v8hi)v);
    else if constexpr (same<FromE, uint16_t>) return (To)__builtin_ia32_pmovzxwd256((v8hi)v);
    else if constexpr (same<FromE, int32_t>) return (To)__builtin_ia32_pmovsxdq256((v4si)v);
    else if constexpr (same<FromE, uint32_t>) return (To)__builtin_ia32_pmovzxdq256((v4si)v);
  }
}

// Bytes to 32-bit integers in one instruction per register of the result.
template <class From, int L> GY_FN Vec<int32_t, L> bytes_to_int32(Vec<From, L> v) {
  Vec<int32_t, L> r;
  using P = typename Vec<int32_t, L>::P;
#if defined(GY_AVX512)
  constexpr int pieces = Vec<From, L>::bytes / 16;
  GY_UNROLL for (int i = 0; i < r.parts; ++i) {
    const auto bytes = nth_piece<v16qi, pieces>(v.p[i / pieces], i % pieces);
    if constexpr (is_signed<From>) r.p[i] = (P)__builtin_ia32_pmovsxbd512_mask(bytes, v16si{}, no_mask);
    else r.p[i] = (P)__builtin_ia32_pmovzxbd512_mask(bytes, v16si{}, no_mask);
  }
#else
  constexpr int pieces = Vec<From, L>::bytes / 16;              // of two results each
  GY_UNROLL for (int i = 0; i < r.parts; ++i) {
    auto bytes = nth_piece<v2di, pieces>(v.p[i / 2 / pieces], i / 2 % pieces);
    if (i % 2) bytes = __builtin_ia32_psrldqi128(bytes, 64);
    if constexpr (is_signed<From>) r.p[i] = (P)__builtin_ia32_pmovsxbd256((v16qi)bytes);
    else r.p[i] = (P)__builtin_ia32_pmovzxbd256((v16qi)bytes);
  }
#endif
  return r;
}

// Integer elements of half the size, keeping the low bits.
template <class To, int FromSize, class From> GY_FN To truncate(From v) {
#if defined(GY_AVX512)
  if constexpr (sizeof(From) == 64) {
    if constexpr (FromSize == 8) return (To)__builtin_ia32_pmovqd512_mask((v8di)v, v8si{}, no_mask);
    else if constexpr (FromSize == 4) return (To)__builtin_ia32_pmovdw512_mask((v16si)v, v16hi{}, no_mask);
    else return (To)__builtin_ia32_pmovwb512_mask((v32hi)v, v32qi{}, no_mask);
  } else {
    if constexpr (FromSize == 8) return (To)__builtin_ia32_pmovqd256_mask((v4di)v, v4si{}, no_mask);
    else if constexpr (FromSize == 4) return (To)__builtin_ia32_pmovdw256_mask((v8si)v, v8hi{}, no_mask);
    else return (To)__builtin_ia32_pmovwb256_mask((v16hi)v, v16qi{}, no_mask);
  }
#else
  if constexpr (FromSize == 8) {
    const v8si even = __builtin_ia32_permvarsi256((v8si)v, v8si{0, 2, 4, 6, 0, 2, 4, 6});
    return piece<To, 0>(even);
  } else {
    constexpr char x = -1;                                    // a zero byte
    const v32qi low_bytes = FromSize == 4 ? v32qi{0, 1, 4, 5, 8, 9, 12, 13, x, x, x, x, x, x, x, x,
                                                  0, 1, 4, 5, 8, 9, 12, 13, x, x, x, x, x, x, x, x}
                                          : v32qi{0, 2, 4, 6, 8, 10, 12, 14, x, x, x, x, x, x, x, x,
                                                  0, 2, 4, 6, 8, 10, 12, 14, x, x, x, x, x, x, x, x};
    const v32qi s = __builtin_ia32_pshufb256((v32qi)v, low_bytes);
    return piece<To, 0>(__builtin_ia32_permdi256((v4di)s, 0x08));
  }
#endif
}
#endif

#if defined(GY_AVX2)
// The same from two registers into one. These instructions work on halves of registers: a's and b's come out in turns.
template <class To, int FromSize, class From> GY_FN To truncate_two(From a, From b) {
  v4di turns;
  if constexpr (FromSize == 8) turns = (v4di)__builtin_ia32_shufps256((v8sf)a, (v8sf)b, 0x88);
  else if constexpr (FromSize == 4)
    turns = (v4di)__builtin_ia32_packusdw256((v8si)a & 0xffff, (v8si)b & 0xffff);
  else turns = (v4di)__builtin_ia32_packuswb256((v16hi)a & (short)0xff, (v16hi)b & (short)0xff);
  return (To)__builtin_ia32_permdi256(turns, 0xd8);
}
// Integers of half the size that hold the values as they are: nothing has to be cut off first.
template <class To, class From, int L> GY_FN Vec<To, L> pack_small(Vec<From, L> v) {
  using VT = Vec<To, L>;
  using VF = Vec<From, L>;
  static_assert(VT::lanes > 1 && VF::bytes == 32 && 2 * sizeof(To) == sizeof(From) && sizeof(From) <= 4);
  const auto pack = [](auto a, auto b) {
    if constexpr (sizeof(a) == 16) {
      if constexpr (sizeof(From) == 2) return __builtin_ia32_packsswb128((v8hi)a, (v8hi)b);
      else if constexpr (is_signed<To>) return __builtin_ia32_packssdw128((v4si)a, (v4si)b);
      else return __builtin_ia32_packusdw128((v4si)a, (v4si)b);
    } else {
      if constexpr (sizeof(From) == 2) return (v4di)__builtin_ia32_packsswb256((v16hi)a, (v16hi)b);
      else if constexpr (is_signed<To>) return (v4di)__builtin_ia32_packssdw256((v8si)a, (v8si)b);
      else return (v4di)__builtin_ia32_packusdw256((v8si)a, (v8si)b);
    }
  };
  VT r;
  using P = typename VT::P;
  if constexpr (VT::parts == VF::parts) {
    GY_EACH(VT, r.p[i] = (P)pack(piece<v2di, 0>(v.p[i]), piece<v2di, 1>(v.p[i]));)
  } else {
    GY_EACH(VT, r.p[i] = (P)__builtin_ia32_permdi256(pack(v.p[2 * i], v.p[2 * i + 1]), 0xd8);)
  }
  return r;
}
#endif

// ---- whole vectors ----------------------------------------------------------------------------------------
template <class To, class From, int L> GY_FN Vec<To, L> convert_lanes(Vec<From, L> v) {
  if constexpr (L == 1) return broadcast<1>(convert_one<To>(scalar(v)));
  else return map<To>(v, [](From x) { return convert_one<To>(x); });
}

// One step of a conversion: To's size is half, the same or twice From's.
template <class To, class From, int L> GY_FN Vec<To, L> step(Vec<From, L> v) {
  using VT = Vec<To, L>;
  using VF = Vec<From, L>;
  if constexpr (VT::lanes == 1 || VF::lanes == 1) return convert_lanes<To>(v);
#if defined(GY_SIMD)
  else if constexpr (sizeof(To) == 2 * sizeof(From)) {
    VT r;
    if constexpr (VT::parts == VF::parts) {
      GY_EACH(VT, r.p[i] = (widen<To, From, typename VT::P>(v.p[i]));)
    } else {
      using Half = native<typename VF::element, VT::lanes>;
      GY_EACH(VF, r.p[2 * i] = (widen<To, From, typename VT::P>(piece<Half, 0>(v.p[i])));
                  r.p[2 * i + 1] = (widen<To, From, typename VT::P>(piece<Half, 1>(v.p[i])));)
    }
    return r;
  } else if constexpr (2 * sizeof(To) == sizeof(From)) {
    const auto narrow = [](typename VF::P x) {
      using N = native<typename VT::element, VF::lanes>;
      if constexpr (is_float<From> && !same<To, f16>) return __builtin_convertvector(x, N);
#if defined(GY_AVX512)
      else if constexpr (same<To, float>) return __builtin_convertvector(x, N);
      else if constexpr (same<To, f16> && sizeof(x) == 64)
        return (N)__builtin_ia32_vcvtps2ph512_mask((v16sf)x, 0, v16hi{}, no_mask);
#endif
      else if constexpr (same<To, f16>) return (N)__builtin_ia32_vcvtps2ph256((v8sf)x, 0);
      else return truncate<N, int(sizeof(From))>(x);
    };
    VT r;
    if constexpr (VT::parts == VF::parts) {
      GY_EACH(VT, r.p[i] = narrow(v.p[i]);)
    }
#if defined(GY_AVX2)
    else if constexpr (is_int<From>) {
      GY_EACH(VT, r.p[i] = (truncate_two<typename VT::P, int(sizeof(From))>(v.p[2 * i], v.p[2 * i + 1]));)
    }
#endif
    else {
      GY_EACH(VT, r.p[i] = join<typename VT::P>(narrow(v.p[2 * i]), narrow(v.p[2 * i + 1]));)
    }
    return r;
  }
#endif
  else if constexpr (is_float<To> == is_float<From>) return bitcast<To>(v);
  else {
    VT r;
    GY_EACH(VT, r.p[i] = __builtin_convertvector(v.p[i], typename VT::P);)
    return r;
  }
}

#if defined(GY_SIMD)
template <int L> GY_FN Vec<float, L> bf16_to_float(Vec<bf16, L> v) {
  auto wide = step<uint32_t>(bitcast<uint16_t>(v));
  using V = Vec<uint32_t, L>;
  GY_EACH(V, wide.p[i] = wide.p[i] << 16;)
  return bitcast<float>(wide);
}
template <class V> GY_FN V round_to_bf16(V x) {
#if defined(GY_AVX2)
  const V even = x + 0x7fff + (x >> 16 & 1), quiet = x | 0x400000;
  if constexpr (sizeof(V) == 32) {
    const auto nan = __builtin_ia32_cmpps256((v8sf)x, (v8sf)x, 3);
    return (V)__builtin_ia32_blendvps256((v8sf)even, (v8sf)quiet, nan) >> 16;
  }
#endif
  const V rounded = (x + 0x7fff + (x >> 16 & 1)) >> 16, quiet_half = x >> 16 | 0x40;
#if defined(GY_AVX512)
  if constexpr (sizeof(V) == 64) {
    const auto nan = __builtin_ia32_cmpps512_mask((v16sf)x, (v16sf)x, 3, no_mask, current_rounding);
    return (V)__builtin_ia32_blendmd_512_mask((v16si)rounded, (v16si)quiet_half, nan);
  }
#endif
  return (x & 0x7fffffff) > 0x7f800000 ? quiet_half : rounded;
}
template <int L> GY_FN Vec<bf16, L> float_to_bf16(Vec<float, L> v) {
  auto u = bitcast<uint32_t>(v);
  using V = Vec<uint32_t, L>;
  GY_EACH(V, u.p[i] = round_to_bf16(u.p[i]);)
#if defined(GY_AVX2)
  if constexpr (V::bytes == 32) return bitcast<bf16>(pack_small<uint16_t>(u));
#endif
  return bitcast<bf16>(step<uint16_t>(u));
}
#endif

#if defined(GY_SIMD)
// `float_to_small` and `small_to_float` in all lanes of a register. Below the smallest normal number a sum rounds: with
// a number whose last bit counts as much as the smallest subnormal one's.
template <int E, int M, bool Finite, class V> GY_FN V round_to_small(V u) {
  using F = native<float, sizeof(V) / 4>;
  constexpr uint32_t bias = (1 << (E - 1)) - 1, least = (128 - bias) << 23, rounder = (127 + 24 - bias - M) << 23;
  constexpr uint32_t infinity = ((1u << E) - 1) << M, top = Finite ? (1u << (E + M)) - 1 : infinity;
  constexpr uint32_t largest = Finite ? top - 1 : infinity;
  const V magnitude = u & 0x7fffffffu, kept = magnitude >> (23 - M);
  const V normal = ((magnitude + ((1u << (22 - M)) - 1) + (kept & 1)) >> (23 - M)) - ((127 - bias) << M);
  const V subnormal = (V)((F)magnitude + (F)(V{} + rounder)) - rounder;
  const V rounded = magnitude < least ? subnormal : normal;
  const V finite = rounded > largest ? V{} + largest : rounded;
  const V nan = Finite ? V{} + top : infinity | (kept & ((1u << M) - 1)) | 1u << (M - 1);
  return (magnitude > 0x7f800000u ? nan : finite) | u >> 31 << (E + M);
}
template <int E, int M, bool Finite, class V> GY_FN V widen_small(V bits) {
  using F = native<float, sizeof(V) / 4>;
  constexpr uint32_t bias = (1 << (E - 1)) - 1, least = (128 - bias) << 23;
  constexpr uint32_t special = Finite ? (1u << (E + M)) - 1 : ((1u << E) - 1) << M;
  const V magnitude = bits & ((1u << (E + M)) - 1), place = magnitude << (23 - M);
  const V subnormal = (V)((F)(place | least) - (F)(V{} + least));
  const V number = magnitude < 1u << M ? subnormal : place + ((127 - bias) << 23);
  const V odd = 0x7f800000u | (Finite ? V{} + (1u << 22) : place & 0x7fffffu);
  return (magnitude >= special ? odd : number) | bits >> (E + M) << 31;
}
template <class To, int L> GY_FN Vec<To, L> float_to_f8(Vec<float, L> v) {
  constexpr bool finite = same<To, f8e4m3fn>;
  auto u = bitcast<uint32_t>(v);
  GY_EACH(decltype(u), u.p[i] = round_to_small<finite ? 4 : 5, finite ? 3 : 2, finite>(u.p[i]);)
  return bitcast<To>(convert<uint8_t>(u));
}
template <class From, int L> GY_FN Vec<float, L> f8_to_float(Vec<From, L> v) {
  constexpr bool finite = same<From, f8e4m3fn>;
  auto u = convert<uint32_t>(bitcast<uint8_t>(v));
  GY_EACH(decltype(u), u.p[i] = widen_small<finite ? 4 : 5, finite ? 3 : 2, finite>(u.p[i]);)
  return bitcast<float>(u);
}
#endif

// Whether instructions make floats of 64-bit integers, and the reverse: those of AVX-512.
constexpr bool has_int64_float = register_bytes == 64;

#if defined(GY_AVX2)
template <class P> GY_FN bool all_zero(P bits) {
  if constexpr (sizeof(P) == 32) return __builtin_ia32_ptestz256((v4di)bits, (v4di)bits);
  else return __builtin_ia32_ptestz128((v2di)bits, (v2di)bits);
}
// Lane by lane, apart from the code that seldom needs it.
template <class To, class From, int L> __attribute__((noinline, cold)) Vec<To, L> each_lane(const Vec<From, L>& v) {
  return convert_lanes<To>(v);
}
// int64 to double: 2^84 with the upper half in its last bits, and 2^52 with the lower.
template <int L> GY_FN Vec<double, L> int64_to_double(Vec<int64_t, L> v) {
  using V = Vec<double, L>;
  V r;
  GY_EACH(V, const auto bits = (typename V::B)v.p[i];
             const auto high = (typename V::P)(bits >> 32 ^ 0x4530000080000000u),
                        low = (typename V::P)((bits & 0xffffffffu) | 0x4330000000000000u);
             r.p[i] = (high - 0x1.00000801p84) + low;)
  return r;
}
// int64 to float: by way of double, where that is exact.
template <int L> GY_FN Vec<float, L> int64_to_float(Vec<int64_t, L> v) {
  typename Vec<double, L>::B large{};
  GY_EACH(decltype(v), large |= ((decltype(large))v.p[i] + (uint64_t(1) << 52)) >> 53;)
  return __builtin_expect(all_zero(large), 1) ? step<float>(int64_to_double(v)) : each_lane<float>(v);
}
// float to int64: by way of int32, where no lane is beyond it.
template <int L> GY_FN Vec<int64_t, L> float_to_int64(Vec<float, L> v) {
  const auto n = step<int32_t>(v);
  auto beyond = n.p[0] == (-2147483647 - 1);
  GY_EACH(decltype(n), beyond |= n.p[i] == (-2147483647 - 1);)
  return __builtin_expect(all_zero(beyond), 1) ? step<int64_t>(n) : each_lane<int64_t>(v);
}
// double to int64, lanes below 2^51: as the last bits of 1.5 * 2^52.
template <int L> GY_FN Vec<int64_t, L> small_to_int64(Vec<double, L> v) {
  using V = Vec<double, L>;
  Vec<int64_t, L> r;
  GY_EACH(V, typename V::P whole;
             if constexpr (V::bytes == 32) whole = __builtin_ia32_roundpd256(v.p[i], 3);
             else whole = __builtin_ia32_roundpd(v.p[i], 3);
             r.p[i] = (typename Vec<int64_t, L>::P)((typename V::B)(whole + 0x1.8p52) - 0x4338000000000000u);)
  return r;
}
template <int L> GY_FN Vec<int64_t, L> double_to_int64(Vec<double, L> v) {
  typename Vec<double, L>::B beyond{};
  GY_EACH(decltype(v), beyond |= ~(decltype(beyond))(v.p[i] < 0x1p51 & v.p[i] > -0x1p51);)
  return __builtin_expect(all_zero(beyond), 1) ? small_to_int64(v) : each_lane<int64_t>(v);
}
#endif

// One step between 64-bit integers and floats.
template <class To, class From, int L> GY_FN Vec<To, L> step_64(Vec<From, L> v) {
#if defined(GY_AVX2)
  if constexpr (Vec<To, L>::lanes > 1 && Vec<From, L>::lanes > 1) {
    if constexpr (same<To, double>) return int64_to_double(v);
    else if constexpr (same<To, float>) return int64_to_float(v);
    else if constexpr (same<From, float>) return float_to_int64(v);
    else return double_to_int64(v);
  } else
#endif
    return step<To>(v);
}

template <class To, class From, int L> GY_FN Vec<To, L> convert(Vec<From, L> v) {
  if constexpr (same<To, From>) return v;
  else if constexpr (L == 1 || register_bytes == 0) return convert_lanes<To>(v);
#if defined(GY_SIMD)
  else if constexpr (is_f8<From> && same<To, float>) return f8_to_float(v);
  else if constexpr (is_f8<From>) return convert<To>(f8_to_float(v));
  else if constexpr (is_f8<To>) return float_to_f8<To>(convert<float>(v));
  else if constexpr (is_half<From>) {
    if constexpr (Vec<From, L>::lanes == 1) return convert<To>(convert_lanes<float>(v));
    else if constexpr (same<From, f16>) return convert<To>(step<float>(v));
    else return convert<To>(bf16_to_float(v));
  } else if constexpr (is_half<To>) {
    if constexpr (is_int<From> && sizeof(From) == 1 && same<To, bf16> && Vec<To, L>::lanes > 1) {
      auto bits = bitcast<uint32_t>(convert<float>(v));  // a byte is exact
      using V = Vec<uint32_t, L>;
      GY_EACH(V, bits.p[i] = bits.p[i] >> 16;)
      return bitcast<bf16>(step<uint16_t>(bits));
    } else if constexpr (!same<From, float>) return convert<To>(convert<float>(v));
    else if constexpr (Vec<To, L>::lanes == 1) return convert_lanes<To>(v);
    else if constexpr (same<To, f16>) return step<f16>(v);
    else return float_to_bf16(v);
  }
#endif
  else if constexpr (is_int<From> && is_int<To>) {
    if constexpr (sizeof(To) == sizeof(From)) return bitcast<To>(v);
    else if constexpr (sizeof(To) > sizeof(From)) {
#if defined(GY_SIMD)
      if constexpr (sizeof(From) == 1 && sizeof(To) >= 4 && L % 16 == 0) {
        return convert<To>(bytes_to_int32(v));
      } else
#endif
      {
        using Middle = pick<is_signed<From>, sint<2 * sizeof(From)>, uint<2 * sizeof(From)>>;
        return convert<To>(step<Middle>(v));
      }
    } else return convert<To>(step<uint<sizeof(From) / 2>>(v));
  } else if constexpr (is_float<From> && is_float<To>) return step<To>(v);
  else if constexpr (is_int<From>) {                           // to float or double
    if constexpr (sizeof(From) < 4) return step<To>(convert<int32_t>(v));
    else if constexpr (same<From, int32_t>) return step<To>(v);
    else if constexpr (same<From, uint32_t>) return convert<To>(step<int64_t>(v));
    else if constexpr (same<From, uint64_t>) return convert_lanes<To>(v);
    else return step_64<To>(v);
  } else {                                                     // float or double to integer
    if constexpr (same<To, uint64_t>) return convert_lanes<To>(v);
    else if constexpr (by_int64<To, From>) return convert<To>(step_64<int64_t>(v));
    else return convert<To>(step<int32_t>(v));
  }
}

}  // namespace gy
