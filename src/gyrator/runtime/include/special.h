// The error function and its relatives.
#pragma once
#include "elementary.h"

namespace gy {
namespace part {

// float: 2 ulp. Below 1 an odd polynomial; above, 1 - e^q(|x|) with q fitted to log(erfc).
template <class P> GY_FN P erf(P x) {
  const P a = min(all<P>(3.92f), abs(x)), z = a * a;           // erf rounds to 1 from 3.92 on
  const P inner = fma(polynomial(z, 0x1.4771fep-14f, -0x1.a3515ep-11f, 0x1.53f224p-8f, -0x1.b7f71ap-6f, 0x1.ce2ce6p-4f,
                                 -0x1.81273ep-2f, 0x1.06eba8p-3f), a, a);
  const P q = polynomial(a, 0x1.86de82p-13f, -0x1.825b7ap-9f, 0x1.65cba4p-6f, -0x1.a6534ep-4f, -0x1.46baecp-1f,
                         -0x1.2088eap+0f, -0x1.6622b0p-12f);
  // e^q to the accuracy that 1 - e^q needs; q is in [-17.2, -1.8] wherever this branch is used
  const auto n = round_to_integer(q, 0x1.715476p+0f);
  const P r = fma(n.value, all<P>(-0x1.62e430p-1f), q);
  const P p = polynomial(r, 0x1.0a3876p-7f, 0x1.5730b0p-5f, 0x1.556186p-3f, 0x1.fffdfcp-2f, 1.0f, 1.0f);
  const P outer = fma(-p, power_of_two<P>(n.integer), all<P>(1));
  return copysign(a < 1.0f ? inner : outer, x);
}

}  // namespace part

GY_MATH(erf, own_float)

}  // namespace gy
