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
template <int Shift = 0, class P> GY_FN P exp_in_range(P x, uint64_t kept = ~uint64_t(0)) {
  if constexpr (of_float<P>) {
    auto n = round_to_integer(x, 0x1.715476p+0f);
    P r = fma(n.value, all<P>(-0x1.62e4p-1f), x);
    r = fma(n.value, all<P>(-0x1.7f7d1cp-20f), r);
    if constexpr (Shift != 0) n = {n.value + float(Shift), n.integer + Shift};
    return scale(polynomial(r, 0x1.6abf44p-10f, 0x1.123e36p-7f, 0x1.555858p-5f, 0x1.55548cp-3f,
                            0x1.fffffcp-2f, 1.0f, 1.0f),
                 n, kept);
  } else {
    auto n = round_to_integer(x, 0x1.71547652b82fep+0);
    P r = fma(n.value, all<P>(-0x1.62e42fefa3800p-1), x);
    r = fma(n.value, all<P>(-0x1.ef35793c76730p-45), r);
    if constexpr (Shift != 0) n = {n.value + double(Shift), n.integer + Shift};
    return scale(
        polynomial(r, 0x1.2035c762f7cd7p-29, 0x1.af72e2618271p-26, 0x1.27e4524833b13p-22,
                   0x1.71ddeb0ecc90cp-19, 0x1.a01a01e800efap-16, 0x1.a01a01b5efafcp-13, 0x1.6c16c16c0a442p-10,
                   0x1.111111110e54ep-7, 0x1.555555555556cp-5, 0x1.555555555555dp-3, 0.5, 1.0, 1.0),
        n, kept);
  }
}
// What underflows to zero, as the exponentials of masked scores do, is not computed: for a number below the normal ones
// some processors take hundreds of cycles.
template <class P> GY_FN P exp(P x) {
  using T = element<P>;
  constexpr T least = of_float<P> ? T(-104) : T(-746), most = of_float<P> ? T(90) : T(715);
#if defined(GY_AVX512)
  if constexpr (sizeof(P) == 64) return exp_in_range(min(all<P>(most), x), not_below(x, least));
#endif
  const P y = exp_in_range(x < least ? all<P>(T(0)) : min(all<P>(most), x));
  return x < least ? all<P>(T(0)) : y;
}

// 2^x. 0.9 ulp.
template <class P> GY_FN P exp2(P x) {
  if constexpr (of_float<P>) {
    x = clamp(x, -152.0f, 130.0f);
    const auto n = round_to_integer(x, 1.0f);
    const P r = (x - n.value) * 0x1.62e430p-1f;
    return scale(polynomial(r, 0x1.6abf44p-10f, 0x1.123e36p-7f, 0x1.555858p-5f, 0x1.55548cp-3f, 0x1.fffffcp-2f,
                            1.0f, 1.0f),
                 n);
  } else {
    x = clamp(x, -1080.0, 1030.0);
    const auto n = round_to_integer(x, 1.0);
    return scale(
        polynomial(x - n.value, 0x1.f0ceccca1b397p-32, 0x1.e63bb26aa6a48p-28, 0x1.b52092a4d7439p-24,
                   0x1.62bfb48e05b2bp-20, 0x1.ffcbfe5f6a00dp-17, 0x1.4309131683d3bp-13, 0x1.5d87fe7846bd6p-10,
                   0x1.3b2ab6fb9daa8p-7, 0x1.c6b08d704a26bp-5, 0x1.ebfbdff82c5b3p-3, 0x1.62e42fefa39efp-1, 1.0),
        n);
  }
}

// e^x - 1 = 2^n (1 + r + tail) - 1, with |tail| far below |r|.
template <class P> struct Expm1Parts { P r, tail; Rounded<P> n; };
template <class P> GY_FN Expm1Parts<P> expm1_parts(P x) {
  if constexpr (of_float<P>) {
    const auto n = round_to_integer(x, 0x1.715476p+0f);
    P r = fma(n.value, all<P>(-0x1.62e4p-1f), x);
    r = fma(n.value, all<P>(-0x1.7f7d1cp-20f), r);
    const P p = polynomial(r, 0x1.3b17bap-13f, 0x1.6d2e58p-10f, 0x1.1155aap-7f, 0x1.555502p-5f, 0x1.55552cp-3f,
                           0.5f);
    return {r, r * r * p, n};
  } else {
    const auto n = round_to_integer(x, 0x1.71547652b82fep+0);
    const P exact = fma(n.value, all<P>(-0x1.62e42fefa3800p-1), x), low = all<P>(-0x1.ef35793c76730p-45);
    const P r = fma(n.value, low, exact), lost = fma(n.value, low, exact - r);
    const P p = polynomial(r, 0x1.1ec96ac075a2cp-29, 0x1.af595baed80fap-26, 0x1.27e52aa764cb0p-22,
                           0x1.71ddfafc56fbbp-19, 0x1.a01a0192d84dep-16, 0x1.a01a01af2541ep-13,
                           0x1.6c16c16c16a90p-10, 0x1.111111110f75dp-7, 0x1.5555555555559p-5,
                           0x1.5555555555559p-3, 0.5);
    return {r, fma(r * r, p, lost), n};
  }
}
// 1.5 ulp.
template <class P> GY_FN P expm1(P x) {
  using T = element<P>;
  const auto parts = expm1_parts(of_float<P> ? clamp(x, T(-30), T(88.8)) : clamp(x, T(-45), T(709.9)));
  const P t = power_of_two<P>(parts.n.integer - 1);  // half: the largest results must not overflow early
  const P r = fma(t, parts.tail, fma(t, parts.r, t - T(0.5)));  // in this order nothing is lost where 2^n > 1
  return x == T(0) ? x : r + r;                                // -0 stays -0
}

