// Exponentials, logarithms, logistic and hyperbolic tangent.
//
// Methods: Cody and Waite's two-constant range reduction with fused multiply-adds; minimax polynomials computed by
// tools/minimax.py. Bounds are in ulps of the result, measured against 40-digit arithmetic (docs/numerics.md).
// Without FMA (the fallback mode) every function is the C library's.
#pragma once
#include "arith.h"

namespace gy {

#define GY_LIBM(name)                                                                               \
  template <class T> GY_FN T name##_one(T x) {                                                      \
    if constexpr (same<T, float>) return __builtin_##name##f(x);                                    \
    else return __builtin_##name(x);                                                                \
  }
GY_LIBM(exp) GY_LIBM(exp2) GY_LIBM(expm1) GY_LIBM(log) GY_LIBM(log2) GY_LIBM(log10) GY_LIBM(log1p) GY_LIBM(tanh)
#undef GY_LIBM

// True where our own algorithm serves the type; otherwise the library is called for each lane.
template <class T> constexpr bool own_float = register_bytes > 0 && same<T, float>;
template <class T> constexpr bool own_real = register_bytes > 0 && is_float<T>;

// c0 x^n + c1 x^(n-1) + ... + cn.
template <class T, int L, class... C> GY_FN Vec<T, L> polynomial(Vec<T, L> x, T first, C... rest) {
  auto r = broadcast<L>(first);
  ((r = fma(r, x, broadcast<L>(T(rest)))), ...);
  return r;
}

// p * 2^n for an integral n of up to twice the exponent's range, rounded once.
template <class T, int L> GY_FN Vec<T, L> scale(Vec<T, L> p, Vec<T, L> n) {
  using V = Vec<T, L>;
#if defined(GY_AVX512)
  if constexpr (V::lanes > 1) {
    V r;
    GY_EACH(V, i) {
      using P = typename V::P;
      if constexpr (same<T, float>) {
        if constexpr (V::bytes == 64)
          r.p[i] = (P)__builtin_ia32_scalefps512_mask((v16sf)p.p[i], (v16sf)n.p[i], v16sf{}, no_mask, current_rounding);
        else if constexpr (V::bytes == 32) r.p[i] = (P)__builtin_ia32_scalefps256_mask((v8sf)p.p[i], (v8sf)n.p[i], v8sf{}, no_mask);
        else r.p[i] = (P)__builtin_ia32_scalefps128_mask((v4sf)p.p[i], (v4sf)n.p[i], v4sf{}, no_mask);
      } else {
        if constexpr (V::bytes == 64)
          r.p[i] = (P)__builtin_ia32_scalefpd512_mask((v8df)p.p[i], (v8df)n.p[i], v8df{}, no_mask, current_rounding);
        else if constexpr (V::bytes == 32) r.p[i] = (P)__builtin_ia32_scalefpd256_mask((v4df)p.p[i], (v4df)n.p[i], v4df{}, no_mask);
        else r.p[i] = (P)__builtin_ia32_scalefpd128_mask((v2df)p.p[i], (v2df)n.p[i], v2df{}, no_mask);
      }
    }
    return r;
  }
#endif
  using I = sint<sizeof(T)>;
  constexpr int mantissa = same<T, float> ? 23 : 52;
  const auto k = small_int(n);
  const auto half = rshift_by<1>(k);
  const auto power = [](auto e) {
    return bitcast<T>(lshift_by<mantissa>(add(e, broadcast<L>(I(same<T, float> ? 127 : 1023)))));
  };
  return mul(mul(p, power(half)), power(sub(k, half)));
}

