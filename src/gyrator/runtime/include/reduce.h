// Reducers. VSum<T, L>, VMax<T, L>, ... keep one result per lane (the vector axis is kept):
//     gy::VSum<float, L> s;  for (...) s.update(gy::load<L>(p));  gy::store(out, s.result());
// Sum<T, L>, Max<T, L>, ... reduce over the lanes too; a loop's tail updates them with one lane at a time:
//     gy::Sum<float, 64> s;  ... s.update(gy::load<64>(p)); ... s.update(gy::load<1>(p)); ...
//     gy::Vec<float, 1> total = s.result();           // gy::broadcast<L>(total), gy::scalar(total)
// merge() joins parallel partial results, in a fixed order if the caller's order is fixed. More lanes than
// one register give independent chains: 64 lanes of float hide the latency of the addition.
#pragma once
#include "special.h"

namespace gy {

// All lanes combined by a commutative operation.
template <int K, class V, class Op> GY_FN V fold_lanes(V v, Op op) {
  if constexpr (K == 0) return v;
  else return fold_lanes<K / 2>(op(v, exchange_lanes<K>(v)), op);
}
template <class T, int L, class Op> GY_FN Vec<T, 1> fold(Vec<T, L> v, Op op) {
  return first_lane(fold_lanes<L / 2>(v, op));
}

template <int L, class T> GY_FN Vec<T, L> spread(Vec<T, 1> v) { return broadcast<L>(v); }
template <int L> GY_FN int64_t spread(int64_t first) { return first; }

// A lane-wise reducer S made to reduce over its lanes as well. One lane alone goes into the first, beside the
// neutral value in the others.
template <template <class, int> class S, class T, int L> struct Across {
  S<T, L> body;

  template <int N, class... More> GY_FN void update(Vec<T, N> v, More... more) {
    static_assert(N == L || N == 1, "a reducer takes L lanes or one");
    if constexpr (N == L) body.update(v, more...);
    else update_some(first_lanes<L>(1), broadcast<L>(v), spread<L>(more)...);
  }
  // The lanes where the mask holds.
  template <class... More> GY_FN void update_some(Vec<bool, L> on, Vec<T, L> v, More... more) {
    body.update(where(on, v, broadcast<L>(S<T, L>::neutral)), more...);
  }
  GY_FN void merge(const Across& other) { body.merge(other.body); }
  GY_FN auto result() const { return body.across().result(); }
};

// ---- reducers with one value and one operation ------------------------------------------------------------
template <class T> constexpr T lowest_of() {
  if constexpr (same<T, bf16>) return {0xff80};
  else if constexpr (same<T, f16>) return {0xfc00};
  else if constexpr (is_float<T>) return T(-infinity<float>);
  else if constexpr (is_signed<T>) return T(uint<sizeof(T)>(1) << (8 * sizeof(T) - 1));
  else return T(0);
}
template <class T> constexpr T highest_of() {
  if constexpr (same<T, bf16>) return {0x7f80};
  else if constexpr (same<T, f16>) return {0x7c00};
  else if constexpr (is_float<T>) return T(infinity<float>);
  else return T(~lowest_of<T>());
}
template <class T> constexpr T one_of() {
  if constexpr (same<T, bf16>) return {0x3f80};
  else if constexpr (same<T, f16>) return {0x3c00};
  else return T(1);
}
template <class T> constexpr T lowest_value = lowest_of<T>();
template <class T> constexpr T highest_value = highest_of<T>();

#define GY_REDUCER(name, start, operation)                                                     \
  template <class T, int L> struct V##name {                                                   \
    static constexpr T neutral = T(start);                                                     \
    Vec<T, L> value = broadcast<L>(neutral);                                                   \
    GY_FN void update(Vec<T, L> v) { value = operation(v, value); }                            \
    GY_FN void merge(const V##name& other) { update(other.value); }                            \
    GY_FN Vec<T, L> result() const { return value; }                                           \
    GY_FN V##name<T, 1> across() const {                                                       \
      return {fold(value, [](auto a, auto b) { return operation(a, b); })};                    \
    }                                                                                          \
  };                                                                                           \
  template <class T, int L> using name = Across<V##name, T, L>;
