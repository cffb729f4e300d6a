// Trigonometric and hyperbolic functions and their inverses. Our algorithms serve float; double calls the
// library.
#pragma once
#include "elementary.h"

namespace gy {
namespace part {

// ---- sine, cosine, tangent --------------------------------------------------------------------------------
// x = k pi/2 + r with |r| <= pi/4; three constants keep r accurate for |x| up to 1e5.
template <class P> struct Quadrant { P r; Bits<P> k; };
template <class P> GY_FN Quadrant<P> quadrant(P x) {
  const auto k = round_to_integer(x, 0x1.45f306p-1f);
  P r = fma(k.value, all<P>(-0x1.921fb6p+0f), x);
  r = fma(k.value, all<P>(0x1.777a5cp-25f), r);
  r = fma(k.value, all<P>(0x1.ee59dap-50f), r);
  return {r, k.integer};
}
template <class P> GY_FN P sin_small(P r, P z) {
  return fma(polynomial(z, -0x1.995402p-13f, 0x1.110778p-7f, -0x1.555546p-3f), z * r, r);
}
template <class P> GY_FN P cos_small(P z) {
  return fma(polynomial(z, 0x1.99e80cp-16f, -0x1.6c0c28p-10f, 0x1.55554ap-5f), z * z,
             fma(z, all<P>(-0.5f), all<P>(1)));
}
// The sine of (k + Shift) pi/2 + r.
template <int Shift, class P> GY_FN P sin_quadrant(Quadrant<P> q) {
  const P z = q.r * q.r;
  const Bits<P> k = q.k + Shift;
  const P value = (k & 1) != 0 ? cos_small(z) : sin_small(q.r, z);
  return from_bits<P>(bits(value) ^ shift_left<P>(k & 2, 30));
}
// float: 1.6 ulp for |x| < 1e5.
template <class P> GY_FN P sin(P x) { return x == 0.0f ? x : sin_quadrant<0>(quadrant(x)); }
template <class P> GY_FN P cos(P x) { return sin_quadrant<1>(quadrant(x)); }
// float: 3.5 ulp for |x| < 1e5.
template <class P> GY_FN P tan(P x) {
  const auto q = quadrant(x);
  const P z = q.r * q.r, s = sin_small(q.r, z), c = cos_small(z);
  return x == 0.0f ? x : ((q.k & 1) != 0 ? -c : s) / ((q.k & 1) != 0 ? s : c);
}

// ---- inverse functions ------------------------------------------------------------------------------------
// asin on [0, 1/2], given x and x^2.
template <class P> GY_FN P asin_small(P x, P z) {
  return fma(polynomial(z, 0x1.595c32p-5f, 0x1.8c3e5cp-6f, 0x1.747bb8p-5f, 0x1.330204p-4f, 0x1.5555c8p-3f),
             z * x, x);
}
// float: 2.4 ulp. Beyond 1/2: pi/2 - 2 asin(sqrt((1 - x) / 2)).
template <class P> GY_FN P asin(P x) {
  const P a = abs(x), half = fma(a, all<P>(-0.5f), all<P>(0.5f));
  const P z = a > 0.5f ? half : a * a, y = a > 0.5f ? sqrt(half) : a, s = asin_small(y, z);
  return copysign(a > 0.5f ? 0x1.921fb6p+0f - (s + s + 0x1.777a5cp-25f) : s, x);
}
// float: 1.2 ulp.
template <class P> GY_FN P acos(P x) {
  const P a = abs(x), half = fma(a, all<P>(-0.5f), all<P>(0.5f));
  const P z = a > 0.5f ? half : x * x, y = a > 0.5f ? sqrt(half) : x, s = asin_small(y, z);
  const P outer = x < 0.0f ? 0x1.921fb6p+1f - (s + s + 0x1.777a5cp-24f) : s + s;
  return a > 0.5f ? outer : 0x1.921fb6p+0f - (s + 0x1.777a5cp-25f);
}
// atan on [0, 1].
template <class P> GY_FN P atan_unit(P x) {
  const P z = x * x;
  return fma(polynomial(z, -0x1.d4dcf8p-10f, 0x1.64b0fap-7f, -0x1.fdc6dcp-6f, 0x1.da39bep-5f, -0x1.580a34p-4f,
                        0x1.c08c46p-4f, -0x1.242086p-3f, 0x1.9991e4p-3f, -0x1.55553ep-2f), z * x, x);
}
// float: 1.4 ulp.
template <class P> GY_FN P atan(P x) {
  const P a = abs(x), t = atan_unit(a > 1.0f ? 1.0f / a : a);
  return copysign(a > 1.0f ? 0x1.921fb6p+0f - (t + 0x1.777a5cp-25f) : t, x);
}
// float: 1.6 ulp. The angle of the point (x, y).
template <class P> GY_FN P atan2(P y, P x) {
  const P ax = abs(x), ay = abs(y), low = ay < ax ? ay : ax, high = ay < ax ? ax : ay;
  P t = low / high;
  t = low == high ? (high == 0.0f ? low : all<P>(1)) : t;      // 0/0 and inf/inf
  const P a = atan_unit(t);
  P r = ay > ax ? 0x1.921fb6p+0f - (a + 0x1.777a5cp-25f) : a;
  r = bits(x) < 0 ? 0x1.921fb6p+1f - (r + 0x1.777a5cp-24f) : r;
  r = copysign(r, y);
  return (x == x ? y : x) != (x == x ? y : x) ? x + y : r;     // NaN if either is
}

// ---- hyperbolic -------------------------------------------------------------------------------------------
// float: sinh 1.7 ulp, cosh 1.4 ulp.
template <class P> GY_FN P sinh(P x) {
  const P a = abs(x), z = a * a;
  const P small =
      fma(polynomial(z, 0x1.756c14p-19f, 0x1.a022bcp-13f, 0x1.1110e0p-7f, 0x1.555556p-3f), z * a, a);
  const P h = exp_in_range<-1>(min(all<P>(90), a));
  return copysign(a < 1.0f ? small : h - 0.25f / h, x);
}
template <class P> GY_FN P cosh(P x) {
  const P h = exp_in_range<-1>(min(all<P>(90), abs(x)));
  return h + 0.25f / h;
}
// float: asinh 1.9 ulp, acosh 2 ulp, atanh 2.2 ulp.
template <class P> GY_FN P asinh(P x) {
  const P a = abs(x), z = a * a;
  const P far = log(a) + 0x1.62e430p-1f;
  const P near = log1p(a + z / (sqrt(z + 1.0f) + 1.0f));
  return copysign(a > 1e9f ? far : near, x);
}
template <class P> GY_FN P acosh(P x) {
  const P t = x - 1.0f;
  const P near = log1p(t + sqrt(fma(t, t, t + t)));
  const P r = x > 1e9f ? log(x) + 0x1.62e430p-1f : near;
  return x < 1.0f ? all<P>(quiet_nan<float>) : r;
}
template <class P> GY_FN P atanh(P x) {
  const P a = abs(x);
  return copysign(log1p((a + a) / (1.0f - a)) * 0.5f, x);
}

}  // namespace part

// Arguments beyond 1e5 go to the library, each lane on its own.
#define GY_PERIODIC(name)                                                                          \
  template <class T, int L> GY_FN Vec<T, L> name(Vec<T, L> x) {                                    \
    GY_SMALL_FLOATS(name, x)                                                                       \
    else if constexpr (own_float<T>) {                                                             \
      const auto far = logical_not(lt(abs(x), broadcast<L>(1e5f)));                                \
      auto r = x;                                                                                  \
      using V = Vec<T, L>;                                                                         \
      GY_EACH(V, r.p[i] = part::name(x.p[i]);)                                                     \
      if (__builtin_expect(any(far), 0)) r = where(far, map<T>(x, libm::name<T>), r);              \
      return r;                                                                                    \
    } else return map<T>(x, libm::name<T>);                                                        \
  }
GY_PERIODIC(sin) GY_PERIODIC(cos) GY_PERIODIC(tan)
GY_MATH(asin, own_float) GY_MATH(acos, own_float) GY_MATH(atan, own_float)
GY_MATH(sinh, own_float) GY_MATH(cosh, own_float)
GY_MATH(asinh, own_float) GY_MATH(acosh, own_float) GY_MATH(atanh, own_float)

template <class T, int L> GY_FN Vec<T, L> atan2(Vec<T, L> y, Vec<T, L> x) {
  GY_SMALL_FLOATS(atan2, y, x)
  else if constexpr (own_float<T>) {
    using V = Vec<T, L>;
    GY_EACH(V, y.p[i] = part::atan2(y.p[i], x.p[i]);)
    return y;
  } else {
    return map<T>(
        y, x, [](T b, T a) { return same<T, float> ? T(__builtin_atan2f(b, a)) : T(__builtin_atan2(b, a)); });
  }
}

}  // namespace gy