// e^x * 2^shift. float: 1 ulp; double: 1 ulp.
template <class T, int L> GY_FN Vec<T, L> exp_scaled(Vec<T, L> x, T shift) {
  if constexpr (same<T, float>) {
    x = raw_max(broadcast<L>(-105.0f), raw_min(broadcast<L>(90.0f), x));      // keeps NaN
    const auto n = round(mul(x, broadcast<L>(0x1.715476p+0f)));
    auto r = fma(n, broadcast<L>(-0x1.62e4p-1f), x);
    r = fma(n, broadcast<L>(-0x1.7f7d1cp-20f), r);
    const auto p = polynomial(r, 0x1.6abf44p-10f, 0x1.123e36p-7f, 0x1.555858p-5f, 0x1.55548cp-3f, 0x1.fffffcp-2f,
                              1.0f, 1.0f);
    return scale(p, add(n, broadcast<L>(shift)));
  } else {
    x = raw_max(broadcast<L>(-750.0), raw_min(broadcast<L>(715.0), x));
    const auto n = round(mul(x, broadcast<L>(0x1.71547652b82fep+0)));
    auto r = fma(n, broadcast<L>(-0x1.62e42fefa3800p-1), x);
    r = fma(n, broadcast<L>(-0x1.ef35793c76730p-45), r);
    const auto p = polynomial(r, 0x1.201af6573fdd6p-29, 0x1.af71c7e4b9317p-26, 0x1.27e459097aad2p-22,
                              0x1.71ddeb49a321bp-19, 0x1.a01a01e7e11adp-16, 0x1.a01a01b5f4771p-13,
                              0x1.6c16c16c0a43bp-10, 0x1.111111110e54cp-7, 0x1.555555555556cp-5,
                              0x1.555555555555dp-3, 0.5, 1.0, 1.0);
    return scale(p, add(n, broadcast<L>(shift)));
  }
}
template <class T, int L> GY_FN Vec<T, L> exp(Vec<T, L> x) {
  if constexpr (own_real<T>) return exp_scaled(x, T(0));
  else return map<T>(x, exp_one<T>);
}

// 2^x. 1 ulp.
template <class T, int L> GY_FN Vec<T, L> exp2(Vec<T, L> x) {
  if constexpr (own_float<T>) {
    x = raw_max(broadcast<L>(-152.0f), raw_min(broadcast<L>(130.0f), x));
    const auto n = round(x);
    const auto r = mul(sub(x, n), broadcast<L>(0x1.62e430p-1f));
    const auto p = polynomial(r, 0x1.6abf44p-10f, 0x1.123e36p-7f, 0x1.555858p-5f, 0x1.55548cp-3f, 0x1.fffffcp-2f,
                              1.0f, 1.0f);
    return scale(p, n);
  } else return map<T>(x, exp2_one<T>);
}

// 2^n for integral n in [-126, 127].
template <int L> GY_FN Vec<float, L> power_of_two(Vec<float, L> n) {
  return bitcast<float>(lshift_by<23>(add(small_int(n), broadcast<L>(int32_t(127)))));
}
// The parts of expm1 for float: e^x - 1 = 2^n (e + 1) - 1.
template <int L> struct Expm1Parts { Vec<float, L> e, n; };
template <int L> GY_FN Expm1Parts<L> expm1_parts(Vec<float, L> x) {
  const auto n = round(mul(x, broadcast<L>(0x1.715476p+0f)));
  auto r = fma(n, broadcast<L>(-0x1.62e4p-1f), x);
  r = fma(n, broadcast<L>(-0x1.7f7d1cp-20f), r);
  const auto p = polynomial(r, 0x1.3b17bap-13f, 0x1.6d2e58p-10f, 0x1.1155aap-7f, 0x1.555502p-5f, 0x1.55552cp-3f, 0.5f);
  return {fma(mul(r, r), p, r), n};
}
// e^x - 1. 1 ulp.
template <class T, int L> GY_FN Vec<T, L> expm1(Vec<T, L> x) {
  if constexpr (own_float<T>) {
    const auto clamped = raw_max(broadcast<L>(-30.0f), raw_min(broadcast<L>(88.8f), x));
    const auto parts = expm1_parts(clamped);
    const auto t = scale(broadcast<L>(0.5f), parts.n);         // half, so that the largest results do not overflow early
    const auto r = fma(t, parts.e, sub(t, broadcast<L>(0.5f)));
    return where(eq(x, broadcast<L>(0.0f)), x, add(r, r));     // -0 stays -0
  } else return map<T>(x, expm1_one<T>);
}