// a / (b + b_low) within 1 ulp for finite a, normal b of moderate size and tiny b_low; with AVX-512 by an
// approximate reciprocal and Newton's steps, for the divide of a whole register costs 16 cycles. (Of doubles that is no
// more than the steps, unless a root keeps the divider busy.)
template <class P> GY_FN P moderate_div(P a, P b, P b_low) {
#if defined(GY_AVX512)
  P y;
  if constexpr (is_scalar<P> && of_float<P>) y = __builtin_ia32_rcp14ss(v4sf{b}, v4sf{b})[0];
  else if constexpr (is_scalar<P>) y = __builtin_ia32_rcp14sd(v2df{b}, v2df{b})[0];
  else if constexpr (sizeof(P) == 64 && of_float<P>)
    y = (P)__builtin_ia32_rcp14ps512_mask((v16sf)b, v16sf{}, no_mask);
  else if constexpr (sizeof(P) == 64) y = (P)__builtin_ia32_rcp14pd512_mask((v8df)b, v8df{}, no_mask);
  else if constexpr (sizeof(P) == 32 && of_float<P>)
    y = (P)__builtin_ia32_rcp14ps256_mask((v8sf)b, v8sf{}, no_mask);
  else if constexpr (sizeof(P) == 32) y = (P)__builtin_ia32_rcp14pd256_mask((v4df)b, v4df{}, no_mask);
  else if constexpr (of_float<P>) y = (P)__builtin_ia32_rcp14ps128_mask((v4sf)b, v4sf{}, no_mask);
  else y = (P)__builtin_ia32_rcp14pd128_mask((v2df)b, v2df{}, no_mask);
  const P error = fma(-b, y, all<P>(1));
  if constexpr (of_float<P>) y = fma(y, error, y);
  else y = fma(y, fma(error, error, error), y);                // 42 bits; the step of the quotient doubles them
#else
  const P y = element<P>(1) / b;
#endif
  const P q = a * y;
  return fma(fma(-b_low, q, fma(-b, q, a)), y, q);
}

// 1 / (1 + e^-x). float: 1.5 ulp, double: 2.3 ulp, down to the smallest results.
template <class P> GY_FN P sigmoid(P x) {
  using T = element<P>;
  const P e = exp_in_range(-min(all<P>(of_float<P> ? T(105) : T(750)), abs(x)));
  const P below = e + T(1), above = x < T(0) ? e : all<P>(1);
  if constexpr (of_float<P>) return moderate_div(above, below, e - (below - T(1)));
  else return above / below;
}

// float: 2 ulp, double: 1.8 ulp. From e = e^(-2|x|) - 1, whose relative accuracy near 0 carries over: q = e / (2 + e).
// In double, what rounding e and 2 + e lost is made good with 1 / (2 + e) = (1 - q) / 2.
template <class P> GY_FN P tanh(P x) {
  using T = element<P>;
  const auto parts = expm1_parts(min(all<P>(of_float<P> ? T(9.5) : T(20)), abs(x)) * T(-2));  // 1 beyond
  const P t = power_of_two<P>(parts.n.integer), rest = t - T(1), s = parts.r + parts.tail;
  const P e = fma(t, s, rest), below = e + T(2), lost = e - (below - T(2));
  if constexpr (of_float<P>) return copysign(moderate_div(e, below, lost), x);
  else {
    const P e_low = fma(t, s, rest - e);
    const P q = e / below, error = fma(-q, lost + e_low, e_low);
    return copysign(fma(fma(q, all<P>(-0.5), all<P>(0.5)), error, q), x);
  }
}

