// The logarithm of the gamma function and its derivative.
#pragma once
#include "special.h"

namespace gy {
// ---- one value, where there are no vectors -----------------------------------------------------------------
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

// ---- by vectors --------------------------------------------------------------------------------------------
namespace part {
// log(gamma(x)) for x >= 0. From 8 on Stirling's series, below lgamma(2 + d) = d P(d), reached by multiplying up or
// down: gamma(x + 1) = x gamma(x). d, the distance from the nearest integer, is exact, and there is one logarithm.
template <class P> GY_FN P lgamma_positive(P x) {
  const P whole = round_mode<8>(x), d = x - whole;
  P product = whole == 0.0 ? x * (x + 1.0) : whole == 1.0 ? x : all<P>(1);    // to divide by: 2 + d is above x
  GY_UNROLL for (int i = 1; i <= 6; ++i) product = product * (whole >= i + 2.0 ? x - double(i) : all<P>(1));
  const P near = d * polynomial(d, 0x1.3fa11e7df6cbcp-22, -0x1.37b83e5e5ea13p-21, 0x1.e325ba61b8600p-21,
                                -0x1.090e1ee8687e3p-19, 0x1.26d7e0463b5aep-18, -0x1.3d4b2471f7264p-17,
                                0x1.57fe10be16e27p-16, -0x1.78d9102c6565dp-15, 0x1.a128276486a0ep-14,
                                -0x1.d3fd69de9ce2bp-13, 0x1.0b36ae81f3cddp-11, -0x1.38ac5bfe4d72dp-10,
                                0x1.7add6eb0210e0p-9, -0x1.e404fc21d6300p-8, 0x1.51322ac7d6fa1p-6,
                                -0x1.13e001a55755ep-4, 0x1.4a34cc4a60fa8p-2, 0x1.b0ee6072093cep-2);
  const auto far = x >= 8.0;
  const P l = log(far ? x : product), inverse = 1.0 / (far ? x : all<P>(8)), z = inverse * inverse;
  const P series = polynomial(z, -0x1.a5bf43eb94841p-10, 0x1.b5f1bc9cb6d03p-11, -0x1.380a545dc346fp-11,
                              0x1.a019f4b6dc834p-11, -0x1.6c16c169f1b01p-9, 0x1.5555555555516p-4) * inverse;
  const P stirling = fma(x - 0.5, l - 1.0, series + 0x1.acfe390c97d6ap-2);    // + (log(2 pi) - 1) / 2
  return far ? stirling : near + (whole < 2.0 ? -l : l);
}
// By reflection, with d the distance of x from the nearest integer: log|gamma(x) sin(pi d) / pi| = -lgamma(1 - x).
template <class P> GY_FN P lgamma_reflected(P x, P of_one_minus_x) {
  const P d = x - round_mode<8>(x);
  const P r = -log(abs(sin(d * 0x1.921fb54442d18p+1)) * 0x1.45f306dc9c883p-2) - of_one_minus_x;
  const auto pole = d == 0.0 | abs(x) == infinity<double>;
  return pole ? all<P>(infinity<double>) : r;
}
// For x >= 0. psi(x + 8) = psi(x) + 1/x + ... + 1/(x + 7) below 8, the reciprocals summed as one fraction; then the
// asymptotic series.
template <class P> GY_FN P digamma_positive(P x) {
  P above = all<P>(1), below = x;
  GY_UNROLL for (int i = 1; i < 8; ++i) {
    const P next = x + double(i);
    above = fma(above, next, below);
    below = below * next;
  }
  const P steps = x < 8.0 ? above / below : P{};
  x = x < 8.0 ? x + 8.0 : x;
  const P inverse = 1.0 / x, z = inverse * inverse;
  const P series = z * polynomial(z, -0x1.19d1f27ad145bp-6, 0x1.eb45a37f5125ap-8, -0x1.11032d4260896p-8,
                                  0x1.04102de96ba3dp-8, -0x1.1111110ae62afp-7, 0x1.5555555555299p-4);
  return (log(x) - fma(inverse, all<P>(0.5), series)) - steps;
}
// psi(x) = psi(1 - x) - pi / tan(pi x).
template <class P> GY_FN P digamma_reflected(P x, P of_one_minus_x) {
  const P d = x - round_mode<8>(x);
  const P r = of_one_minus_x - 0x1.921fb54442d18p+1 / tan(d * 0x1.921fb54442d18p+1);
  return d == 0.0 ? all<P>(quiet_nan<double>) : r;             // its poles
}
}  // namespace part

// For all lanes at x > 0 or 1 - x, then, if any lane needs it, reflection. Floats go through double.
#define GY_GAMMA(name, one)                                                                         \
  template <class T, int L> GY_FN Vec<T, L> name(Vec<T, L> x) {                                     \
    GY_SMALL_FLOATS(name, x)                                                                        \
    else if constexpr (!own_real<T>) return map<T>(x, [](T v) { return T(one(v)); });               \
    else if constexpr (same<T, float>) return convert<float>(name(convert<double>(x)));             \
    else {                                                                                          \
      using V = Vec<T, L>;                                                                          \
      const auto below = lt(x, broadcast<L>(0.0));                                                  \
      const auto y = where(below, sub(broadcast<L>(1.0), x), x);                                    \
      V r;                                                                                          \
      GY_EACH(V, r.p[i] = part::name##_positive(y.p[i]);)                                           \
      if (any(below)) {                                                                             \
        V reflected;                                                                                \
        GY_EACH(V, reflected.p[i] = part::name##_reflected(x.p[i], r.p[i]);)                        \
        r = where(below, reflected, r);                                                             \
      }                                                                                             \
      return r;                                                                                     \
    }                                                                                               \
  }
GY_GAMMA(lgamma, lgamma_one) GY_GAMMA(digamma, digamma_one)
#undef GY_GAMMA

}  // namespace gy
