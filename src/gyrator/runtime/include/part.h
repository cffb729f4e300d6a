// Operations on one register (or one scalar), for the math functions: these are written on parts, not on
// whole vectors, because values that are no structs compile several times faster. Plain operators do the
// rest: x * y + 0.5f, (x < y) ? a : b, and integer arithmetic on bits.
#pragma once
#include "convert.h"

namespace gy::part {

template <class P> constexpr bool is_scalar = sizeof(P) <= 8;
template <class P, bool = is_scalar<P>> struct element_type { using type = P; };
template <class P> struct element_type<P, false> { using type = __typeof__(P{}[0]); };
template <class P> using element = typename element_type<P>::type;
template <class P> constexpr bool of_float = same<element<P>, float>;
// The integers of the same width and lanes, and their single element.
template <class P> using Bits = native<sint<sizeof(element<P>)>, sizeof(P) / sizeof(element<P>)>;

template <class P> GY_FN Bits<P> bits(P x) { return bits_as<Bits<P>>(x); }
template <class P> GY_FN P from_bits(Bits<P> b) { return bits_as<P>(b); }
template <class P> GY_FN P all(element<P> c) {
  if constexpr (is_scalar<P>) return c;
  else return c - P{};
}

// a * b + c, rounded once.
template <class P> GY_FN P fma(P a, P b, P c) {
  if constexpr (is_scalar<P>) return of_float<P> ? P(__builtin_fmaf(a, b, c)) : P(__builtin_fma(a, b, c));
#if defined(GY_AVX512)
  else if constexpr (sizeof(P) == 64 && of_float<P>)
    return (P)__builtin_ia32_vfmaddps512_mask((v16sf)a, (v16sf)b, (v16sf)c, no_mask, current_rounding);
  else if constexpr (sizeof(P) == 64)
    return (P)__builtin_ia32_vfmaddpd512_mask((v8df)a, (v8df)b, (v8df)c, no_mask, current_rounding);
#endif
#if defined(GY_SIMD)
  else if constexpr (sizeof(P) == 32 && of_float<P>)
    return (P)__builtin_ia32_vfmaddps256((v8sf)a, (v8sf)b, (v8sf)c);
  else if constexpr (sizeof(P) == 32) return (P)__builtin_ia32_vfmaddpd256((v4df)a, (v4df)b, (v4df)c);
  else if constexpr (of_float<P>) return (P)__builtin_ia32_vfmaddps((v4sf)a, (v4sf)b, (v4sf)c);
  else return (P)__builtin_ia32_vfmaddpd((v2df)a, (v2df)b, (v2df)c);
#endif
}
// ((c0 x + c1) x + c2) ...
template <class P, class... C> GY_FN P polynomial(P x, element<P> first, C... rest) {
  P r = all<P>(first);
  ((r = fma(r, x, all<P>(element<P>(rest)))), ...);
  return r;
}

// The instruction's rule: b where a and b are equal or either is NaN.
template <bool Largest, class P> GY_FN P extreme(P a, P b) {
#if defined(GY_AVX512)
  if constexpr (sizeof(P) == 64 && of_float<P>)
    return (P)(Largest ? __builtin_ia32_maxps512_mask((v16sf)a, (v16sf)b, v16sf{}, no_mask, current_rounding)
                       : __builtin_ia32_minps512_mask((v16sf)a, (v16sf)b, v16sf{}, no_mask, current_rounding));
  else if constexpr (sizeof(P) == 64)
    return (P)(Largest ? __builtin_ia32_maxpd512_mask((v8df)a, (v8df)b, v8df{}, no_mask, current_rounding)
                       : __builtin_ia32_minpd512_mask((v8df)a, (v8df)b, v8df{}, no_mask, current_rounding));
#endif
#if defined(GY_SIMD)
  if constexpr (same<P, native<float, 8>>)
    return (P)(Largest ? __builtin_ia32_maxps256((v8sf)a, (v8sf)b) : __builtin_ia32_minps256((v8sf)a, (v8sf)b));
  if constexpr (same<P, native<double, 4>>)
    return (P)(Largest ? __builtin_ia32_maxpd256((v4df)a, (v4df)b) : __builtin_ia32_minpd256((v4df)a, (v4df)b));
#endif
  if constexpr (Largest) return a > b ? a : b;
  else return a < b ? a : b;
}
template <class P> GY_FN P max(P a, P b) { return extreme<true>(a, b); }
template <class P> GY_FN P min(P a, P b) { return extreme<false>(a, b); }
// Into [low, high]; NaN stays.
template <class P> GY_FN P clamp(P x, element<P> low, element<P> high) {
  return max(all<P>(low), min(all<P>(high), x));
}

template <class P> GY_FN P sqrt(P a) {
  if constexpr (is_scalar<P>) return of_float<P> ? P(__builtin_sqrtf(a)) : P(__builtin_sqrt(a));
#if defined(GY_AVX512)
  else if constexpr (sizeof(P) == 64 && of_float<P>)
    return (P)__builtin_ia32_sqrtps512_mask((v16sf)a, v16sf{}, no_mask, current_rounding);
  else if constexpr (sizeof(P) == 64)
    return (P)__builtin_ia32_sqrtpd512_mask((v8df)a, v8df{}, no_mask, current_rounding);
#endif
#if defined(GY_SIMD)
  else if constexpr (sizeof(P) == 32 && of_float<P>) return (P)__builtin_ia32_sqrtps256((v8sf)a);
  else if constexpr (sizeof(P) == 32) return (P)__builtin_ia32_sqrtpd256((v4df)a);
  else if constexpr (of_float<P>) return (P)__builtin_ia32_sqrtps((v4sf)a);
  else return (P)__builtin_ia32_sqrtpd((v2df)a);
#endif
}

// Mode: 8 nearest even, 9 down, 10 up, 11 toward zero (the instruction's immediate, exceptions off).
template <int Mode, class P> GY_FN P round_mode(P a) {
  if constexpr (is_scalar<P>)  // the compiler calls the function for floats where P is float
    return Mode == 8    ? P(__builtin_rint(a))
           : Mode == 9  ? P(__builtin_floor(a))
           : Mode == 10 ? P(__builtin_ceil(a))
                        : P(__builtin_trunc(a));
#if defined(GY_AVX512)
  else if constexpr (sizeof(P) == 64 && of_float<P>)
    return (P)__builtin_ia32_rndscaleps_mask((v16sf)a, Mode, v16sf{}, no_mask, current_rounding);
  else if constexpr (sizeof(P) == 64)
    return (P)__builtin_ia32_rndscalepd_mask((v8df)a, Mode, v8df{}, no_mask, current_rounding);
#endif
#if defined(GY_SIMD)
  else if constexpr (sizeof(P) == 32 && of_float<P>) return (P)__builtin_ia32_roundps256((v8sf)a, Mode);
  else if constexpr (sizeof(P) == 32) return (P)__builtin_ia32_roundpd256((v4df)a, Mode);
  else if constexpr (of_float<P>) return (P)__builtin_ia32_roundps((v4sf)a, Mode);
  else return (P)__builtin_ia32_roundpd((v2df)a, Mode);
#endif
}

// ---- sign -------------------------------------------------------------------------------------------------
template <class P>
constexpr auto sign_bit =
    sint<sizeof(element<P>)>(uint<sizeof(element<P>)>(1) << (8 * sizeof(element<P>) - 1));
template <class P> GY_FN P abs(P x) { return from_bits<P>(bits(x) & ~sign_bit<P>); }
template <class P> GY_FN P copysign(P magnitude, P sign) {
  return from_bits<P>((bits(magnitude) & ~sign_bit<P>) | (bits(sign) & sign_bit<P>));
}

// ---- powers of two ----------------------------------------------------------------------------------------
template <class P> constexpr int mantissa_bits = of_float<P> ? 23 : 52;
template <class P> constexpr int exponent_bias = of_float<P> ? 127 : 1023;
template <class P> GY_FN Bits<P> shift_left(Bits<P> b, int n) {
  using U = native<uint<sizeof(element<P>)>, sizeof(P) / sizeof(element<P>)>;
  return (Bits<P>)((U)b << n);
}

// x rounded to the nearest integer, as a float and as an integer: adding 1.5 * 2^mantissa leaves the integer
// in the low bits. For |x| below 2^(mantissa - 1).
template <class P> struct Rounded { P value; Bits<P> integer; };
template <class P> GY_FN Rounded<P> round_to_integer(P x, element<P> factor) {
  constexpr auto magic = of_float<P> ? element<P>(0x1.8p23) : element<P>(0x1.8p52);
  const P t = fma(x, all<P>(factor), all<P>(magic));
  return {t - magic, bits(t) - bits_as<sint<sizeof(element<P>)>>(magic)};
}

// 2^n for n in the range of normal numbers.
template <class P> GY_FN P power_of_two(Bits<P> n) {
  return from_bits<P>(shift_left<P>(n + exponent_bias<P>, mantissa_bits<P>));
}
// Lanes where x is not below `least`, NaN among them, for `scale`. `~compare_bits` takes an instruction more: 4% of exp.
#if defined(GY_AVX512)
template <class P> GY_FN uint64_t not_below(P x, element<P> least) {
  if constexpr (of_float<P>)
    return __builtin_ia32_cmpps512_mask((v16sf)x, (v16sf)all<P>(least), 5, no_mask, current_rounding);
  else return __builtin_ia32_cmppd512_mask((v8df)x, (v8df)all<P>(least), 5, no_mask, current_rounding);
}
#endif
// p * 2^n, rounded once; n may be twice beyond the exponent's range. Lanes of a whole register that are not `kept` are 0.
template <class P> GY_FN P scale(P p, Rounded<P> n, uint64_t kept = ~uint64_t(0)) {
#if defined(GY_AVX512)
  if constexpr (sizeof(P) == 64 && of_float<P>)
    return (P)__builtin_ia32_scalefps512_mask((v16sf)p, (v16sf)n.value, v16sf{}, kept, current_rounding);
  else if constexpr (sizeof(P) == 64)
    return (P)__builtin_ia32_scalefpd512_mask((v8df)p, (v8df)n.value, v8df{}, kept, current_rounding);
#endif
  const Bits<P> half = n.integer >> 1;
  return p * power_of_two<P>(half) * power_of_two<P>(n.integer - half);
}

}  // namespace gy::part