// ---- logarithms -------------------------------------------------------------------------------------------
// x = 2^k (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)), for positive x, subnormal ones too.
template <class P> struct LogParts { P k, f; Bits<P> normal_k; };    // normal_k: k, but of normal numbers only
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
          from_bits<P>(b - shift_left<P>(k, mantissa_bits<P>)) - T(1), k};
}
// log(1 + f) - f. double: from s = f / (2 + f), log(1 + f) = f - (f^2/2 - s (f^2/2 + s^2 R(s^2))).
template <class P> struct LogSeries { P s, half_square, r; };
template <class P> GY_FN LogSeries<P> log_series(P f) {
  const P s = f / (f + 2.0), z = s * s;
  const P r = z * polynomial(z, 0x1.2f04f647763c2p-3, 0x1.39a1cf4bee076p-3, 0x1.74663db237dd1p-3,
                             0x1.c71c52119c7bbp-3, 0x1.24924941e3616p-2, 0x1.999999997ff0ap-2,
                             0x1.5555555555592p-1);
  return {s, f * f * 0.5, r};
}
template <class P> GY_FN P log_tail(P f) {
  if constexpr (of_float<P>) {
    const P p = polynomial(f, -0x1.38e3b4p-4f, 0x1.0590a0p-3f, -0x1.0d89b6p-3f, 0x1.22d450p-3f, -0x1.547168p-3f,
                           0x1.99a03cp-3f, -0x1.00022ap-2f, 0x1.555554p-2f);
    const P f2 = f * f;
    return fma(f * p, f2, f2 * -0.5f);
  } else {
    const auto [s, half_square, r] = log_series(f);
    return fma(s, half_square + r, -half_square);
  }
}
// NaN below zero, -inf at zero, x itself at +inf and NaN.
template <class P> GY_FN P log_edges(P x, P r) {
  using T = element<P>;
  r = x < infinity<T> ? r : x;
  r = x == T(0) ? all<P>(-infinity<T>) : r;
  return x < T(0) ? all<P>(quiet_nan<T>) : r;
}
// float: 1.1 ulp; double: 0.8 ulp.
template <class P> GY_FN P log(P x) {
  const auto [k, f, _] = log_parts(x);
  if constexpr (of_float<P>) {
    const P tail = fma(k, all<P>(0x1.7f7d1cp-20f), log_tail(f));
    return log_edges(x, fma(k, all<P>(0x1.62e4p-1f), f + tail));
  } else {
    const auto [s, half_square, r] = log_series(f);
    const P low = fma(s, half_square + r, k * 0x1.ef35793c76730p-45);
    return log_edges(x, fma(k, all<P>(0x1.62e42fefa3800p-1), f - (half_square - low)));
  }
}
// 1.5 ulp; exact at powers of two. log2(e) in two parts.
template <class P> GY_FN P log2(P x) {
  const auto [k, f, _] = log_parts(x);
  constexpr bool single = of_float<P>;
  const P high = all<P>(single ? element<P>(0x1.715476p+0f) : element<P>(0x1.71547652b82fep+0));
  const P rest = all<P>(single ? element<P>(0x1.4ae0cp-26f) : element<P>(0x1.777d0ffda0d24p-56));
  return log_edges(x, k + fma(f, high, fma(f, rest, log_tail(f) * high)));
}
// 1.1 ulp. log10(e) and log10(2) in two parts.
template <class P> GY_FN P log10(P x) {
  const auto [k, f, _] = log_parts(x);
  constexpr bool single = of_float<P>;
  const P high = all<P>(single ? element<P>(0x1.bcb7b2p-2f) : element<P>(0x1.bcb7b1526e50ep-2));
  const P rest = all<P>(single ? element<P>(-0x1.5b235ep-27f) : element<P>(0x1.95355baaafad3p-57));
  const P two = all<P>(single ? element<P>(0x1.344p-2f) : element<P>(0x1.34413509f7800p-2));
  const P two_rest = k * (single ? element<P>(0x1.3509f8p-18f) : element<P>(0x1.fef311f12b358p-46));
  const P low = fma(f, rest, fma(log_tail(f), high, two_rest));
  return log_edges(x, fma(k, two, fma(f, high, low)));
}
// log(1 + x). 1.5 ulp.
template <class P> GY_FN P log1p(P x) {
  using T = element<P>;
  const P u = x + T(1);
  auto [k, f, whole] = log_parts(u);
  // what rounding 1 + x lost, scaled like the mantissa of u; beyond 2^60 it is far below half an ulp
  const P lost = x > T(1) ? T(1) - (u - x) : x - (u - T(1));
  whole = whole > 60 ? 60 : whole;
  f = f + lost * power_of_two<P>(-whole);
  constexpr bool single = of_float<P>;
  const P tail = fma(k, all<P>(single ? T(0x1.7f7d1cp-20f) : T(0x1.ef35793c76730p-45)), log_tail(f));
  const P r = log_edges(u, fma(k, all<P>(single ? T(0x1.62e4p-1f) : T(0x1.62e42fefa3800p-1)), f + tail));
  return x == T(0) ? x : r;
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
GY_MATH(exp, own_real) GY_MATH(exp2, own_real) GY_MATH(expm1, own_real) GY_MATH(tanh, own_real)
GY_MATH(log, own_real) GY_MATH(log2, own_real) GY_MATH(log10, own_real) GY_MATH(log1p, own_real)

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
