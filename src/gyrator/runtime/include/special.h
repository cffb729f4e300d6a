// Powers, the error function and its relatives, gamma, and neighbours of floats.
#pragma once
#include "trig.h"

namespace gy {
namespace part {

// float: 1.3 ulp. Below 1 an odd polynomial; above, 1 - e^q(|x|) with q fitted to log(erfc).
template <class P> GY_FN P erf(P x) {
  const P a = min(all<P>(3.92f), abs(x)), z = a * a;           // erf rounds to 1 from 3.92 on
  const P inner = fma(polynomial(z, 0x1.4771fep-14f, -0x1.a3515ep-11f, 0x1.53f224p-8f, -0x1.b7f71ap-6f,
                                 0x1.ce2ce6p-4f, -0x1.81273ep-2f, 0x1.06eba8p-3f),
                      a, a);
  const P q = polynomial(a, 0x1.86de82p-13f, -0x1.825b7ap-9f, 0x1.65cba4p-6f, -0x1.a6534ep-4f,
                         -0x1.46baecp-1f, -0x1.2088eap+0f, -0x1.6622b0p-12f);
  // e^q to the accuracy that 1 - e^q needs; q is in [-17.2, -1.8] wherever this branch is used
  const auto n = round_to_integer(q, 0x1.715476p+0f);
  const P r = fma(n.value, all<P>(-0x1.62e430p-1f), q);
  const P p = polynomial(r, 0x1.0a3876p-7f, 0x1.5730b0p-5f, 0x1.556186p-3f, 0x1.fffdfcp-2f, 1.0f, 1.0f);
  const P outer = fma(-p, power_of_two<P>(n.integer), all<P>(1));
  return copysign(a < 1.0f ? inner : outer, x);
}

}  // namespace part

namespace part {
// float: 2.4 ulp. erfinv(x)/x as a polynomial of w = -log(1 - x^2), from 5 on of its root (the variables of Giles 2010).
template <class P> GY_FN P erfinv(P x) {
  const P w = -log(fma(-x, x, all<P>(1))), s = sqrt(w);
  const P inner = polynomial(w, 0x1.0f810cp-33f, -0x1.96fd94p-29f, 0x1.641ad8p-26f, 0x1.15b9f4p-24f,
                             -0x1.976068p-20f, 0x1.bf17e8p-19f, 0x1.75df8ap-15f, -0x1.087cfep-13f,
                             -0x1.3234p-9f, 0x1.7a754ep-7f, 0x1.db29f8p-3f, 0x1.c5bf8ap-1f);
  const P outer = polynomial(s - 0x1.943a76p+1f, 0x1.e2a1bap-14f, -0x1.30dbf8p-13f,
                             -0x1.673ba4p-12f, 0x1.46579cp-10f, -0x1.2ac8dap-9f, 0x1.bb12ccp-9f,
                             -0x1.3c4728p-8f, 0x1.ad2778p-8f, 0x1.01112p+0f, 0x1.7ee8f6p+1f);
  return abs(x) == 1.0f ? x * infinity<float> : x * (w < 5.0f ? inner : outer);
}
}  // namespace part

GY_MATH(erf, own_float)
// The library for each lane, in double: its float version is 3 ulp off.
template <class T, int L> GY_FN Vec<T, L> erfc(Vec<T, L> x) {
  GY_SMALL_FLOATS(erfc, x)
  else return map<T>(x, [](T v) { return T(__builtin_erfc(v)); });
}

// ---- powers -----------------------------------------------------------------------------------------------
// An integer to an integer power, wrapping. A negative power of anything but 1 and -1 is 0, as torch.
template <class T> inline T integer_pow(T base, T exponent) {
  using U = uint<(sizeof(T) < 4 ? 4 : sizeof(T))>;             // narrower ones would be promoted to int
  if constexpr (is_signed<T>) {
    if (exponent < T(0))
      return base == T(1) ? T(1) : base == T(-1) ? (exponent % 2 != 0 ? T(-1) : T(1)) : T(0);
  }
  U r = 1, b = U(base);
  for (auto e = wrap<T>(exponent); e != 0; e = wrap<T>(e >> 1)) {
    if (e & 1) r *= b;
    b *= b;
  }
  return T(r);
}
// x^y. float: 0.51 ulp, by exp and log in double; C's rules for zeros, infinities and NaN.
template <class T, int L> GY_FN Vec<T, L> pow(Vec<T, L> x, Vec<T, L> y) {
  GY_SMALL_FLOATS(pow, x, y)
  else if constexpr (is_int<T>) return map<T>(x, y, integer_pow<T>);
  else if constexpr (own_float<T>) {
    const auto zero = broadcast<L>(0.0f), one = broadcast<L>(1.0f), size = abs(x);
    auto r = convert<float>(exp(mul(convert<double>(y), log(convert<double>(size)))));
    const auto half = mul(y, broadcast<L>(0.5f));
    const auto whole = eq(floor(y), y), odd = logical_and(whole, ne(floor(half), half));
    r = where(logical_and(signbit(x), odd), neg(r), r);
    const auto negative = logical_and(lt(x, zero), isfinite(x));
    r = where(logical_and(negative, logical_not(whole)), broadcast<L>(quiet_nan<float>), r);
    const auto is_one = logical_or(logical_or(eq(y, zero), eq(x, one)), logical_and(eq(size, one), isinf(y)));
    return where(is_one, one, r);
  }
  else return map<T>(
      x, y, [](T a, T b) { return same<T, float> ? T(__builtin_powf(a, b)) : T(__builtin_pow(a, b)); });
}

// sqrt(x^2 + y^2) without overflow between. float: 0.51 ulp.
template <class T, int L> GY_FN Vec<T, L> hypot(Vec<T, L> x, Vec<T, L> y) {
  GY_SMALL_FLOATS(hypot, x, y)
  else if constexpr (own_float<T>) {
    const auto a = convert<double>(x), b = convert<double>(y);
    const auto r = convert<float>(sqrt(fma(a, a, mul(b, b))));
    return where(logical_or(isinf(x), isinf(y)), broadcast<L>(infinity<float>), r);
  } else {
    return map<T>(
        x, y, [](T a, T b) { return same<T, float> ? T(__builtin_hypotf(a, b)) : T(__builtin_hypot(a, b)); });
  }
}

// ---- one value at a time, in double -----------------------------------------------------------------------
// Winitzki's approximation, then two steps of Halley's method on erf, or on erfc near the ends.
inline double erfinv_one(double x) {
  const double a = __builtin_fabs(x);
  if (!(a < 1.0)) return a == 1.0 ? x * infinity<double> : quiet_nan<double>;
  if (a == 0.0) return x;
  const double l = __builtin_log1p(-a * a), t = 4.330746750799873 + 0.5 * l;
  double y = __builtin_sqrt(__builtin_sqrt(t * t - l * 6.802721088435374) - t);
  if (a < 1e-8) y = a * 0.886226925452758;
  for (int i = 0; i < 2; ++i) {
    const double error = a < 0.5 ? __builtin_erf(y) - a : (1.0 - a) - __builtin_erfc(y);
    const double step = error / (1.1283791670955126 * __builtin_exp(-y * y));
    y -= step / (1.0 + y * step);
  }
  return __builtin_copysign(y, x);
}
// Recurrence up to 10, then the asymptotic series; the reflection formula below 0.
inline double digamma_one(double x) {
  if (x == 0.0) return __builtin_copysign(infinity<double>, -x);
  double r = 0.0;
  if (x < 0.0) {
    const double whole = __builtin_rint(x);
    if (whole == x) return quiet_nan<double>;
    r = -3.141592653589793 / __builtin_tan(3.141592653589793 * (x - whole));
    x = 1.0 - x;
  }
  for (; x < 10.0; x += 1.0) r -= 1.0 / x;
  const double z = 1.0 / (x * x);
  const double series =
      ((((((z * (1.0 / 12) - 691.0 / 32760) * z + 1.0 / 132) * z - 1.0 / 240) * z + 1.0 / 252) * z -
        1.0 / 120) *
           z +
       1.0 / 12) *
      z;
  return r + __builtin_log(x) - 0.5 / x - series;
}
inline double lgamma_one(double x) {
  int sign;
  return __builtin_lgamma_r(x, &sign);
}
template <class T, int L> GY_FN Vec<T, L> erfinv(Vec<T, L> x) {
  GY_SMALL_FLOATS(erfinv, x)
  else if constexpr (own_float<T>) {
    using V = Vec<T, L>;
    GY_EACH(V, x.p[i] = part::erfinv(x.p[i]);)
    return x;
  } else return map<T>(x, [](T v) { return T(erfinv_one(v)); });
}
template <class T, int L> GY_FN Vec<T, L> digamma(Vec<T, L> x) {
  GY_SMALL_FLOATS(digamma, x)
  else return map<T>(x, [](T v) { return T(digamma_one(v)); });
}
template <class T, int L> GY_FN Vec<T, L> lgamma(Vec<T, L> x) {
  GY_SMALL_FLOATS(lgamma, x)
  else return map<T>(x, [](T v) { return T(lgamma_one(v)); });
}

// ---- neighbours -------------------------------------------------------------------------------------------
// The next float after x in the direction of y.
template <class T, int L> GY_FN Vec<T, L> nextafter(Vec<T, L> x, Vec<T, L> y) {
  using I = sint<sizeof(T)>;
  const auto zero = broadcast<L>(T(0)), one = broadcast<L>(I(1));
  const auto grows = eq(lt(x, y), gt(x, zero));                // away from zero
  const auto b = bitcast<I>(x);
  auto r = bitcast<T>(where(grows, add(b, one), sub(b, one)));
  r = where(eq(x, zero), copysign(bitcast<T>(one), y), r);
  r = where(eq(x, y), y, r);
  return where(logical_or(isnan(x), isnan(y)), add(x, y), r);
}

}  // namespace gy