GY_REDUCER(PlainSum, 0, add)
GY_REDUCER(Prod, one_of<T>(), mul)
GY_REDUCER(Max, lowest_value<T>, maximum)
GY_REDUCER(Min, highest_value<T>, minimum)
#undef GY_REDUCER

template <class T, int L, bool Every> struct VTruth {
  static constexpr bool neutral = Every;
  Vec<bool, L> value = broadcast<L>(neutral);
  GY_FN void update(Vec<bool, L> v) { value = Every ? logical_and(value, v) : logical_or(value, v); }
  GY_FN void merge(const VTruth& other) { update(other.value); }
  GY_FN Vec<bool, L> result() const { return value; }
  GY_FN VTruth<T, 1, Every> across() const { return {{Every ? all(value) : any(value)}}; }
};
template <class T, int L> using VAny = VTruth<T, L, false>;
template <class T, int L> using VAll = VTruth<T, L, true>;
template <class T, int L> using Any = Across<VAny, T, L>;
template <class T, int L> using All = Across<VAll, T, L>;

// ---- sum --------------------------------------------------------------------------------------------------
// Floats are added in a cascade of four levels, each flushed into the next after 32 additions: the error
// grows with 32 per level, not with the length. Integers wrap.
template <class T, int L> struct VSum {
  static constexpr T neutral = T(0);
  Vec<T, L> level0 = broadcast<L>(T(0)), level1 = level0, level2 = level0, level3 = level0;
  uint32_t count = 0;

  GY_FN void update(Vec<T, L> v) {
    level0 = add(level0, v);
    if constexpr (is_float<T>)
      if (__builtin_expect((++count & 31) == 0, 0)) flush();
  }
  GY_FN void merge(const VSum& other) { level3 = add(level3, other.result()); }
  GY_FN Vec<T, L> result() const {
    if constexpr (is_float<T>) return add(add(level3, level2), add(level1, level0));
    else return add(level3, level0);
  }
  GY_FN VPlainSum<T, 1> across() const { return VPlainSum<T, L>{result()}.across(); }

 private:
  GY_FN void flush() {
    const auto zero = broadcast<L>(T(0));
    level1 = add(level1, level0);
    level0 = zero;
    if ((count & 1023) != 0) return;
    level2 = add(level2, level1);
    level1 = zero;
    if ((count & 32767) != 0) return;
    level3 = add(level3, level2);
    level2 = zero;
  }
};
template <class T, int L> using Sum = Across<VSum, T, L>;