// ---- quotient for hot functions ---------------------------------------------------------------------------------
// a / (b + b_low) within 1 ulp for finite a, normal b of moderate size and tiny b_low; with AVX-512 by an
// approximate reciprocal and Newton's step, for the divide of a whole register costs 16 cycles.
template <int L> GY_FN Vec<float, L> moderate_div(Vec<float, L> a, Vec<float, L> b, Vec<float, L> b_low) {
#if defined(GY_AVX512)
  using V = Vec<float, L>;
  V y;
  GY_EACH(V, i) {
    using P = typename V::P;
    if constexpr (V::bytes == 64) y.p[i] = (P)__builtin_ia32_rcp14ps512_mask((v16sf)b.p[i], v16sf{}, no_mask);
    else if constexpr (V::bytes == 32) y.p[i] = (P)__builtin_ia32_rcp14ps256_mask((v8sf)b.p[i], v8sf{}, no_mask);
    else if constexpr (V::bytes == 16) y.p[i] = (P)__builtin_ia32_rcp14ps128_mask((v4sf)b.p[i], v4sf{}, no_mask);
    else y.p[i] = __builtin_ia32_rcp14ss(v4sf{b.p[i]}, v4sf{b.p[i]})[0];
  }
  y = fma(y, fma(neg(b), y, broadcast<L>(1.0f)), y);
#else
  const auto y = reciprocal(b);
#endif
  const auto q = mul(a, y);
  return fma(fma(neg(b_low), q, fma(neg(b), q, a)), y, q);
}
template <int L> GY_FN Vec<float, L> moderate_div(Vec<float, L> a, Vec<float, L> b) {
#if defined(GY_AVX512)
  return moderate_div(a, b, broadcast<L>(0.0f));
#else
  return div(a, b);
#endif
}

// 1 / (1 + e^-x). float: 2 ulp, down to the smallest results.
template <class T, int L> GY_FN Vec<T, L> sigmoid(Vec<T, L> x) {
  const auto one = broadcast<L>(T(1));
  const auto e = exp(neg(abs(x)));
  const auto top = where(lt(x, broadcast<L>(T(0))), e, one);
  const auto below = add(one, e);
  if constexpr (own_float<T>) return moderate_div(top, below, sub(e, sub(below, one)));
  else return div(top, below);
}

// float: 2 ulp. From e^(-2|x|) - 1, whose relative accuracy near 0 carries over.
template <class T, int L> GY_FN Vec<T, L> tanh(Vec<T, L> x) {
  if constexpr (own_float<T>) {
    const auto a = raw_min(broadcast<L>(9.5f), abs(x));        // tanh is 1 beyond
    const auto parts = expm1_parts(mul(a, broadcast<L>(-2.0f)));
    const auto t = power_of_two(parts.n);
    const auto e = fma(t, parts.e, sub(t, broadcast<L>(1.0f)));
    const auto two = broadcast<L>(2.0f), below = add(two, e);
    return copysign(moderate_div(e, below, sub(e, sub(below, two))), x);
  } else return map<T>(x, tanh_one<T>);
}

