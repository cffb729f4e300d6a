// Arithmetic, integer and bitwise operations, rounding, minimum and maximum, classification.
// Names are the rows of the op table. Integer arithmetic wraps; integer division by zero gives 0.
#pragma once
#include "mask.h"
#include "part.h"

namespace gy {

// Arithmetic on 16-bit and 8-bit floats is float's, rounded after each operation.
template <class T, class Op, class... V> GY_FN auto in_float(Op op, V... v) {
  return convert<T>(op(convert<float>(v)...));
}
#define GY_SMALL_FLOATS(name, ...) \
  if constexpr (is_small<T>) return in_float<T>([](auto... v) { return name(v...); }, __VA_ARGS__);

// ---- add, sub, mul, neg, abs ------------------------------------------------------------------------------
#define GY_WRAPPING(name, op)                                                                     \
  template <class T, int L> GY_FN Vec<T, L> name(Vec<T, L> a, Vec<T, L> b) {                      \
    GY_SMALL_FLOATS(name, a, b)                                                                   \
    else {                                                                                        \
      using V = Vec<T, L>;                                                                        \
      V r;                                                                                        \
      GY_EACH(V, r.p[i] = (typename V::P)((typename V::U)a.p[i] op (typename V::U)b.p[i]);)       \
      return r;                                                                                   \
    }                                                                                             \
  }
GY_WRAPPING(add, +) GY_WRAPPING(sub, -) GY_WRAPPING(mul, *)
#undef GY_WRAPPING
// torch's bool arithmetic: sum is or, product is and.
template <int L> GY_FN Vec<bool, L> add(Vec<bool, L> a, Vec<bool, L> b) { return logical_or(a, b); }
template <int L> GY_FN Vec<bool, L> mul(Vec<bool, L> a, Vec<bool, L> b) { return logical_and(a, b); }

template <class T, int L> GY_FN Vec<T, L> neg(Vec<T, L> a) {
  using V = Vec<T, L>;
  V r;
  if constexpr (is_small<T>) r = in_float<T>([](auto v) { return neg(v); }, a);
  else if constexpr (is_float<T>) { GY_EACH(V, r.p[i] = -a.p[i];) }
  else { GY_EACH(V, r.p[i] = (typename V::P)(typename V::U{} - (typename V::U)a.p[i]);) }
  return r;
}

// ---- bits -------------------------------------------------------------------------------------------------
#define GY_BITWISE(name, op)                                                                      \
  template <class T, int L> GY_FN Vec<T, L> name(Vec<T, L> a, Vec<T, L> b) {                      \
    using V = Vec<T, L>;                                                                          \
    V r;                                                                                          \
    using B = typename V::B;                                                                      \
    GY_EACH(V, r.p[i] = bits_as<typename V::P>(B(bits_as<B>(a.p[i]) op bits_as<B>(b.p[i])));)     \
    return r;                                                                                     \
  }
GY_BITWISE(bitwise_and, &) GY_BITWISE(bitwise_or, |) GY_BITWISE(bitwise_xor, ^)
#undef GY_BITWISE
template <int L> GY_FN Vec<bool, L> bitwise_and(Vec<bool, L> a, Vec<bool, L> b) { return logical_and(a, b); }
template <int L> GY_FN Vec<bool, L> bitwise_or(Vec<bool, L> a, Vec<bool, L> b) { return logical_or(a, b); }
template <int L> GY_FN Vec<bool, L> bitwise_xor(Vec<bool, L> a, Vec<bool, L> b) { return logical_xor(a, b); }
template <int L> GY_FN Vec<bool, L> bitwise_not(Vec<bool, L> a) { return logical_not(a); }
template <class T, int L> GY_FN Vec<T, L> bitwise_not(Vec<T, L> a) {
  return bitwise_xor(a, bitcast<T>(broadcast<L>(uint<sizeof(T)>(-1))));
}

// Shifts by an amount outside [0, bits): left gives 0, right gives the sign (as torch).
template <class T, int L> GY_FN Vec<T, L> lshift(Vec<T, L> a, Vec<T, L> b) {
  using V = Vec<T, L>;
  constexpr int width = 8 * sizeof(T);
  V r;
  using U = typename V::U;
  GY_EACH(V, r.p[i] = (typename V::P)((U)a.p[i] << ((U)b.p[i] & (wrap<T>)(width - 1)));)
  const auto inside = lt(bitcast<uint<sizeof(T)>>(b), broadcast<L>(uint<sizeof(T)>(width)));
  return where(inside, r, broadcast<L>(T(0)));
}
template <class T, int L> GY_FN Vec<T, L> rshift(Vec<T, L> a, Vec<T, L> b) {
  using V = Vec<T, L>;
  constexpr int width = 8 * sizeof(T);
  const auto inside = lt(bitcast<uint<sizeof(T)>>(b), broadcast<L>(uint<sizeof(T)>(width)));
  const auto most = bitcast<T>(broadcast<L>(uint<sizeof(T)>(width - 1)));
  const auto amount = where(inside, b, most);
  V r;
  GY_EACH(V, r.p[i] = (typename V::P)(a.p[i] >> amount.p[i]);)
  return is_signed<T> ? r : where(inside, r, broadcast<L>(T(0)));
}

// ---- sign -------------------------------------------------------------------------------------------------
template <class T, int L> GY_FN auto sign_bit_of() {
  return broadcast<L>(bits_as<T>(uint<sizeof(T)>(uint<sizeof(T)>(1) << (8 * sizeof(T) - 1))));
}
template <class T, int L> GY_FN Vec<T, L> abs(Vec<T, L> a) {
  if constexpr (is_real<T>) return bitwise_and(a, bitwise_not(sign_bit_of<T, L>()));
  else if constexpr (is_signed<T>) return where(lt(a, broadcast<L>(T(0))), neg(a), a);
  else return a;
}
template <int L> GY_FN Vec<bool, L> abs(Vec<bool, L> a) { return a; }
template <class T, int L> GY_FN Vec<T, L> copysign(Vec<T, L> a, Vec<T, L> b) {
  const auto s = sign_bit_of<T, L>();
  return bitwise_or(bitwise_and(a, bitwise_not(s)), bitwise_and(b, s));
}
template <class T, int L> GY_FN Vec<bool, L> signbit(Vec<T, L> a) {
  if constexpr (is_real<T>) return lt(bitcast<sint<sizeof(T)>>(a), broadcast<L>(sint<sizeof(T)>(0)));
  else return lt(a, broadcast<L>(T(0)));
}
// -1, 0 or 1; NaN gives 0, as torch.
template <class T, int L> GY_FN Vec<T, L> sign(Vec<T, L> a) {
  GY_SMALL_FLOATS(sign, a)
  else {
    const auto zero = broadcast<L>(T(0));
    const auto positive = where(gt(a, zero), broadcast<L>(T(1)), zero);
    if constexpr (is_signed<T>) return where(lt(a, zero), broadcast<L>(T(-1)), positive);
    else return positive;
  }
}
template <int L> GY_FN Vec<bool, L> sign(Vec<bool, L> a) { return a; }

// ---- logic on numbers -------------------------------------------------------------------------------------
template <class T, int L> GY_FN Vec<bool, L> logical_and(Vec<T, L> a, Vec<T, L> b) {
  return logical_and(cast<bool>(a), cast<bool>(b));
}
template <class T, int L> GY_FN Vec<bool, L> logical_or(Vec<T, L> a, Vec<T, L> b) {
  return logical_or(cast<bool>(a), cast<bool>(b));
}
template <class T, int L> GY_FN Vec<bool, L> logical_xor(Vec<T, L> a, Vec<T, L> b) {
  return logical_xor(cast<bool>(a), cast<bool>(b));
}
template <class T, int L> GY_FN Vec<bool, L> logical_not(Vec<T, L> a) { return logical_not(cast<bool>(a)); }

// false < true.
template <int L> GY_FN Vec<bool, L> eq(Vec<bool, L> a, Vec<bool, L> b) {
  return logical_not(logical_xor(a, b));
}
template <int L> GY_FN Vec<bool, L> ne(Vec<bool, L> a, Vec<bool, L> b) { return logical_xor(a, b); }
template <int L> GY_FN Vec<bool, L> lt(Vec<bool, L> a, Vec<bool, L> b) {
  return logical_and(logical_not(a), b);
}
template <int L> GY_FN Vec<bool, L> le(Vec<bool, L> a, Vec<bool, L> b) {
  return logical_or(logical_not(a), b);
}
template <int L> GY_FN Vec<bool, L> gt(Vec<bool, L> a, Vec<bool, L> b) { return lt(b, a); }
template <int L> GY_FN Vec<bool, L> ge(Vec<bool, L> a, Vec<bool, L> b) { return le(b, a); }
template <int L> GY_FN Vec<bool, L> maximum(Vec<bool, L> a, Vec<bool, L> b) { return logical_or(a, b); }
template <int L> GY_FN Vec<bool, L> minimum(Vec<bool, L> a, Vec<bool, L> b) { return logical_and(a, b); }

// ---- classification ---------------------------------------------------------------------------------------
#define GY_CLASS(name, of_float, of_integer)                              \
  template <class T, int L> GY_FN Vec<bool, L> name(Vec<T, L> a) {        \
    if constexpr (is_small<T>) return name(convert<float>(a));            \
    else if constexpr (is_float<T>) return of_float;                      \
    else return broadcast<L>(of_integer);                                 \
  }
GY_CLASS(isnan, ne(a, a), false)
GY_CLASS(isinf, eq(abs(a), broadcast<L>(infinity<T>)), false)
GY_CLASS(isfinite, lt(abs(a), broadcast<L>(infinity<T>)), true)
#undef GY_CLASS

// ---- minimum and maximum ----------------------------------------------------------------------------------
// Register by register: the masks of several would be gathered first. The instruction gives its second operand where
// either is NaN.
#define GY_EXTREME(name, instruction, of_integers, nan, other)                                          \
  template <class T, int L> GY_FN Vec<T, L> name(Vec<T, L> a, Vec<T, L> b) {                            \
    GY_SMALL_FLOATS(name, a, b)                                                                         \
    else if constexpr (is_float<T>) {                                                                   \
      using V = Vec<T, L>;                                                                              \
      GY_EACH(V, a.p[i] = nan.p[i] != nan.p[i] ? other.p[i] : part::instruction(a.p[i], b.p[i]);)       \
      return a;                                                                                         \
    } else return where(of_integers(a, b), a, b);                                                       \
  }
// NaN if either is NaN.
GY_EXTREME(maximum, max, gt, a, a)
GY_EXTREME(minimum, min, lt, a, a)
// NaN only if both are.
GY_EXTREME(fmax, max, gt, b, a)
GY_EXTREME(fmin, min, lt, b, a)
#undef GY_EXTREME

// ---- fused multiply-add, square root, rounding ------------------------------------------------------------
// a * b + c, rounded once.
template <class T, int L> GY_FN Vec<T, L> fma(Vec<T, L> a, Vec<T, L> b, Vec<T, L> c) {
  static_assert(is_real<T>, "fma is for floats");
  GY_SMALL_FLOATS(fma, a, b, c)
  else {
    using V = Vec<T, L>;
    GY_EACH(V, a.p[i] = part::fma(a.p[i], b.p[i], c.p[i]);)
    return a;
  }
}
// The same, rounded twice where a single instruction is missing.
template <class T, int L> GY_FN Vec<T, L> multiply_add(Vec<T, L> a, Vec<T, L> b, Vec<T, L> c) {
  if constexpr (register_bytes > 0) return fma(a, b, c);
  else return add(mul(a, b), c);
}
template <class T, int L> GY_FN Vec<T, L> sqrt(Vec<T, L> a) {
  GY_SMALL_FLOATS(sqrt, a)
  else {
    using V = Vec<T, L>;
    GY_EACH(V, a.p[i] = part::sqrt(a.p[i]);)
    return a;
  }
}
template <int Mode, class T, int L> GY_FN Vec<T, L> round_mode(Vec<T, L> a) {
  using V = Vec<T, L>;
  GY_EACH(V, a.p[i] = part::round_mode<Mode>(a.p[i]);)
  return a;
}
#define GY_ROUNDING(name, mode)                                  \
  template <class T, int L> GY_FN Vec<T, L> name(Vec<T, L> a) {  \
    GY_SMALL_FLOATS(name, a)                                     \
    else if constexpr (is_float<T>) return round_mode<mode>(a);  \
    else return a;                                               \
  }
GY_ROUNDING(round, 8) GY_ROUNDING(floor, 9) GY_ROUNDING(ceil, 10) GY_ROUNDING(trunc, 11)
#undef GY_ROUNDING

// ---- division ---------------------------------------------------------------------------------------------
template <class T, int L> GY_FN Vec<T, L> div(Vec<T, L> a, Vec<T, L> b) {
  static_assert(is_real<T>, "div is true division: cast integers first");
  GY_SMALL_FLOATS(div, a, b)
  else {
    using V = Vec<T, L>;
    GY_EACH(V, a.p[i] = a.p[i] / b.p[i];)
    return a;
  }
}
template <class T, int L> GY_FN Vec<T, L> reciprocal(Vec<T, L> a) {
  GY_SMALL_FLOATS(reciprocal, a)
  else return div(broadcast<L>(T(1)), a);
}
template <class T, int L> GY_FN Vec<T, L> rsqrt(Vec<T, L> a) {
  GY_SMALL_FLOATS(rsqrt, a)
  else return div(broadcast<L>(T(1)), sqrt(a));
}

// Quotient toward zero of integers; x / 0 is 0 and the lowest value / -1 wraps, neither traps.
template <class T> GY_FN T quotient_one(T a, T b) {
  if (b == T(0)) return T(0);
  if constexpr (is_signed<T>) {
    if (b == T(-1)) return T(wrap<T>(0) - wrap<T>(a));
  }
  return T(a / b);
}
template <class T, int L> GY_FN Vec<T, L> truncdiv(Vec<T, L> a, Vec<T, L> b) {
  GY_SMALL_FLOATS(truncdiv, a, b)
  else if constexpr (is_float<T>) return trunc(div(a, b));
  else if constexpr (sizeof(T) < 8 && L > 1 && register_bytes > 0) {
    // 32-bit quotients are exact after rounding toward zero in double, 8- and 16-bit ones in float.
    using F = pick<sizeof(T) == 4, double, float>;
    const auto q = trunc(div(convert<F>(a), convert<F>(b)));
    const auto safe = where(eq(b, broadcast<L>(T(0))), broadcast<L>(F(0)), q);
    if constexpr (same<T, uint32_t>) return convert<T>(convert<int64_t>(safe));
    else return convert<T>(safe);
  } else return map<T>(a, b, quotient_one<T>);
}

template <class T, int L> GY_FN Vec<T, L> integer_fmod(Vec<T, L> a, Vec<T, L> b) {
  return where(eq(b, broadcast<L>(T(0))), broadcast<L>(T(0)), sub(a, mul(truncdiv(a, b), b)));
}
// a - n*b exactly, for floats: one fused step where the quotient is small, else the library's fmod per lane.
template <class T, int L> GY_FN Vec<T, L> float_fmod(Vec<T, L> a, Vec<T, L> b) {
  const auto by_library = [](T x, T y) {
    return same<T, float> ? T(__builtin_fmodf(x, y)) : T(__builtin_fmod(x, y));
  };
#if defined(GY_SIMD)
  const auto q = trunc(div(a, b));
  const auto size = abs(b);
  const T smallest = same<T, float> ? T(1e-30f) : T(1e-290);
  const auto easy =
      logical_and(lt(abs(q), broadcast<L>(T(1 << 21))),
                  logical_and(gt(size, broadcast<L>(smallest)), lt(size, broadcast<L>(infinity<T>))));
  if (__builtin_expect(!all(easy), 0)) return map<T>(a, b, by_library);
  auto r = fma(neg(q), b, a);                                  // exact, but q may be one too large
  const auto overshot = logical_and(ne(r, broadcast<L>(T(0))), logical_xor(signbit(r), signbit(a)));
  r = where(overshot, add(r, copysign(size, a)), r);
  return copysign(r, a);
#else
  return map<T>(a, b, by_library);
#endif
}
// The rest of truncating division; it has the sign of a. Integers by zero give 0.
template <class T, int L> GY_FN Vec<T, L> fmod(Vec<T, L> a, Vec<T, L> b) {
  GY_SMALL_FLOATS(fmod, a, b)
  else if constexpr (is_float<T>) return float_fmod(a, b);
  else return integer_fmod(a, b);
}
// The rest with the sign of b (Python's %).
template <class T, int L> GY_FN Vec<T, L> remainder(Vec<T, L> a, Vec<T, L> b) {
  GY_SMALL_FLOATS(remainder, a, b)
  else if constexpr (!is_signed<T>) return fmod(a, b);
  else {
    const auto r = fmod(a, b);
    const auto zero = broadcast<L>(T(0));
    const auto wrong = logical_and(ne(r, zero), logical_xor(lt(r, zero), lt(b, zero)));
    return where(wrong, add(r, b), r);
  }
}
// Quotient rounded down (Python's //); for floats exactly torch's div(rounding_mode="floor").
template <class T, int L> GY_FN Vec<T, L> floordiv(Vec<T, L> a, Vec<T, L> b) {
  if constexpr (is_int<T> && !is_signed<T>) return truncdiv(a, b);
  else if constexpr (is_small<T>) return in_float<T>([](auto x, auto y) { return floordiv(x, y); }, a, b);
  else if constexpr (is_int<T>) {
    const auto zero = broadcast<L>(T(0)), one = broadcast<L>(T(1));
    const auto q = truncdiv(a, b);
    const auto r = sub(a, mul(q, b));
    const auto down =
        logical_and(logical_and(ne(r, zero), ne(b, zero)), logical_xor(lt(r, zero), lt(b, zero)));
    return where(down, sub(q, one), q);
  } else {
    const auto zero = broadcast<L>(T(0)), one = broadcast<L>(T(1));
    const auto quotient = div(a, b);
    const auto rest = fmod(a, b);
    auto whole = div(sub(a, rest), b);
    whole =
        where(logical_and(ne(rest, zero), logical_xor(lt(b, zero), lt(rest, zero))), sub(whole, one), whole);
    auto down = floor(whole);
    down = where(gt(sub(whole, down), broadcast<L>(T(0.5))), add(down, one), down);
    down = where(ne(whole, zero), down, copysign(zero, quotient));
    return where(eq(b, zero), quotient, down);
  }
}

}  // namespace gy