// ---- running totals ---------------------------------------------------------------------------------------
// The reducers of scans: result() has, for each of the numbers that came last, the total up to it, kept as W. Sums and
// products of float are kept in double, as in eager: a cascade would be added up anew for each result.
template <template <class, int> class S, class T, int L, class W = T> struct VRunning {
  S<W, L> total;
  GY_FN void update(Vec<T, L> v) { total.update(cast<W>(v)); }
  GY_FN Vec<T, L> result() const { return cast<T>(total.value); }
};
// Along the lanes: in each register lane i takes in lane i - 1, then i - 2 and i - 3, then the four before, ...; the
// total of the registers before comes last, so that the next one waits for one operation alone.
template <template <class, int> class S, class T, int L, class W = T> struct Running {
  using V = Vec<W, L>;
  using Part = Vec<W, V::lanes>;
  Part before = broadcast<V::lanes>(S<W, L>::neutral);
  Vec<T, L> now;

  GY_FN void update(Vec<T, L> v) {
    V totals = cast<W>(v);
    GY_EACH(V, const Part within = prefix<1>(Part{{totals.p[i]}}); totals.p[i] = both(before, within).p[0];
            before = both(before, broadcast<V::lanes>(last_lane(within)));)
    now = cast<T>(totals);
  }
  GY_FN void update_some(Vec<bool, L> on, Vec<T, L> v) {
    update(where(on, v, broadcast<L>(T(S<W, L>::neutral))));
  }
  GY_FN Vec<T, L> result() const { return now; }

 private:
  static GY_FN Part both(Part a, Part b) {
    S<W, V::lanes> s{a};
    s.update(b);
    return s.value;
  }
  template <int K> static GY_FN Part prefix(Part v) {
#if defined(GY_SIMD)
    if constexpr (K < V::lanes) {
      const Part none = broadcast<V::lanes>(S<W, L>::neutral);
      return prefix<2 * K>(both(v, Part{{shift_in<K>(none.p[0], v.p[0], indices<V::lanes>{})}}));
    }
#endif
    return v;
  }
};
// The extreme so far and its position. NaN is the extreme; of equal values the last wins: positions only grow.
template <class Values, class Positions, class T, int L> struct RunningPosition {
  Values values;
  Positions positions;
  Vec<T, L> value;
  Vec<int64_t, L> index;

  GY_FN void update(Vec<T, L> v, Vec<int64_t, L> at) { take(broadcast<L>(true), v, at); }
  GY_FN void update(Vec<T, L> v, int64_t first) { update(v, iota<L>(first, 1)); }
  GY_FN void update_some(Vec<bool, L> on, Vec<T, L> v, Vec<int64_t, L> at) { take(on, v, at); }
  GY_FN void update_some(Vec<bool, L> on, Vec<T, L> v, int64_t first) { take(on, v, iota<L>(first, 1)); }
  GY_FN RunningPosition result() const { return *this; }

 private:
  GY_FN void take(Vec<bool, L> on, Vec<T, L> v, Vec<int64_t, L> at) {
    if constexpr (requires { values.update_some(on, v); }) values.update_some(on, v);
    else values.update(v);
    value = values.result();
    const auto takes = logical_and(on, logical_or(eq(v, value), isnan(v)));
    positions.update(where(takes, at, broadcast<L>(int64_t(-1))));
    index = positions.result();
  }
};
#define GY_RUNNING(way)                                                                                        \
  template <class T, int L> using way##RunningSum = way##Running<VPlainSum, T, L, pick<same<T, float>, double, T>>; \
  template <class T, int L> using way##RunningProd = way##Running<VProd, T, L, pick<same<T, float>, double, T>>;    \
  template <class T, int L> using way##RunningMax = way##Running<VMax, T, L>;                                  \
  template <class T, int L> using way##RunningMin = way##Running<VMin, T, L>;                                  \
  template <class T, int L> using way##RunningArgMax =                                                         \
      RunningPosition<way##RunningMax<T, L>, way##RunningMax<int64_t, L>, T, L>;                               \
  template <class T, int L> using way##RunningArgMin =                                                         \
      RunningPosition<way##RunningMin<T, L>, way##RunningMax<int64_t, L>, T, L>;
GY_RUNNING()
GY_RUNNING(V)
#undef GY_RUNNING

