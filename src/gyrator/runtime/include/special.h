// The error function and its relatives.
#pragma once
#include "elementary.h"

namespace gy {

// float: 2 ulp. Below 1 an odd polynomial; above, 1 - e^q(|x|) with q fitted to log(erfc).
template <class T, int L> GY_FN Vec<T, L> erf(Vec<T, L> x) {
  if constexpr (own_float<T>) {
    const auto a = raw_min(broadcast<L>(3.92f), abs(x));       // erf rounds to 1 from here on
    const auto z = mul(a, a);
    const auto inner = fma(polynomial(z, 0x1.4771fep-14f, -0x1.a3515ep-11f, 0x1.53f224p-8f, -0x1.b7f71ap-6f, 0x1.ce2ce6p-4f,
                                      -0x1.81273ep-2f, 0x1.06eba8p-3f), a, a);
    const auto q = polynomial(a, 0x1.86de82p-13f, -0x1.825b7ap-9f, 0x1.65cba4p-6f, -0x1.a6534ep-4f, -0x1.46baecp-1f,
                              -0x1.2088eap+0f, -0x1.6622b0p-12f);
    // e^q without its guards: q is in [-17.2, -1.8] wherever it is used
    const auto n = round(mul(q, broadcast<L>(0x1.715476p+0f)));
    const auto r = fma(n, broadcast<L>(-0x1.62e430p-1f), q);
    const auto p = polynomial(r, 0x1.0a3876p-7f, 0x1.5730b0p-5f, 0x1.556186p-3f, 0x1.fffdfcp-2f, 1.0f, 1.0f);
    const auto outer = fma(neg(p), power_of_two(n), broadcast<L>(1.0f));
    return copysign(where(lt(a, broadcast<L>(1.0f)), inner, outer), x);
  } else {
    return map<T>(x, [](T v) { return same<T, float> ? T(__builtin_erff(v)) : T(__builtin_erf(v)); });
  }
}

}  // namespace gy
