// Exponentials, logarithms, logistic and hyperbolic tangent.
//
// Methods: Cody and Waite's two-constant range reduction with fused multiply-adds; minimax polynomials
// computed by tools/minimax.py. Bounds are in ulps of the result, measured against 40-digit arithmetic
// (docs/numerics.md). Without FMA (the fallback mode) every function is the C library's.
#pragma once
#include "arith.h"

namespace gy {

// One value by the C library.
namespace libm {
#define GY_LIBM(name)                                                  \
  template <class T> GY_FN T name(T x) {                               \
    if constexpr (same<T, float>) return __builtin_##name##f(x);       \
    else return __builtin_##name(x);                                   \
  }
GY_LIBM(exp) GY_LIBM(exp2) GY_LIBM(expm1) GY_LIBM(log) GY_LIBM(log2) GY_LIBM(log10) GY_LIBM(log1p)
GY_LIBM(tanh) GY_LIBM(erf) GY_LIBM(sin) GY_LIBM(cos) GY_LIBM(tan) GY_LIBM(asin) GY_LIBM(acos) GY_LIBM(atan)
GY_LIBM(sinh) GY_LIBM(cosh) GY_LIBM(asinh) GY_LIBM(acosh) GY_LIBM(atanh)
#undef GY_LIBM
}  // namespace libm

namespace part {

// e^x * 2^Shift for |x| small enough that round_to_integer holds. 0.9 ulp.
template <int Shift = 0, class P> GY_FN P exp_in_range(P x) {
  if constexpr (of_float<P>) {
    auto n = round_to_integer(x, 0x1.715476p+0f);
    P r = fma(n.value, all<P>(-0x1.62e4p-1f), x);
    r = fma(n.value, all<P>(-0x1.7f7d1cp-20f), r);
    if constexpr (Shift != 0) n = {n.value + float(Shift), n.integer + Shift};
    return scale(polynomial(r, 0x1.6abf44p-10f, 0x1.123e36p-7f, 0x1.555858p-5f, 0x1.55548cp-3f,
                            0x1.fffffcp-2f, 1.0f, 1.0f),
                 n);
  } else {
    auto n = round_to_integer(x, 0x1.71547652b82fep+0);
    P r = fma(n.value, all<P>(-0x1.62e42fefa3800p-1), x);
    r = fma(n.value, all<P>(-0x1.ef35793c76730p-45), r);
    if constexpr (Shift != 0) n = {n.value + double(Shift), n.integer + Shift};
    return scale(
        polynomial(r, 0x1.2035c762f7cd7p-29, 0x1.af72e2618271p-26, 0x1.27e4524833b13p-22,
                   0x1.71ddeb0ecc90cp-19, 0x1.a01a01e800efap-16, 0x1.a01a01b5efafcp-13, 0x1.6c16c16c0a442p-10,
                   0x1.111111110e54ep-7, 0x1.555555555556cp-5, 0x1.555555555555dp-3, 0.5, 1.0, 1.0),
        n);
  }
}
template <class P> GY_FN P exp(P x) {
  return exp_in_range(of_float<P> ? clamp(x, element<P>(-105), element<P>(90))
                                  : clamp(x, element<P>(-750), element<P>(715)));
}

// 2^x. float: 0.9 ulp.
template <class P> GY_FN P exp2(P x) {
  x = clamp(x, -152.0f, 130.0f);
  const auto n = round_to_integer(x, 1.0f);
  const P r = (x - n.value) * 0x1.62e430p-1f;
  return scale(polynomial(r, 0x1.6abf44p-10f, 0x1.123e36p-7f, 0x1.555858p-5f, 0x1.55548cp-3f, 0x1.fffffcp-2f,
                          1.0f, 1.0f),
               n);
}

// e^x - 1 = 2^n (e + 1) - 1.
template <class P> struct Expm1Parts { P e; Rounded<P> n; };
template <class P> GY_FN Expm1Parts<P> expm1_parts(P x) {
  const auto n = round_to_integer(x, 0x1.715476p+0f);
  P r = fma(n.value, all<P>(-0x1.62e4p-1f), x);
  r = fma(n.value, all<P>(-0x1.7f7d1cp-20f), r);
  const P p =
      polynomial(r, 0x1.3b17bap-13f, 0x1.6d2e58p-10f, 0x1.1155aap-7f, 0x1.555502p-5f, 0x1.55552cp-3f, 0.5f);
  return {fma(r * r, p, r), n};
}
// float: 1.5 ulp.
template <class P> GY_FN P expm1(P x) {
  const auto parts = expm1_parts(clamp(x, -30.0f, 88.8f));
  const P t = power_of_two<P>(parts.n.integer - 1);  // half: the largest results must not overflow early
  const P r = fma(t, parts.e, t - 0.5f);
  return x == 0.0f ? x : r + r;                                // -0 stays -0
}

// a / (b + b_low) within 1 ulp for finite a, normal b of moderate size and tiny b_low; with AVX-512 by an
// approximate reciprocal and Newton's step, for the divide of a whole register costs 16 cycles.
template <class P> GY_FN P moderate_div(P a, P b, P b_low) {
#if defined(GY_AVX512)
  P y;
  if constexpr (is_scalar<P>) y = __builtin_ia32_rcp14ss(v4sf{b}, v4sf{b})[0];
  else if constexpr (sizeof(P) == 64) y = (P)__builtin_ia32_rcp14ps512_mask((v16sf)b, v16sf{}, no_mask);
  else if constexpr (sizeof(P) == 32) y = (P)__builtin_ia32_rcp14ps256_mask((v8sf)b, v8sf{}, no_mask);
  else y = (P)__builtin_ia32_rcp14ps128_mask((v4sf)b, v4sf{}, no_mask);
  y = fma(y, fma(-b, y, all<P>(1)), y);
#else
  const P y = 1.0f / b;
#endif
  const P q = a * y;
  return fma(fma(-b_low, q, fma(-b, q, a)), y, q);
}

// 1 / (1 + e^-x). float: 1.5 ulp, double: 2 ulp, down to the smallest results.
template <class P> GY_FN P sigmoid(P x) {
  const P size = abs(x);
  if constexpr (of_float<P>) {
    const P e = exp_in_range(-min(all<P>(105), size));
    const P below = e + 1.0f;
    return moderate_div(x < 0.0f ? e : all<P>(1), below, e - (below - 1.0f));
  } else {
    const P e = exp_in_range(-min(all<P>(750), size));
    return (x < 0.0 ? e : all<P>(1)) / (e + 1.0);
  }
}

// float: 2 ulp. From e^(-2|x|) - 1, whose relative accuracy near 0 carries over.
template <class P> GY_FN P tanh(P x) {
  const auto parts = expm1_parts(min(all<P>(9.5f), abs(x)) * -2.0f);          // tanh is 1 beyond
  const P t = power_of_two<P>(parts.n.integer);
  const P e = fma(t, parts.e, t - 1.0f), below = e + 2.0f;
  return copysign(moderate_div(e, below, e - (below - 2.0f)), x);
}

// ---- logarithms -------------------------------------------------------------------------------------------
// x = 2^k (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)), for positive x, subnormal ones too.
template <class P> struct LogParts { P k, f; };
template <class P> GY_FN LogParts<P> log_parts(P x) {
  using T = element<P>;
  constexpr T smallest_normal = of_float<P> ? T(0x1p-126) : T(0x1p-1022),
              up = of_float<P> ? T(0x1p24) : T(0x1p54);
  constexpr sint<sizeof(T)> root_half = of_float<P> ? 0x3f3504f3 : 0x3fe6a09e667f3bcd;
  const Bits<P> b = bits(x < smallest_normal ? x * up : x);
  const Bits<P> k = (b - root_half) >> mantissa_bits<P>;
  P power;
  if constexpr (is_scalar<P>) power = P(k);
  else if constexpr (of_float<P> || has_int64_float) power = __builtin_convertvector(k, P);
  else power = from_bits<P>(k + bits_as<int64_t>(0x1.8p52)) - 0x1.8p52;
  return {x < smallest_normal ? power - T(of_float<P> ? 24 : 54) : power,
          from_bits<P>(b - shift_left<P>(k, mantissa_bits<P>)) - T(1)};
}
// log(1 + f) - f for float.
template <class P> GY_FN P log_tail(P f) {
  const P p = polynomial(f, -0x1.38e3b4p-4f, 0x1.0590a0p-3f, -0x1.0d89b6p-3f, 0x1.22d450p-3f, -0x1.547168p-3f,
                         0x1.99a03cp-3f, -0x1.00022ap-2f, 0x1.555554p-2f);
  const P f2 = f * f;
  return fma(f * p, f2, f2 * -0.5f);
}
// NaN below zero, -inf at zero, x itself at +inf and NaN.
template <class P> GY_FN P log_edges(P x, P r) {
  using T = element<P>;
  r = x < infinity<T> ? r : x;
  r = x == T(0) ? all<P>(-infinity<T>) : r;
  return x < T(0) ? all<P>(quiet_nan<T>) : r;
}
// float: 1.1 ulp; double: 0.8 ulp, from s = f / (2 + f): log(1 + f) = f - (f^2/2 - s (f^2/2 + s^2 R(s^2))).
template <class P> GY_FN P log(P x) {
  const auto [k, f] = log_parts(x);
  if constexpr (of_float<P>) {
    const P tail = fma(k, all<P>(0x1.7f7d1cp-20f), log_tail(f));
    return log_edges(x, fma(k, all<P>(0x1.62e4p-1f), f + tail));
  } else {
    const P s = f / (f + 2.0), z = s * s;
    const P r = z * polynomial(z, 0x1.2f04f647763c2p-3, 0x1.39a1cf4bee076p-3, 0x1.74663db237dd1p-3,
                               0x1.c71c52119c7bbp-3, 0x1.24924941e3616p-2, 0x1.999999997ff0ap-2,
                               0x1.5555555555592p-1);
    const P half_square = f * f * 0.5;
    const P low = fma(s, half_square + r, k * 0x1.ef35793c76730p-45);
    return log_edges(x, fma(k, all<P>(0x1.62e42fefa3800p-1), f - (half_square - low)));
  }
}
// float: 1.5 ulp; exact at powers of two.
template <class P> GY_FN P log2(P x) {
  const auto [k, f] = log_parts(x);
  const P low = fma(f, all<P>(0x1.4ae0cp-26f), log_tail(f) * 0x1.715476p+0f);
  return log_edges(x, k + fma(f, all<P>(0x1.715476p+0f), low));
}
// float: 1.1 ulp.
template <class P> GY_FN P log10(P x) {
  const auto [k, f] = log_parts(x);
  const P low =
      fma(f, all<P>(-0x1.5b235ep-27f), fma(log_tail(f), all<P>(0x1.bcb7b2p-2f), k * 0x1.3509f8p-18f));
  return log_edges(x, fma(k, all<P>(0x1.344p-2f), fma(f, all<P>(0x1.bcb7b2p-2f), low)));
}
// log(1 + x). float: 1.5 ulp.
template <class P> GY_FN P log1p(P x) {
  const P u = x + 1.0f;
  auto [k, f] = log_parts(u);
  // what rounding 1 + x lost, scaled like the mantissa of u; beyond 2^60 it is far below half an ulp
  const P lost = x > 1.0f ? 1.0f - (u - x) : x - (u - 1.0f);
  P k_small = min(all<P>(60), k);
  Bits<P> down;
  if constexpr (is_scalar<P>) down = Bits<P>(k_small);
  else down = __builtin_convertvector(k_small, Bits<P>);
  f = f + lost * power_of_two<P>(-down);
  const P tail = fma(k, all<P>(0x1.7f7d1cp-20f), log_tail(f));
  const P r = log_edges(u, fma(k, all<P>(0x1.62e4p-1f), f + tail));
  return x == 0.0f ? x : r;
}

}  // namespace part

// True where our own algorithm serves the type; otherwise the library is called for each lane.
template <class T> constexpr bool own_float = register_bytes > 0 && same<T, float>;
template <class T> constexpr bool own_real = register_bytes > 0 && is_float<T>;

#define GY_MATH(name, own)                                                  \
  template <class T, int L> GY_FN Vec<T, L> name(Vec<T, L> x) {             \
    GY_SMALL_FLOATS(name, x)                                                \
    else if constexpr (own<T>) {                                            \
      using V = Vec<T, L>;                                                  \
      GY_EACH(V, x.p[i] = part::name(x.p[i]);)                              \
      return x;                                                             \
    } else return map<T>(x, libm::name<T>);                                 \
  }
GY_MATH(exp, own_real) GY_MATH(exp2, own_float) GY_MATH(expm1, own_float) GY_MATH(tanh, own_float)
GY_MATH(log, own_real) GY_MATH(log2, own_float) GY_MATH(log10, own_float) GY_MATH(log1p, own_float)

template <class T, int L> GY_FN Vec<T, L> sigmoid(Vec<T, L> x) {
  using V = Vec<T, L>;
  GY_SMALL_FLOATS(sigmoid, x)
  else if constexpr (own_real<T>) { GY_EACH(V, x.p[i] = part::sigmoid(x.p[i]);) }
  else {
    const auto e = exp(neg(abs(x)));
    const auto one = broadcast<L>(T(1));
    x = div(where(lt(x, broadcast<L>(T(0))), e, one), add(one, e));
  }
  return x;
}

}  // namespace gy