// ---- position of the extreme ------------------------------------------------------------------------------
// NaN is the extreme; of equal values the first index wins. Within a lane, indices must come in rising order.
template <class T, int L, bool Largest> struct VArgExtreme {
  static constexpr T neutral = Largest ? lowest_value<T> : highest_value<T>;
  Vec<T, L> value = broadcast<L>(T(0));
  Vec<int64_t, L> index = broadcast<L>(int64_t(0));
  bool empty = true;

  GY_FN void update(Vec<T, L> v, Vec<int64_t, L> at) {
    const auto m = logical_or(broadcast<L>(empty), better(v, value));
    empty = false;
    take(m, v, at);
  }
  // Indices first, first + 1, ...
  GY_FN void update(Vec<T, L> v, int64_t first) { update(v, iota<L>(first, 1)); }
  GY_FN void merge(const VArgExtreme& other) {
    const auto earlier = logical_and(same_as(other.value), lt(other.index, index));
    const auto m = logical_or(broadcast<L>(empty), logical_or(better(other.value, value), earlier));
    take(logical_and(m, broadcast<L>(!other.empty)), other.value, other.index);
    empty = empty && other.empty;
  }
  GY_FN VArgExtreme result() const { return *this; }  // members value and index
  GY_FN VArgExtreme<T, 1, Largest> across() const {
    const auto best = fold(value, [](auto a, auto b) { return Largest ? maximum(a, b) : minimum(a, b); });
    const auto last = broadcast<L>(highest_value<int64_t>);
    const auto at = where(same_as(broadcast<L>(best)), index, last);
    return {best, fold(at, [](auto a, auto b) { return minimum(a, b); }), empty};
  }

 private:
  static GY_FN Vec<bool, L> better(Vec<T, L> a, Vec<T, L> b) {
    if constexpr (is_real<T>) return logical_and(logical_not(Largest ? le(a, b) : ge(a, b)), eq(b, b));
    else return Largest ? gt(a, b) : lt(a, b);
  }
  GY_FN Vec<bool, L> same_as(Vec<T, L> other) const {
    const auto equal = eq(other, value);
    if constexpr (is_real<T>) return logical_or(equal, logical_and(isnan(other), isnan(value)));
    else return equal;
  }
  GY_FN void take(Vec<bool, L> m, Vec<T, L> v, Vec<int64_t, L> at) {
    value = where(m, v, value);
    index = where(m, at, index);
  }
};
template <class T, int L> using VArgMax = VArgExtreme<T, L, true>;
template <class T, int L> using VArgMin = VArgExtreme<T, L, false>;
template <class T, int L> using ArgMax = Across<VArgMax, T, L>;
template <class T, int L> using ArgMin = Across<VArgMin, T, L>;

