// The logarithm of the gamma function and its derivative.
#pragma once
#include "special.h"

namespace gy {
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
template <class T, int L> GY_FN Vec<T, L> digamma(Vec<T, L> x) {
  GY_SMALL_FLOATS(digamma, x)
  else return map<T>(x, [](T v) { return T(digamma_one(v)); });
}
template <class T, int L> GY_FN Vec<T, L> lgamma(Vec<T, L> x) {
  GY_SMALL_FLOATS(lgamma, x)
  else return map<T>(x, [](T v) { return T(lgamma_one(v)); });
}

}  // namespace gy
