// Reducers. VSum<T, L>, VMax<T, L>, ... keep one result per lane (the vector axis is kept):
//     gy::VSum<float, L> s;  for (...) s.update(gy::load<L>(p));  gy::store(out, s.result());
// Sum<T, L>, Max<T, L>, ... reduce over the lanes too; a loop's tail updates them with one lane at a time:
//     gy::Sum<float, 64> s;  ... s.update(gy::load<64>(p)); ... s.update(gy::load<1>(p)); ...
//     gy::Vec<float, 1> total = s.result();           // gy::broadcast<L>(total), gy::scalar(total)
// merge() joins parallel partial results, in a fixed order if the caller's order is fixed. More lanes than one
// register give independent chains: 64 lanes of float hide the latency of the addition.
#pragma once
#include "special.h"

namespace gy {

// A lane-wise reducer S made to reduce over its lanes as well.
template <template <class, int> class S, class T, int L> struct Across {
  S<T, L> body;
  S<T, 1> tail;

  template <int N, class... More> GY_FN void update(Vec<T, N> v, More... more) {
    if constexpr (N == L) body.update(v, more...);
    else {
      static_assert(N == 1, "a reducer takes L lanes or one");
      tail.update(v, more...);
    }
  }
  GY_FN void merge(const Across& other) {
    body.merge(other.body);
    if constexpr (L > 1) tail.merge(other.tail);
  }
  GY_FN S<T, 1> state() const {
    if constexpr (L == 1) return body;
    else {
      S<T, 1> r = fold(body);
      r.merge(tail);
      return r;
    }
  }
  GY_FN auto result() const { return state().result(); }

 private:
  template <int N> static GY_FN S<T, 1> fold(const S<T, N>& s) {
    if constexpr (N == 1) return s;
    else {
      S<T, N / 2> low = s.template part<false>();
      low.merge(s.template part<true>());
      return fold(low);
    }
  }
};

// ---- sum --------------------------------------------------------------------------------------------------------
// Floats are added in a cascade of four levels, each flushed into the next after 32 additions: the error grows with
// 32 per level, not with the length. Integers wrap.
template <class T, int L> struct VSum {
  Vec<T, L> level[4];
  uint32_t count = 0;

  GY_FN VSum() { GY_UNROLL for (int i = 0; i < 4; ++i) level[i] = broadcast<L>(T(0)); }
  GY_FN void update(Vec<T, L> v) {
    level[0] = add(level[0], v);
    if constexpr (is_float<T>)
      if (__builtin_expect((++count & 31) == 0, 0)) flush();
  }
  GY_FN void merge(const VSum& other) { GY_UNROLL for (int i = 0; i < 4; ++i) level[i] = add(level[i], other.level[i]); }
  GY_FN Vec<T, L> result() const { return add(add(level[3], level[2]), add(level[1], level[0])); }
  template <bool Last> GY_FN VSum<T, L / 2> part() const {
    VSum<T, L / 2> r;
    r.level[0] = half<Last>(result());
    return r;
  }

 private:
  GY_FN void flush() {
    const auto zero = broadcast<L>(T(0));
    level[1] = add(level[1], level[0]);
    level[0] = zero;
    if ((count & 1023) != 0) return;
    level[2] = add(level[2], level[1]);
    level[1] = zero;
    if ((count & 32767) != 0) return;
    level[3] = add(level[3], level[2]);
    level[2] = zero;
  }
};

// ---- reducers with one value and one operation ------------------------------------------------------------------
template <class T> constexpr T lowest_value = is_float<T>       ? T(-infinity<float>)
                                              : is_signed<T>    ? T(uint<sizeof(T)>(1) << (8 * sizeof(T) - 1))
                                                                : T(0);
template <class T> constexpr T highest_value = is_float<T> ? T(infinity<float>) : T(~lowest_value<pick<is_float<T>, int, T>>);

#define GY_REDUCER(name, start, operation)                                                     \
  template <class T, int L> struct V##name {                                                   \
    Vec<T, L> value = broadcast<L>(T(start));                                                  \
    GY_FN void update(Vec<T, L> v) { value = operation(value, v); }                            \
    GY_FN void merge(const V##name& other) { update(other.value); }                            \
    GY_FN Vec<T, L> result() const { return value; }                                           \
    template <bool Last> GY_FN V##name<T, L / 2> part() const { return {half<Last>(value)}; }  \
  };                                                                                           \
  template <class T, int L> using name = Across<V##name, T, L>;
GY_REDUCER(Prod, 1, mul)
GY_REDUCER(Max, lowest_value<T>, maximum)
GY_REDUCER(Min, highest_value<T>, minimum)
GY_REDUCER(Any, false, logical_or)
GY_REDUCER(All, true, logical_and)
GY_REDUCER(Xor, 0, bitwise_xor)
#undef GY_REDUCER
template <class T, int L> using Sum = Across<VSum, T, L>;

// ---- position of the extreme ------------------------------------------------------------------------------------
// NaN is the extreme; of equal values the first index wins. Within a lane, indices must come in rising order.
template <class T, int L, bool Largest> struct VArgExtreme {
  Vec<T, L> value = broadcast<L>(T(0));
  Vec<int64_t, L> index = broadcast<L>(int64_t(0));
  bool empty = true;

  GY_FN void update(Vec<T, L> v, Vec<int64_t, L> at) {
    if (empty) {
      value = v;
      index = at;
      empty = false;
    } else take(better(v, value), v, at);
  }
  // Indices first, first + 1, ...
  GY_FN void update(Vec<T, L> v, int64_t first) { update(v, iota<L>(first, 1)); }
  GY_FN void merge(const VArgExtreme& other) {
    if (other.empty) return;
    if (empty) {
      *this = other;
      return;
    }
    auto same_value = eq(other.value, value);
    if constexpr (is_float<T>) same_value = logical_or(same_value, logical_and(isnan(other.value), isnan(value)));
    const auto earlier = logical_and(same_value, lt(other.index, index));
    take(logical_or(better(other.value, value), earlier), other.value, other.index);
  }
  GY_FN Vec<int64_t, L> result() const { return index; }
  template <bool Last> GY_FN VArgExtreme<T, L / 2, Largest> part() const {
    return {half<Last>(value), half<Last>(index), empty};
  }

 private:
  static GY_FN Vec<bool, L> better(Vec<T, L> a, Vec<T, L> b) {
    if constexpr (is_float<T>) return logical_and(logical_not(Largest ? le(a, b) : ge(a, b)), eq(b, b));
    else return Largest ? gt(a, b) : lt(a, b);
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

// ---- mean and variance ------------------------------------------------------------------------------------------
// Mean, sum of squared deviations and count, merged by Chan, Golub and LeVeque's formula.
template <class T, int L> struct Moments {
  Vec<T, L> mean = broadcast<L>(T(0)), m2 = broadcast<L>(T(0));
  int64_t count = 0;

  GY_FN void merge(const Moments& other) {
    if (other.count == 0) return;
    if (count == 0) {
      *this = other;
      return;
    }
    const double all = double(count) + double(other.count), share = double(other.count) / all;
    const auto d = sub(other.mean, mean);
    mean = add(mean, mul(d, broadcast<L>(T(share))));
    m2 = add(add(m2, other.m2), mul(mul(d, d), broadcast<L>(T(double(count) * share))));
    count += other.count;
  }
};
// Values come in chunks of 32, each summed around its own first value (so no cancellation when the mean is large
// against the spread); chunks are merged in two levels.
template <class T, int L> struct VWelford {
  Moments<T, L> total, middle;
  Vec<T, L> shift = broadcast<L>(T(0)), sum = broadcast<L>(T(0)), squares = broadcast<L>(T(0));
  int32_t pending = 0;

  GY_FN void update(Vec<T, L> v) {
    if (pending == 0) shift = v;
    const auto d = sub(v, shift);
    sum = add(sum, d);
    squares = register_bytes > 0 ? fma(d, d, squares) : add(squares, mul(d, d));
    if (__builtin_expect(++pending == 32, 0)) {
      middle.merge(chunk());
      sum = squares = broadcast<L>(T(0));
      pending = 0;
      if (middle.count == 32 * 32) {
        total.merge(middle);
        middle = {};
      }
    }
  }
  GY_FN Moments<T, L> result() const {
    Moments<T, L> r = total;
    r.merge(middle);
    if (pending > 0) r.merge(chunk());
    return r;
  }
  GY_FN void merge(const VWelford& other) {
    Moments<T, L> r = result();
    r.merge(other.result());
    *this = {};
    total = r;
  }
  template <bool Last> GY_FN VWelford<T, L / 2> part() const {
    const auto r = result();
    VWelford<T, L / 2> p;
    p.total = {half<Last>(r.mean), half<Last>(r.m2), r.count};
    return p;
  }

 private:
  GY_FN Moments<T, L> chunk() const {
    const auto inverse = broadcast<L>(T(1) / T(pending));
    const auto mean = mul(sum, inverse);
    return {add(shift, mean), raw_max(broadcast<L>(T(0)), sub(squares, mul(sum, mean))), pending};
  }
};
template <class T, int L> using Welford = Across<VWelford, T, L>;

// ---- softmax in one pass ----------------------------------------------------------------------------------------
// The maximum and the sum of exp(x - maximum). The sum is rescaled only when the maximum grows.
template <class T, int L> struct MaxAndSum { Vec<T, L> max, sum; };
template <class T, int L> struct VOnlineSoftmax {
  Vec<T, L> max = broadcast<L>(-infinity<T>), recent = broadcast<L>(T(0)), older = broadcast<L>(T(0));
  uint32_t count = 0;

  GY_FN void update(Vec<T, L> v) {
    if (any(logical_not(le(v, max)))) raise(maximum(max, v));
    recent = add(recent, exp(sub(v, base(max))));
    if ((++count & 31) == 0) {
      older = add(older, recent);
      recent = broadcast<L>(T(0));
    }
  }
  GY_FN void merge(const VOnlineSoftmax& other) {
    VOnlineSoftmax o = other;
    const auto top = maximum(max, other.max);
    raise(top);
    o.raise(top);
    recent = add(recent, o.recent);
    older = add(older, o.older);
  }
  GY_FN MaxAndSum<T, L> result() const { return {max, add(older, recent)}; }
  template <bool Last> GY_FN VOnlineSoftmax<T, L / 2> part() const {
    const auto r = result();
    return {half<Last>(r.max), half<Last>(r.sum), broadcast<L / 2>(T(0)), 0};
  }

 private:
  template <class, int> friend struct VOnlineSoftmax;
  // A row of -inf alone has sum 0, not exp(-inf - -inf).
  static GY_FN Vec<T, L> base(Vec<T, L> m) { return where(eq(m, broadcast<L>(-infinity<T>)), broadcast<L>(T(0)), m); }
  GY_FN void raise(Vec<T, L> top) {
    const auto factor = exp(sub(max, base(top)));
    recent = mul(recent, factor);
    older = mul(older, factor);
    max = top;
  }
};
template <class T, int L> using OnlineSoftmax = Across<VOnlineSoftmax, T, L>;

}  // namespace gy