// ---- mean and variance ------------------------------------------------------------------------------------
// Mean, sum of squared deviations and count, merged by Chan, Golub and LeVeque's formula. The mean is `mean + low`:
// rounded to one number, it may be further from the true one than the means of a few values are from each other.
template <class T, int L> struct Moments {
  Vec<T, L> mean = broadcast<L>(T(0)), low = mean, m2 = mean;
  int64_t count = 0;

  GY_FN void merge(const Moments& other) {
    if (count == 0) *this = other;
    else if (other.count > 0) add_to(other, T(other.count) / T(count + other.count));
  }
  template <class To> GY_FN Moments<To, L> as() const {
    const auto zero = broadcast<L>(To(0));
    if constexpr (sizeof(To) > sizeof(T)) return {add(cast<To>(mean), cast<To>(low)), zero, cast<To>(m2), count};
    else return {cast<To>(add(mean, low)), zero, cast<To>(m2), count};
  }
  // Lanes have equal counts: the mean of the means, and the spread of the means beside the spreads.
  GY_FN Moments<T, 1> across() const {
    const auto sum = [](auto a, auto b) { return add(a, b); };
    const auto first = first_lane(mean);
    const auto from_first = add(sub(mean, broadcast<L>(first)), low);
    const auto all = mul(fold(from_first, sum), broadcast<1>(T(1) / T(L)));
    const auto d = sub(from_first, broadcast<L>(all));
    const auto spread_of_means = mul(fold(mul(d, d), sum), broadcast<1>(T(count)));
    return {first, all, add(fold(m2, sum), spread_of_means), count * L};
  }

 private:
  GY_FN void add_to(const Moments& other, T share) {
    const auto d = add(sub(other.mean, mean), sub(other.low, low));
    const auto moved = multiply_add(d, broadcast<L>(share), low), old = mean;
    mean = add(old, moved);
    low = add(sub(old, mean), moved);
    m2 = add(add(m2, other.m2), mul(mul(d, broadcast<L>(T(count) * share)), d));
    count += other.count;
  }
};
// Values come in chunks of 32, each summed around the mean of earlier ones, so that sums stay small and nothing
// cancels when the mean is large against the spread; chunks are merged in two levels. The first has four values,
// around the first of them, of which 32 would add up to many times their spread; the next ones 8 and 16.
template <class T, int L> struct VChunks {
  Moments<T, L> total, middle;
  Vec<T, L> shift = broadcast<L>(T(0)), sum = shift, squares = shift;
  int64_t pending = 0, full = 4;

  GY_FN void update(Vec<T, L> v) {
    if (__builtin_expect(pending == 0 && full == 4, 0)) shift = v;
    const auto d = sub(v, shift);
    sum = add(sum, d);
    squares = multiply_add(d, d, squares);
    if (__builtin_expect(++pending == full, 0)) flush();
  }
  GY_FN Moments<T, L> moments() const {
    auto all = total;
    all.merge(middle);
    all.merge(chunk());
    return all;
  }
  GY_FN Moments<T, L> result() const { return moments().template as<T>(); }

 private:
  GY_FN Moments<T, L> chunk() const {
    const auto mean = mul(sum, broadcast<L>(T(1) / T(pending > 0 ? pending : 1)));
    return {shift, mean, maximum(broadcast<L>(T(0)), sub(squares, mul(sum, mean))), pending};
  }
  GY_FN void flush() {
    middle.merge(chunk());
    sum = squares = broadcast<L>(T(0));
    pending = 0;
    full = full < 32 ? 2 * full : 32;
    shift = middle.mean;
    if (middle.count < 32 * 32) return;
    total.merge(middle);
    shift = total.mean;
    middle = {};
  }
};
// The count is one for all lanes, so that some lanes alone, the first ones, go into a sum of their own.
template <class T, int L> struct Welford {
  VChunks<T, L> body;
  Moments<double, 1> rest;

  template <int N> GY_FN void update(Vec<T, N> v) {
    static_assert(N == L || N == 1, "a reducer takes L lanes or one");
    if constexpr (N == L) body.update(v);
    else update_some(first_lanes<L>(1), broadcast<L>(v));
  }
  GY_FN void update_some(Vec<bool, L> on, Vec<T, L> v) {
    const auto total = [](auto a, auto b) { return add(a, b); };
    const auto first = first_lane(v);
    const auto zero = broadcast<L>(T(0)), from_first = where(on, sub(v, broadcast<L>(first)), zero);
    const int count = __builtin_popcountll(mask_bits(on));
    const auto mean = div(fold(from_first, total), broadcast<1>(T(count)));
    const auto d = where(on, sub(from_first, broadcast<L>(mean)), zero);
    rest.merge(Moments<T, 1>{first, mean, fold(mul(d, d), total), count}.template as<double>());
  }
  GY_FN void merge(const Welford& other) { rest.merge(other.moments()); }
  GY_FN Moments<T, 1> result() const { return moments().template as<T>(); }

 private:
  GY_FN Moments<double, 1> moments() const {
    auto all = body.moments().across().template as<double>();
    all.merge(rest);
    return all;
  }
};

// Each lane alone has no others among which its rounding averages out, so floats are summed in double, as in
// eager, around the first value: that is at most √n standard deviations from the mean, and nothing cancels.
template <int L> struct VWide {
  Vec<double, L> shift = broadcast<L>(0.0), sum = shift, squares = shift;
  int64_t count = 0;

  GY_FN void update(Vec<float, L> v) {
    const auto wide = cast<double>(v);
    if (count++ == 0) shift = wide;
    const auto d = sub(wide, shift);
    sum = add(sum, d);
    squares = multiply_add(d, d, squares);
  }
  GY_FN Moments<float, L> result() const {
    const auto mean = mul(sum, broadcast<L>(1.0 / double(count > 0 ? count : 1)));
    const auto m2 = maximum(broadcast<L>(0.0), sub(squares, mul(sum, mean)));
    return Moments<double, L>{shift, mean, m2, count}.template as<float>();
  }
};
template <class T, int L> using VWelford = pick<same<T, float>, VWide<L>, VChunks<T, L>>;

