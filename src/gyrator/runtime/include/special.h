// Powers, the error function and its relatives, and neighbours of floats. gamma.h has the gamma function's.
#pragma once
#include "trig.h"

namespace gy {
namespace part {

// ---- error function ---------------------------------------------------------------------------------------
// erf on [-1, 1].
template <class P> GY_FN P erf_small(P x) {
  const P z = x * x;
  if constexpr (of_float<P>)
    return fma(polynomial(z, 0x1.4771fep-14f, -0x1.a3515ep-11f, 0x1.53f224p-8f, -0x1.b7f71ap-6f, 0x1.ce2ce6p-4f,
                          -0x1.81273ep-2f, 0x1.06eba8p-3f), x, x);
  else
    return fma(polynomial(z, -0x1.a0db011053e45p-31, 0x1.d373a5a8fa376p-27, -0x1.5b7ef9c418d03p-23,
                          0x1.b969739c4e86ap-20, -0x1.f4c805d8fa87fp-17, 0x1.f9a2948778cf8p-14, -0x1.c02daea4f75aap-11,
                          0x1.565bccee83420p-8, -0x1.b82ce311a7cddp-6, 0x1.ce2f21a03f886p-4, -0x1.812746b03799dp-2,
                          0x1.06eba8214db68p-3), x, x);
}
// 1.3 ulp. Below 1 an odd polynomial; above, 1 - e^q(|x|) with q fitted to log(erfc).
template <class P> GY_FN P erf(P x) {
  using T = element<P>;
  const P a = min(all<P>(of_float<P> ? T(3.92) : T(5.93)), abs(x));    // erf rounds to 1 from there on
  P outer;
  if constexpr (of_float<P>) {
    const P q = polynomial(a, 0x1.86de82p-13f, -0x1.825b7ap-9f, 0x1.65cba4p-6f, -0x1.a6534ep-4f,
                           -0x1.46baecp-1f, -0x1.2088eap+0f, -0x1.6622b0p-12f);
    // e^q to the accuracy that 1 - e^q needs; q is in [-17.2, -1.8] wherever this branch is used
    const auto n = round_to_integer(q, 0x1.715476p+0f);
    const P r = fma(n.value, all<P>(-0x1.62e430p-1f), q);
    const P p = polynomial(r, 0x1.0a3876p-7f, 0x1.5730b0p-5f, 0x1.556186p-3f, 0x1.fffdfcp-2f, 1.0f, 1.0f);
    outer = fma(-p, power_of_two<P>(n.integer), all<P>(1));
  } else {
    const P q = polynomial(a, -0x1.5a7987edb7b84p-38, 0x1.c148c0d210cebp-33, -0x1.0e2330d308ffbp-28,
                           0x1.8e783b0fad695p-25, -0x1.908d61ca21fb0p-22, 0x1.1e74c006029c0p-19,
                           -0x1.22a02c8a51da4p-17, 0x1.7e957368d1d37p-16, -0x1.533a3babb3776p-16,
                           -0x1.1b6ae10bf6f2cp-13, 0x1.941db34ae4f71p-11, -0x1.f64cf050ff496p-10,
                           0x1.aec1a3ff62aaap-12, 0x1.37220dcbef169p-6, -0x1.a4ac4a8810a51p-4,
                           -0x1.45f6282978fddp-1, -0x1.20dd1fbb93125p+0, -0x1.0e49e294618b7p-21);
    outer = 1.0 - exp_in_range(q);
  }
  return copysign(a < T(1) ? erf_small(a) : outer, x);
}
// 3 ulp. From 1/2 on, e^(-x^2) / (x + 2) times a polynomial of (x - 2) / (x + 2) (the variable of Shepherd and
// Laframboise 1981); what the rounding of x^2 and of the reciprocal lost corrects the exponential.
template <class P> GY_FN P erfc(P x) {
  using T = element<P>;
  const P a = min(all<P>(of_float<P> ? T(10.1) : T(27.3)), abs(x)), square = a * a;    // 0 from there on
  const P above = a + T(2), y = all<P>(1) / above, t = (a - T(2)) * y;
  P g;
  if constexpr (of_float<P>)
    g = polynomial(t, 0x1.f13734p-14f, -0x1.1daac8p-11f, -0x1.d41e6ep-11f, 0x1.905f9ep-9f, 0x1.a98702p-8f,
                   -0x1.605b2ep-6f, -0x1.2a8ba6p-5f, 0x1.1e2de2p-2f, -0x1.5fd386p-1f, 0x1.058672p+0f);
  else
    g = polynomial(t, -0x1.0026e0b0b4a32p-25, 0x1.86829944ff7a1p-27, 0x1.6e5a99c3aa9e5p-23, 0x1.2e98604b10242p-25,
                   -0x1.adba9fea1f985p-22, -0x1.369e32270a6fcp-21, 0x1.c1fb0d276cb96p-25, 0x1.0ba60c20dcea5p-19,
                   0x1.e66531e436926p-19, -0x1.2c865e38be600p-20, -0x1.0e61af69ac337p-16, -0x1.6c09039ee89e3p-16,
                   0x1.1e74862c8bc5dp-15, 0x1.2efa55ae87f7fp-13, 0x1.205443d9f7d09p-15, -0x1.5ba43972421fep-11,
                   -0x1.b6fbf9ceadcc0p-11, 0x1.9517bb74c62afp-9, 0x1.a89eaff8ab01dp-8, -0x1.606e41552db30p-6,
                   -0x1.2a88e6107d795p-5, 0x1.1e2deea6b117fp-2, -0x1.5fd386754eff9p-1, 0x1.058671b52c776p+0);
  g = g * y;
  const auto [r, tail, n] = expm1_parts(-square);
  const P lost = fma(-y, a - (above - T(2)), fma(-y, above, all<P>(1))) - fma(a, a, -square);
  const P outer = scale(fma(g, r + fma(lost, T(1) + (r + tail), tail), g), n);
  return abs(x) < T(0.5) ? T(1) - erf_small(x) : x < T(0) ? T(2) - outer : outer;
}

// float: 2.5 ulp. erfinv(x)/x as a polynomial of w = -log(1 - x^2) in its centre, of its root beyond (the variables of
// Giles 2010). double: 2 ulp; beyond the centre by erfinv_far.
template <class P> GY_FN P erfinv_w(P x) { return -log(fma(-x, x, all<P>(1))); }
template <class P> constexpr element<P> erfinv_end = of_float<P> ? element<P>(5) : element<P>(6.25);
template <class P> GY_FN P erfinv_centre(P w) {
  if constexpr (of_float<P>)
    return polynomial(w, 0x1.0f810cp-33f, -0x1.96fd94p-29f, 0x1.641ad8p-26f, 0x1.15b9f4p-24f, -0x1.976068p-20f,
                      0x1.bf17e8p-19f, 0x1.75df8ap-15f, -0x1.087cfep-13f, -0x1.3234p-9f, 0x1.7a754ep-7f,
                      0x1.db29f8p-3f, 0x1.c5bf8ap-1f);
  else
    return polynomial(w - 3.125, 0x1.fe01992da2863p-69, -0x1.308028ee9c08fp-70, -0x1.a610ce9093f70p-62,
                      0x1.51bebdfb38801p-60, 0x1.22b200e161ef7p-56, -0x1.2bd84c24b81cfp-53, -0x1.8b36d69f61d56p-55,
                      0x1.db323a33e6ec6p-48, -0x1.68327d679d5c1p-45, -0x1.6d8e77c654136p-44, 0x1.72308ac3a5f40p-39,
                      -0x1.c8960f789721fp-37, -0x1.dc3dd4c73ae0ap-35, 0x1.20f4eb3ab8d81p-30, -0x1.1a9eb6e9afd3ep-28,
                      -0x1.f36ce544da3ddp-26, 0x1.c6b4f8aef4628p-22, -0x1.6e8a53ee26d8cp-20, -0x1.d1d1f7cb065a9p-17,
                      0x1.879c2a20d6a92p-13, -0x1.845769483413ap-11, -0x1.8b6c33114ee3dp-8, 0x1.ebd80d9b13df7p-3,
                      0x1.a755e7c99ae86p+0);
}
template <class P> GY_FN P erfinv_far(P w) {
  const P s = sqrt(w);
  if constexpr (of_float<P>)
    return polynomial(s - 0x1.943a76p+1f, 0x1.e2a1bap-14f, -0x1.30dbf8p-13f, -0x1.673ba4p-12f, 0x1.46579cp-10f,
                      -0x1.2ac8dap-9f, 0x1.bb12ccp-9f, -0x1.3c4728p-8f, 0x1.ad2778p-8f, 0x1.01112p+0f,
                      0x1.7ee8f6p+1f);
  else {
    const P middle = polynomial(s - 3.25, -0x1.16157a24381e5p-26, 0x1.5d78eaab1dc08p-31, 0x1.1fa248cf9ce73p-23,
                                -0x1.2330485a00f33p-22, -0x1.03f55d15291ddp-25, 0x1.92439beb6d738p-20,
                                -0x1.0b5df57acdca4p-18, 0x1.88b27447ad096p-19, 0x1.a23cac11b5e75p-17,
                                -0x1.8cf0cf5692e46p-15, 0x1.1e6adff6af9edp-14, 0x1.932d7cfdbadf3p-16,
                                -0x1.7448bdf427e30p-12, 0x1.f3cc551af17a0p-11, -0x1.ba9240d335eadp-10,
                                0x1.468eeca733587p-9, -0x1.ebadabba18316p-9, 0x1.5ffcfe5b714ecp-8,
                                0x1.0158a6d641d56p+0, 0x1.8abcc380d5a48p+1);
    const P last = polynomial(s - 5.0, -0x1.39be2b7c5612dp-36, 0x1.81443fc090bfbp-35, 0x1.00024da6069f5p-34,
                              -0x1.e56e3769163e7p-32, 0x1.6f7e4d7f29152p-30, -0x1.dc28d8e519626p-29,
                              0x1.0c07e6139f28ep-27, -0x1.062fe940a818fp-26, 0x1.f2bd83ae15cacp-26,
                              -0x1.222342ad91a9cp-24, 0x1.ebe0f2543f3e1p-23, -0x1.0a908681dc867p-20,
                              0x1.2fbd00bb9ab17p-18, -0x1.4a348f9334860p-16, 0x1.3ebf4ef66bea9p-14,
                              -0x1.c2f36aa2b3fe2p-13, -0x1.22ea5df1b7448p-13, 0x1.02a30d1fba10ep+0,
                              0x1.3664ddd1ad7fbp+2);
    return s < 4.0 ? middle : last;
  }
}
}  // namespace part

GY_MATH(erf, own_real)
// Without our own: in double, for the library's float version is 3 ulp off.
template <class T, int L> GY_FN Vec<T, L> erfc(Vec<T, L> x) {
  GY_SMALL_FLOATS(erfc, x)
  else if constexpr (own_real<T>) {
    using V = Vec<T, L>;
    GY_EACH(V, x.p[i] = part::erfc(x.p[i]);)
    return x;
  } else return map<T>(x, [](T v) { return T(__builtin_erfc(v)); });
}
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
template <class T, int L> GY_FN Vec<T, L> erfinv(Vec<T, L> x) {
  GY_SMALL_FLOATS(erfinv, x)
  else if constexpr (own_real<T>) {
    using V = Vec<T, L>;
    V w, r;
    GY_EACH(V, w.p[i] = part::erfinv_w(x.p[i]); r.p[i] = part::erfinv_centre(w.p[i]);)
    const auto far = logical_not(lt(w, broadcast<L>(part::erfinv_end<T>)));
    if (same<T, float> || any(far)) {                          // of doubles few are: one in 500, evenly spread
      V other;
      GY_EACH(V, other.p[i] = part::erfinv_far(w.p[i]);)
      r = where(far, other, r);
    }
    const auto ends = mul(x, broadcast<L>(infinity<T>));
    return where(eq(abs(x), broadcast<L>(T(1))), ends, mul(x, r));
  } else return map<T>(x, [](T v) { return T(erfinv_one(v)); });
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
// A double as the sum of two.
namespace part {
template <class P> struct Pair { P high, low; };
// |x|^y for finite x but 0, and finite results. log(x) = k log(2) + 2 s (1 + s^2/3 + s^4/5 + ...) with
// s = (m - 1) / (m + 1) in pairs, as far as the terms matter: 65 bits of it, for the exponent has ten bits of its own.
template <class P> GY_FN P pow_positive(P x, P y) {
  const auto [k, f, _] = log_parts(x);
  const P den = f + 2.0, den_low = f - (den - 2.0), inverse = 1.0 / den;
  const P s = f * inverse, s_low = fma(-den_low, s, fma(-den, s, f)) * inverse;
  const P z = s * s, z_low = fma(s + s, s_low, fma(s, s, -z));
  const P q = z * polynomial(z, 0x1.e7e0e40a7e056p-4, 0x1.de9e6b8dbc7ddp-4, 0x1.111dced76fcf7p-3,
                             0x1.3b137832c395ep-3, 0x1.745d17d76304ep-3, 0x1.c71c71c65a147p-3,
                             0x1.24924924927cdp-2);
  const P c = 0x1.999999999999ap-2 + q, c_low = ((0x1.999999999999ap-2 - c) + q) - 0x1.999999999999ap-56;
  const P p = z * c, p_low = fma(z, c, -p) + fma(z, c_low, z_low * c);
  const P u = 0x1.5555555555555p-1 + p, u_low = ((0x1.5555555555555p-1 - u) + p) + (p_low + 0x1.5555555555555p-55);
  const P w = z * u, w_low = fma(z, u, -w) + fma(z, u_low, z_low * u);
  const P v = s * w, v_low = fma(s, w, -v) + fma(s, w_low, s_low * w);
  const P two = s + s, m = two + v, m_low = ((two - m) + v) + (v_low + (s_low + s_low));
  const P whole = k * 0x1.62e42fefa3800p-1, high = log_edges(x, whole + m);
  const P low = ((whole - high) + m) + fma(k, all<P>(0x1.ef35793c76730p-45), m_low);
  const P e = y * high, e_low = fma(y, high, -e) + y * low;
  const auto [r, tail, n] = expm1_parts(clamp(e, -750.0, 715.0));
  const P rest = fma(abs(e) < 750.0 ? e_low : P{}, 1.0 + (r + tail), tail);
  return scale(1.0 + (r + rest), n);
}
// sqrt(x^2 + y^2), scaled so that no square is out of range.
template <class P> GY_FN P hypot(P x, P y) {
  const P ax = abs(x), ay = abs(y), high = ax > ay ? ax : ay, low = ax > ay ? ay : ax;
  const P up = high < 0x1p-400 ? all<P>(0x1p600) : all<P>(1), factor = high > 0x1p400 ? all<P>(0x1p-600) : up;
  const P a = high * factor, b = low * factor;
  const P down = high < 0x1p-400 ? all<P>(0x1p-600) : all<P>(1), back = high > 0x1p400 ? all<P>(0x1p600) : down;
  return sqrt(fma(a, a, b * b)) * back;
}
}  // namespace part

// x^y, with C's rules for zeros, infinities and NaN. float: 0.51 ulp, by exp and log in double. double: 1 ulp.
template <class T, int L> GY_FN Vec<T, L> pow(Vec<T, L> x, Vec<T, L> y) {
  GY_SMALL_FLOATS(pow, x, y)
  else if constexpr (is_int<T>) return map<T>(x, y, integer_pow<T>);
  else if constexpr (own_real<T>) {
    const auto zero = broadcast<L>(T(0)), one = broadcast<L>(T(1));
    const auto size = abs(x);
    Vec<T, L> r;
    if constexpr (same<T, float>) r = convert<T>(exp(mul(convert<double>(y), log(convert<double>(size)))));
    else {
      using V = Vec<T, L>;
      GY_EACH(V, r.p[i] = part::pow_positive(size.p[i], y.p[i]);)
    }
    const auto half = mul(y, broadcast<L>(T(0.5)));
    const auto whole = eq(floor(y), y), odd = logical_and(whole, ne(floor(half), half));
    r = where(logical_and(signbit(x), odd), neg(r), r);
    const auto negative = logical_and(lt(x, zero), isfinite(x));
    r = where(logical_and(negative, logical_not(whole)), broadcast<L>(quiet_nan<T>), r);
    const auto is_one = logical_or(logical_or(eq(y, zero), eq(x, one)), logical_and(eq(size, one), isinf(y)));
    return where(is_one, one, r);
  }
  else return map<T>(
      x, y, [](T a, T b) { return same<T, float> ? T(__builtin_powf(a, b)) : T(__builtin_pow(a, b)); });
}

// sqrt(x^2 + y^2) without overflow between. float: 0.51 ulp, double: 1 ulp.
template <class T, int L> GY_FN Vec<T, L> hypot(Vec<T, L> x, Vec<T, L> y) {
  GY_SMALL_FLOATS(hypot, x, y)
  else if constexpr (own_real<T>) {
    Vec<T, L> r;
    if constexpr (same<T, float>) {
      const auto a = convert<double>(x), b = convert<double>(y);
      r = convert<float>(sqrt(fma(a, a, mul(b, b))));
    } else {
      using V = Vec<T, L>;
      GY_EACH(V, r.p[i] = part::hypot(x.p[i], y.p[i]);)
    }
    return where(logical_or(isinf(x), isinf(y)), broadcast<L>(infinity<T>), r);
  } else {
    return map<T>(
        x, y, [](T a, T b) { return same<T, float> ? T(__builtin_hypotf(a, b)) : T(__builtin_hypot(a, b)); });
  }
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
