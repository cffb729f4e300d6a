// Trigonometric and hyperbolic functions and their inverses.
#pragma once
#include "elementary.h"

namespace gy {
namespace part {

// ---- sine, cosine, tangent --------------------------------------------------------------------------------
// x = k pi/2 + r + low with |r| <= pi/4. float: three constants keep r accurate for |x| up to 1e5. double: the first
// product cancels without rounding; what is lost with the second one is kept, for |x| up to 1e9.
template <class P> constexpr element<P> periodic_end = of_float<P> ? element<P>(1e5) : element<P>(1e9);
template <class P> struct Quadrant { P r, low; Bits<P> k; };
template <class P> GY_FN Quadrant<P> quadrant(P x) {
  if constexpr (of_float<P>) {
    const auto k = round_to_integer(x, 0x1.45f306p-1f);
    P r = fma(k.value, all<P>(-0x1.921fb6p+0f), x);
    r = fma(k.value, all<P>(0x1.777a5cp-25f), r);
    r = fma(k.value, all<P>(0x1.ee59dap-50f), r);
    return {r, P{}, k.integer};
  } else {
    const auto k = round_to_integer(x, 0x1.45f306dc9c883p-1);
    const P exact = fma(k.value, all<P>(-0x1.921fb54442d18p+0), x), second = all<P>(0x1.1a62633145c07p-54);
    const P product = k.value * second, r = exact - product;
    const P lost = ((exact - r) - product) - fma(k.value, second, -product);
    const P low = fma(k.value, all<P>(0x1.f1976b7ed8fbcp-110), lost);
    return {r + low, low - ((r + low) - r), k.integer};        // near multiples of pi/2, low is as large as r
  }
}
// sin(r + low), cos(r + low), given z = r^2.
template <class P> GY_FN P sin_small(P r, P low, P z) {
  if constexpr (of_float<P>)
    return fma(polynomial(z, -0x1.995402p-13f, 0x1.110778p-7f, -0x1.555546p-3f), z * r, r);
  else {
    const P p = polynomial(z, 0x1.5d8a8943b83a2p-33, -0x1.ae5e49125325fp-26, 0x1.71de35528e1a7p-19,
                           -0x1.a01a019be6e11p-13, 0x1.111111110f726p-7, -0x1.5555555555548p-3);
    return r + fma(p, z * r, fma(z * -0.5, low, low));
  }
}
template <class P> GY_FN P cos_small(P r, P low, P z) {
  if constexpr (of_float<P>)
    return fma(polynomial(z, 0x1.99e80cp-16f, -0x1.6c0c28p-10f, 0x1.55554ap-5f), z * z,
               fma(z, all<P>(-0.5f), all<P>(1)));
  else {
    const P p = polynomial(z, -0x1.8fa67abd4472dp-37, 0x1.1ee9dbbe74e05p-29, -0x1.27e4f7f17eccbp-22,
                           0x1.a01a019c8f17ap-16, -0x1.6c16c16c15015p-10, 0x1.555555555554bp-5);
    const P half = z * 0.5, near = 1.0 - half;
    return near + (((1.0 - near) - half) + fma(p, z * z, -r * low));
  }
}
// The sine of (k + Shift) pi/2 + r.
template <int Shift, class P> GY_FN P sin_quadrant(Quadrant<P> q) {
  const P z = q.r * q.r;
  const Bits<P> k = q.k + Shift;
  const P value = (k & 1) != 0 ? cos_small(q.r, q.low, z) : sin_small(q.r, q.low, z);
  return from_bits<P>(bits(value) ^ shift_left<P>(k & 2, of_float<P> ? 30 : 62));
}
// float: 1.6 ulp for |x| < 1e5; double: 1 ulp for |x| < 1e9.
template <class P> GY_FN P sin(P x) { return x == element<P>(0) ? x : sin_quadrant<0>(quadrant(x)); }
template <class P> GY_FN P cos(P x) { return sin_quadrant<1>(quadrant(x)); }
// float: 3.5 ulp for |x| < 1e5; double: 2.2 ulp for |x| < 1e9.
template <class P> GY_FN P tan(P x) {
  const auto q = quadrant(x);
  const P z = q.r * q.r, s = sin_small(q.r, q.low, z), c = cos_small(q.r, q.low, z);
  const auto odd = (q.k & 1) != 0;
  return x == element<P>(0) ? x : (odd ? -c : s) / (odd ? s : c);
}

// ---- inverse functions ------------------------------------------------------------------------------------
// asin(x) - x on [0, 1/2], given x and x^2.
template <class P> GY_FN P asin_rest(P x, P z) {
  if constexpr (of_float<P>)
    return polynomial(z, 0x1.595c32p-5f, 0x1.8c3e5cp-6f, 0x1.747bb8p-5f, 0x1.330204p-4f, 0x1.5555c8p-3f) * (z * x);
  else
    return polynomial(z, 0x1.0b50d813a99f1p-5, -0x1.581c6db6023d8p-6, 0x1.63b1412521df1p-6, 0x1.e5b4f82d2ddc8p-9,
                      0x1.614088c4d9d36p-7, 0x1.7584e2a9d5554p-7, 0x1.ca1f9fb43c43bp-7, 0x1.1c49efb4f5c4cp-6,
                      0x1.6e8bdee7c8925p-6, 0x1.f1c71a94c2440p-6, 0x1.6db6db7212acep-5, 0x1.333333332e130p-4,
                      0x1.5555555555577p-3) * (z * x);
}
// pi/2 in two parts.
template <class P> constexpr element<P> half_pi = of_float<P> ? element<P>(0x1.921fb6p+0f)
                                                              : element<P>(0x1.921fb54442d18p+0);
template <class P> constexpr element<P> half_pi_low = of_float<P> ? element<P>(-0x1.777a5cp-25f)
                                                                  : element<P>(0x1.1a62633145c07p-54);
// asin(|x|) = y + rest up to 1/2; beyond, pi/2 - 2 (y + rest), where y is the root of (1 - |x|) / 2.
template <class P> struct AsinParts { P y, rest; };
template <class P> GY_FN AsinParts<P> asin_parts(P a) {
  using T = element<P>;
  const P half = fma(a, all<P>(T(-0.5)), all<P>(T(0.5))), root = sqrt(half);
  const P z = a > T(0.5) ? half : a * a, y = a > T(0.5) ? root : a;
  P rest = asin_rest(y, z);
  if constexpr (!of_float<P>) {                                // what the root's rounding lost
    const P lost = moderate_div(fma(-root, root, half), root + root, P{});
    rest = rest + (a > 0.5 & a < 1.0 ? lost : P{});
  }
  return {y, rest};
}
// a - b - c for a >= b >= 0, of which c is much smaller.
template <class P> GY_FN P subtract_both(P a, P b, P c) {
  const P d = a - b;
  return of_float<P> ? a - (b + c) : d + (((a - d) - b) - c);
}
// float: 2.4 ulp; double: 1 ulp.
template <class P> GY_FN P asin(P x) {
  using T = element<P>;
  const P a = abs(x);
  const auto [y, rest] = asin_parts(a);
  const P far = subtract_both(all<P>(half_pi<P>), y + y, rest + rest - half_pi_low<P>);
  return copysign(a > T(0.5) ? far : y + rest, x);
}
// float: 1.2 ulp; double: 1 ulp.
template <class P> GY_FN P acos(P x) {
  using T = element<P>;
  const P a = abs(x);
  const auto [y, rest] = asin_parts(a);
  const P twice = rest + rest, low = all<P>(half_pi_low<P>);
  const P outer = x < T(0) ? subtract_both(all<P>(2 * half_pi<P>), y + y, twice - 2 * low) : y + y + twice;
  const P inner = subtract_both(all<P>(half_pi<P>), x, copysign(rest, x) - low);
  return a > T(0.5) ? outer : inner;
}
// atan on [0, 1].
template <class P> GY_FN P atan_unit(P x) {
  const P z = x * x;
  if constexpr (of_float<P>)
    return fma(polynomial(z, -0x1.d4dcf8p-10f, 0x1.64b0fap-7f, -0x1.fdc6dcp-6f, 0x1.da39bep-5f, -0x1.580a34p-4f,
                          0x1.c08c46p-4f, -0x1.242086p-3f, 0x1.9991e4p-3f, -0x1.55553ep-2f), z * x, x);
  else
    return fma(polynomial(z, -0x1.2281c0880d63ep-17, 0x1.b3d7e423fb0cap-14, -0x1.36f659bbbdc37p-11,
                          0x1.1a1b90ff766dcp-9, -0x1.6feb9eefc4365p-8, 0x1.72f1ede9b987bp-7, -0x1.3107b81b499a4p-6,
                          0x1.ac85ab9b7c6bfp-6, -0x1.0c992f823a3c9p-5, 0x1.3907643136fcap-5, -0x1.5f2595ceaccc7p-5,
                          0x1.84b4da4964ac1p-5, -0x1.aeda7a54f1fb8p-5, 0x1.e1d490328aeeap-5, -0x1.1110333057833p-4,
                          0x1.3b139be7fae37p-4, -0x1.745d15d27f14ap-4, 0x1.c71c71b64d626p-4, -0x1.24924924575e5p-3,
                          0x1.9999999998c63p-3, -0x1.555555555554dp-2), z * x, x);
}
// 1.5 ulp.
template <class P> GY_FN P atan(P x) {
  using T = element<P>;
  const P a = abs(x), t = atan_unit(a > T(1) ? T(1) / a : a);
  return copysign(a > T(1) ? half_pi<P> - (t - half_pi_low<P>) : t, x);
}
// 1.6 ulp. The angle of the point (x, y).
template <class P> GY_FN P atan2(P y, P x) {
  using T = element<P>;
  const P ax = abs(x), ay = abs(y), low = ay < ax ? ay : ax, high = ay < ax ? ax : ay;
  P t = low / high;
  t = low == high ? (high == T(0) ? low : all<P>(1)) : t;      // 0/0 and inf/inf
  const P a = atan_unit(t);
  P r = ay > ax ? half_pi<P> - (a - half_pi_low<P>) : a;
  r = bits(x) < 0 ? 2 * half_pi<P> - (r - 2 * half_pi_low<P>) : r;
  r = copysign(r, y);
  return (x == x ? y : x) != (x == x ? y : x) ? x + y : r;     // NaN if either is
}

// ---- hyperbolic -------------------------------------------------------------------------------------------
// e^|x| / 2, which overflows no earlier than what is made of it.
template <class P> GY_FN P half_exp(P x) {
  return exp_in_range<-1>(min(all<P>(of_float<P> ? element<P>(90) : element<P>(715)), abs(x)));
}
// sinh 1.7 ulp, cosh 1.4 ulp.
template <class P> GY_FN P sinh(P x) {
  using T = element<P>;
  const P a = abs(x), z = a * a, h = half_exp(x);
  P p;
  if constexpr (of_float<P>)
    p = polynomial(z, 0x1.756c14p-19f, 0x1.a022bcp-13f, 0x1.1110e0p-7f, 0x1.555556p-3f);
  else
    p = polynomial(z, 0x1.b5cc41e819dffp-41, 0x1.6116eb57b8e57p-33, 0x1.ae647005ee805p-26, 0x1.71de3a3af9b97p-19,
                   0x1.a01a01a0372dcp-13, 0x1.111111111101ep-7, 0x1.5555555555556p-3);
  return copysign(a < T(1) ? fma(p, z * a, a) : h - T(0.25) / h, x);
}
template <class P> GY_FN P cosh(P x) {
  const P h = half_exp(x);
  return h + element<P>(0.25) / h;
}
// asinh 1.9 ulp, acosh 2 ulp, atanh 2.2 ulp.
template <class P> constexpr element<P> ln_two = of_float<P> ? element<P>(0x1.62e430p-1f)
                                                             : element<P>(0x1.62e42fefa39efp-1);
template <class P> GY_FN P asinh(P x) {
  using T = element<P>;
  const P a = abs(x), z = a * a, big = log(a) + ln_two<P>;
  const P near = log1p(a + z / (sqrt(z + T(1)) + T(1)));
  return copysign(a > T(1e9) ? big : near, x);
}
template <class P> GY_FN P acosh(P x) {
  using T = element<P>;
  const P t = x - T(1);
  const P near = log1p(t + sqrt(fma(t, t, t + t)));
  const P r = x > T(1e9) ? log(x) + ln_two<P> : near;
  return x < T(1) ? all<P>(quiet_nan<T>) : r;
}
template <class P> GY_FN P atanh(P x) {
  using T = element<P>;
  const P a = abs(x);
  return copysign(log1p((a + a) / (T(1) - a)) * T(0.5), x);
}

}  // namespace part

// Arguments beyond 1e5 (double: 1e9) go to the library, each lane on its own.
#define GY_PERIODIC(name)                                                                          \
  template <class T, int L> GY_FN Vec<T, L> name(Vec<T, L> x) {                                    \
    GY_SMALL_FLOATS(name, x)                                                                       \
    else if constexpr (own_real<T>) {                                                             \
      const auto far = logical_not(lt(abs(x), broadcast<L>(part::periodic_end<T>)));                                \
      auto r = x;                                                                                  \
      using V = Vec<T, L>;                                                                         \
      GY_EACH(V, r.p[i] = part::name(x.p[i]);)                                                     \
      if (__builtin_expect(any(far), 0)) r = where(far, map<T>(x, libm::name<T>), r);              \
      return r;                                                                                    \
    } else return map<T>(x, libm::name<T>);                                                        \
  }
GY_PERIODIC(sin) GY_PERIODIC(cos) GY_PERIODIC(tan)
GY_MATH(asin, own_real) GY_MATH(acos, own_real) GY_MATH(atan, own_real)
GY_MATH(sinh, own_real) GY_MATH(cosh, own_real)
GY_MATH(asinh, own_real) GY_MATH(acosh, own_real) GY_MATH(atanh, own_real)

template <class T, int L> GY_FN Vec<T, L> atan2(Vec<T, L> y, Vec<T, L> x) {
  GY_SMALL_FLOATS(atan2, y, x)
  else if constexpr (own_real<T>) {
    using V = Vec<T, L>;
    GY_EACH(V, y.p[i] = part::atan2(y.p[i], x.p[i]);)
    return y;
  } else {
    return map<T>(
        y, x, [](T b, T a) { return same<T, float> ? T(__builtin_atan2f(b, a)) : T(__builtin_atan2(b, a)); });
  }
}

}  // namespace gy