// ---- softmax in one pass ----------------------------------------------------------------------------------
// The maximum and the sum of exp(x - maximum).
template <class T, int L> struct MaxAndSum {
  Vec<T, L> max, sum;

  // What to subtract: a row of -inf alone has sum 0, not exp(-inf - -inf).
  static GY_FN Vec<T, L> base(Vec<T, L> m) {
    return where(eq(m, broadcast<L>(-infinity<T>)), broadcast<L>(T(0)), m);
  }
  GY_FN void merge(const MaxAndSum& other) {
    const auto top = maximum(max, other.max), zero_at = base(top);
    sum = add(mul(sum, exp(sub(max, zero_at))), mul(other.sum, exp(sub(other.max, zero_at))));
    max = top;
  }
  GY_FN MaxAndSum result() const { return *this; }
  GY_FN MaxAndSum<T, 1> across() const {
    const auto top = fold(max, [](auto a, auto b) { return maximum(a, b); });
    const auto scaled = mul(sum, exp(sub(max, broadcast<L>(MaxAndSum<T, 1>::base(top)))));
    return {top, fold(scaled, [](auto a, auto b) { return add(a, b); })};
  }
};
// The sum is rescaled only when the maximum grows.
template <class T, int L> struct VOnlineSoftmax {
  static constexpr T neutral = -infinity<T>;
  Vec<T, L> max = broadcast<L>(-infinity<T>), recent = broadcast<L>(T(0)), older = broadcast<L>(T(0));
  uint32_t count = 0;

  GY_FN void update(Vec<T, L> v) {
    if (any(logical_not(le(v, max)))) {
      const auto top = maximum(max, v);
      const auto factor = exp(sub(max, MaxAndSum<T, L>::base(top)));
      recent = mul(recent, factor);
      older = mul(older, factor);
      max = top;
    }
    recent = add(recent, exp(sub(v, MaxAndSum<T, L>::base(max))));
    if ((++count & 31) == 0) {
      older = add(older, recent);
      recent = broadcast<L>(T(0));
    }
  }
  GY_FN MaxAndSum<T, L> result() const { return {max, add(older, recent)}; }
  GY_FN MaxAndSum<T, 1> across() const { return result().across(); }
  GY_FN void merge(const VOnlineSoftmax& other) {
    auto r = result();
    r.merge(other.result());
    max = r.max;
    older = r.sum;
    recent = broadcast<L>(T(0));
  }
};
template <class T, int L> using OnlineSoftmax = Across<VOnlineSoftmax, T, L>;

// log(sum of exp(x)), from the same state.
template <class T, int L> struct LogOfSum {
  MaxAndSum<T, L> state;
  GY_FN Vec<T, L> result() const {
    const auto found = add(MaxAndSum<T, L>::base(state.max), log(state.sum));
    return where(eq(state.max, broadcast<L>(infinity<T>)), state.max, found);  // inf - inf is in the sum
  }
};
template <class T, int L> struct VLogAddExp {
  static constexpr T neutral = -infinity<T>;
  VOnlineSoftmax<T, L> state;
  GY_FN void update(Vec<T, L> v) { state.update(v); }
  GY_FN void merge(const VLogAddExp& other) { state.merge(other.state); }
  GY_FN LogOfSum<T, 1> across() const { return {state.across()}; }
  GY_FN Vec<T, L> result() const { return LogOfSum<T, L>{state.result()}.result(); }
};
template <class T, int L> using LogAddExp = Across<VLogAddExp, T, L>;
template <class T, int L> using VRunningLogAddExp = VLogAddExp<T, L>;
template <class T, int L> using RunningLogAddExp = LogAddExp<T, L>;

}  // namespace gy