// ---- logarithms -------------------------------------------------------------------------------------------------
// x = 2^k (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)), for positive x, subnormal ones too.
template <class T, int L> struct LogParts { Vec<T, L> k, f; };
template <class T, int L> GY_FN LogParts<T, L> log_parts(Vec<T, L> x) {
  using I = sint<sizeof(T)>;
  constexpr int mantissa = same<T, float> ? 23 : 52;
  constexpr T smallest_normal = same<T, float> ? T(0x1p-126) : T(0x1p-1022), up = same<T, float> ? T(0x1p24) : T(0x1p54);
  constexpr I root_half = same<T, float> ? I(0x3f3504f3) : I(0x3fe6a09e667f3bcd);
  const auto tiny = lt(x, broadcast<L>(smallest_normal));
  const auto bits = bitcast<I>(where(tiny, mul(x, broadcast<L>(up)), x));
  const auto k = rshift_by<mantissa>(sub(bits, broadcast<L>(root_half)));
  const auto m = bitcast<T>(sub(bits, lshift_by<mantissa>(k)));
  const auto power = convert<T>(k);
  return {where(tiny, sub(power, broadcast<L>(T(mantissa + (same<T, float> ? 1 : 2)))), power), sub(m, broadcast<L>(T(1)))};
}
// log(1 + f) - f for float.
template <int L> GY_FN Vec<float, L> log_tail(Vec<float, L> f) {
  const auto p = polynomial(f, -0x1.38e3b4p-4f, 0x1.0590a0p-3f, -0x1.0d89b6p-3f, 0x1.22d450p-3f, -0x1.547168p-3f,
                            0x1.99a03cp-3f, -0x1.00022ap-2f, 0x1.555554p-2f);
  const auto f2 = mul(f, f);
  return fma(mul(f, p), f2, mul(broadcast<L>(-0.5f), f2));
}
// NaN below zero, -inf at zero, x itself at +inf and NaN.
template <class T, int L> GY_FN Vec<T, L> log_edges(Vec<T, L> x, Vec<T, L> r) {
  const auto zero = broadcast<L>(T(0)), inf = broadcast<L>(infinity<T>);
  r = where(lt(x, inf), r, x);                                 // +inf and NaN
  r = where(eq(x, zero), neg(inf), r);
  return where(lt(x, zero), broadcast<L>(quiet_nan<T>), r);
}
// log for double from s = f / (2 + f): log(1 + f) = f - s (f - s^2 R(s^2)).
template <int L> GY_FN Vec<double, L> log_double(Vec<double, L> x) {
  const auto parts = log_parts(x);
  const auto f = parts.f, k = parts.k;
  const auto s = div(f, add(broadcast<L>(2.0), f));
  const auto z = mul(s, s);
  const auto r = mul(z, polynomial(z, 0x1.2f04f647763c2p-3, 0x1.39a1cf4bee076p-3, 0x1.74663db237dd1p-3, 0x1.c71c52119c7bbp-3,
                                   0x1.24924941e3616p-2, 0x1.999999997ff0ap-2, 0x1.5555555555592p-1));
  const auto half_square = mul(broadcast<L>(0.5), mul(f, f));
  // log(1+f) = f - (f^2/2 - s (f^2/2 + r)), the low part of k ln 2 added to the small terms
  const auto low = fma(s, add(half_square, r), mul(k, broadcast<L>(0x1.ef35793c76730p-45)));
  return fma(k, broadcast<L>(0x1.62e42fefa3800p-1), sub(f, sub(half_square, low)));
}
// 1 ulp.
template <class T, int L> GY_FN Vec<T, L> log(Vec<T, L> x) {
  if constexpr (own_float<T>) {
    const auto parts = log_parts(x);
    const auto tail = fma(parts.k, broadcast<L>(0x1.7f7d1cp-20f), log_tail(parts.f));
    return log_edges(x, fma(parts.k, broadcast<L>(0x1.62e4p-1f), add(parts.f, tail)));
  } else if constexpr (own_real<T>) return log_edges(x, log_double(x));
  else return map<T>(x, log_one<T>);
}
// float: 2 ulp; exact at powers of two.
template <class T, int L> GY_FN Vec<T, L> log2(Vec<T, L> x) {
  if constexpr (own_float<T>) {
    const auto parts = log_parts(x);
    const auto tail = log_tail(parts.f);
    const auto log2_e = broadcast<L>(0x1.715476p+0f), log2_e_low = broadcast<L>(0x1.4ae0cp-26f);
    const auto low = fma(parts.f, log2_e_low, mul(tail, log2_e));
    return log_edges(x, add(parts.k, fma(parts.f, log2_e, low)));
  } else return map<T>(x, log2_one<T>);
}
// float: 2 ulp.
template <class T, int L> GY_FN Vec<T, L> log10(Vec<T, L> x) {
  if constexpr (own_float<T>) {
    const auto parts = log_parts(x);
    const auto tail = log_tail(parts.f);
    const auto log10_e = broadcast<L>(0x1.bcb7b2p-2f), log10_e_low = broadcast<L>(-0x1.5b235ep-27f);
    const auto low = fma(parts.f, log10_e_low, fma(tail, log10_e, mul(parts.k, broadcast<L>(0x1.3509f8p-18f))));
    return log_edges(x, fma(parts.k, broadcast<L>(0x1.344p-2f), fma(parts.f, log10_e, low)));
  } else return map<T>(x, log10_one<T>);
}
// log(1 + x). float: 2 ulp.
template <class T, int L> GY_FN Vec<T, L> log1p(Vec<T, L> x) {
  if constexpr (own_float<T>) {
    const auto one = broadcast<L>(1.0f);
    const auto u = add(one, x);
    auto parts = log_parts(u);
    // what rounding 1 + x lost, scaled like the mantissa of u; beyond 2^24 it is below half an ulp
    const auto swapped = gt(x, one);
    const auto lost = where(swapped, sub(one, sub(u, x)), sub(x, sub(u, one)));
    const auto down = power_of_two(neg(raw_min(parts.k, broadcast<L>(60.0f))));
    parts.f = add(parts.f, mul(lost, down));
    const auto tail = fma(parts.k, broadcast<L>(0x1.7f7d1cp-20f), log_tail(parts.f));
    const auto r = fma(parts.k, broadcast<L>(0x1.62e4p-1f), add(parts.f, tail));
    return where(eq(x, broadcast<L>(0.0f)), x, log_edges(u, r));
  } else return map<T>(x, log1p_one<T>);
}

}  // namespace gy
