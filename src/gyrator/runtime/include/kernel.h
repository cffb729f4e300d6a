// What printed kernels use besides vectors: loops over lanes, shares of threads, scratch rows, index
// arithmetic.
#pragma once
#include "gyrator.h"

#define GY_INLINE __attribute__((always_inline))

using size_t = decltype(sizeof(0));
extern "C" {
int omp_get_thread_num(void);
int omp_get_num_threads(void);
int posix_memalign(void**, size_t, size_t);
void free(void*);
}

namespace gy {

// ---- loops ------------------------------------------------------------------------------------------------
// The end of a loop that is no multiple of L: the first few of L lanes. What the others compute is not used:
// their loads give 0, their stores write nothing, and reducers over the lanes see a neutral element.
template <int L> struct some_lanes {
  static constexpr int value = L;
  Vec<bool, L> on;
};

// body(lanes<L>, j) for full steps of [begin, end), then body(some_lanes<L>, j) for what is left.
template <int L, class Body> GY_FN void for_lanes(int64_t begin, int64_t end, const Body& body) {
  int64_t j = begin;
  for (; j + L <= end; j += L) body(lanes<L>{}, j);
  if (j < end) body(some_lanes<L>{first_lanes<L>(end - j)}, j);
}

// ---- memory -----------------------------------------------------------------------------------------------
template <int L> GY_FN Vec<bool, L> on(some_lanes<L> some) { return some.on; }
template <int L> GY_FN Vec<bool, L> on(some_lanes<L> some, Vec<bool, L> m) { return logical_and(some.on, m); }

template <int L, class T> GY_FN Vec<T, L> load(lanes<L>, const T* from) { return load<L>(from); }
template <int L, class T> GY_FN Vec<T, L> load(some_lanes<L> some, const T* from) {
  return load<L>(from, some.on, T{});
}
template <int L, class T> GY_FN Vec<T, L> load(lanes<L>, const T* from, Vec<bool, L> m, T other) {
  return load<L>(from, m, other);
}
template <int L, class T> GY_FN Vec<T, L> load(some_lanes<L> some, const T* from, Vec<bool, L> m, T other) {
  return load<L>(from, on(some, m), other);
}
template <int L, class T> GY_FN Vec<T, L> load_strided(lanes<L>, const T* from, int64_t stride) {
  return load_strided<L>(from, stride);
}
template <int L, class T> GY_FN Vec<T, L> load_strided(some_lanes<L> some, const T* from, int64_t stride) {
  return load_strided<L>(from, stride, some.on, T{});
}
template <int L, class T>
GY_FN Vec<T, L> load_strided(lanes<L>, const T* from, int64_t stride, Vec<bool, L> m, T other) {
  return load_strided<L>(from, stride, m, other);
}
template <int L, class T>
GY_FN Vec<T, L> load_strided(some_lanes<L> some, const T* from, int64_t stride, Vec<bool, L> m, T other) {
  return load_strided<L>(from, stride, on(some, m), other);
}
// Lane i reads *at(i).
template <int L, class T, class At> GY_FN Vec<T, L> load_lanes(lanes<L>, const T*, At at) {
  Lanes<T, L> r;
  GY_UNROLL for (int i = 0; i < L; ++i) r.at[i] = *at(i);
  return pack(r);
}
template <int L, class T, class At> GY_FN Vec<T, L> load_lanes(some_lanes<L> some, const T*, At at) {
  const uint64_t bits = mask_bits(some.on);
  Lanes<T, L> r;
  for (int i = 0; i < L; ++i) r.at[i] = bits >> i & 1 ? *at(i) : T{};
  return pack(r);
}
#if defined(GY_SIMD)
// N elements in the first lanes of a register; what is in the others does not matter.
template <class P, int N, class E> GY_FN P read_low(const E* from) {
  constexpr int bytes = N * int(sizeof(E));
  if constexpr (bytes == sizeof(P)) return read_as<P>(from);
  else if constexpr (bytes < 16) {
    using word = uint<bytes>;
    const native<word, 16 / bytes> low{*reinterpret_cast<const native_unaligned<word, 1>*>(from)};
    if constexpr (sizeof(P) == 16) return (P)low;
    else return read_low<P, 16 / int(sizeof(E))>(reinterpret_cast<const E*>(&low));
  } else if constexpr (bytes == 16 && sizeof(P) == 32)
    return (P)__builtin_ia32_ps256_ps(read_as<v4sf>((const float*)from));
#if defined(GY_AVX512)
  else if constexpr (bytes == 16) return (P)__builtin_ia32_ps512_ps(read_as<v4sf>((const float*)from));
  else return (P)__builtin_ia32_ps512_256ps(read_as<v8sf>((const float*)from));
#endif
}
#endif
// Lane i reads from[i / D * S], for D that divides L.
template <int D, int64_t S, int L, class T> GY_FN Vec<T, L> load_repeated(lanes<L> all, const T* from) {
  using V = Vec<T, L>;
  using E = typename V::element;
  V r;
  const auto* q = reinterpret_cast<const E*>(from);
  if constexpr (V::lanes <= D) { GY_EACH(V, r.p[i] = q[i * V::lanes / D * S] - typename V::P{};) }
#if defined(GY_SIMD)
  else if constexpr (S == 1) {
    GY_EACH(V, const auto some = read_low<typename V::P, V::lanes / D>(q + i * V::lanes / D);
            r.p[i] = spread_lanes<D>(some, indices<V::lanes>{});)
  } else if constexpr (S == D) {
    using Half = native<E, V::lanes / 2>;  // two, without what lies behind the last element
    GY_EACH(V, const auto* at = q + i * V::lanes;
            const auto both = join_lanes(read_as<Half>(at), read_as<Half>(at + V::lanes / 2 - 1), indices<V::lanes>{});
            r.p[i] = spread_first<D>(both, indices<V::lanes>{});)
  }
#endif
  else return load_lanes(all, from, [=](int i) { return from + i / D * S; });
  return r;
}
template <int D, int64_t S, int L, class T> GY_FN Vec<T, L> load_repeated(some_lanes<L> some, const T* from) {
  return load_lanes(some, from, [=](int i) { return from + i / D * S; });
}
template <int D, int64_t S, int L, class T>
GY_FN Vec<T, L> load_repeated(lanes<L> all, const T* from, Vec<bool, L> m, T other) {
  const uint64_t bits = mask_bits(m);
  if (bits == ~uint64_t(0) >> (64 - L)) return load_repeated<D, S>(all, from);
  if (bits == 0) return broadcast<L>(other);
  Lanes<int64_t, L> at;
  GY_UNROLL for (int i = 0; i < L; ++i) at.at[i] = i / D * S;
  return gather<L>(from, pack(at), m, other);
}
template <int D, int64_t S, int L, class T>
GY_FN Vec<T, L> load_repeated(some_lanes<L> some, const T* from, Vec<bool, L> m, T other) {
  return load_repeated<D, S>(lanes<L>{}, from, on(some, m), other);
}
// Lane i reads from[i % D * S], for D that divides L.
template <int D, int64_t S, int L, class T> GY_FN Vec<T, L> load_cycled(lanes<L> all, const T* from) {
#if defined(GY_SIMD)
  using V = Vec<T, L>;
  using E = typename V::element;
  if constexpr (S == 1 && V::lanes > 1) {
    V r;
    const auto* q = reinterpret_cast<const E*>(from);
    if constexpr (V::lanes <= D) { GY_EACH(V, r.p[i] = read_as<typename V::P>(q + i * V::lanes % D);) }
    else { GY_EACH(V, r.p[i] = cycle_lanes<D>(read_low<typename V::P, D>(q), indices<V::lanes>{});) }
    return r;
  }
#endif
  return load_lanes(all, from, [=](int i) { return from + i % D * S; });
}
template <int D, int64_t S, int L, class T> GY_FN Vec<T, L> load_cycled(some_lanes<L> some, const T* from) {
  return load_lanes(some, from, [=](int i) { return from + i % D * S; });
}
// Lane i reads from[run_at<D, S>(i)], for D that divides L: runs of D elements, S apart.
template <int D, int64_t S> GY_FN constexpr int64_t run_at(int i) { return i / D * S + i % D; }
template <int D, int64_t S, int L, class T> GY_FN Vec<T, L> load_runs(lanes<L> all, const T* from) {
#if defined(GY_SIMD)
  using V = Vec<T, L>;
  using E = typename V::element;
  if constexpr (V::lanes > 1 && (V::lanes <= D || V::lanes == 2 * D && V::bytes >= 32)) {
    V r;
    const auto* q = reinterpret_cast<const E*>(from);
    if constexpr (V::lanes <= D) {
      GY_EACH(V, r.p[i] = read_as<typename V::P>(q + run_at<D, S>(i * V::lanes));)
    } else {
      using Run = native<E, D>;
      GY_EACH(V, const auto* at = q + 2 * i * S; r.p[i] = join<typename V::P>(read_as<Run>(at), read_as<Run>(at + S));)
    }
    return r;
  }
#endif
  return load_lanes(all, from, [=](int i) { return from + run_at<D, S>(i); });
}
template <int D, int64_t S, int L, class T> GY_FN Vec<T, L> load_runs(some_lanes<L> some, const T* from) {
  return load_lanes(some, from, [=](int i) { return from + run_at<D, S>(i); });
}
template <int D, int64_t S, int L, class T>
GY_FN Vec<T, L> load_runs(lanes<L>, const T* from, Vec<bool, L> m, T other) {
#if defined(GY_AVX2)
  using V = Vec<T, L>;
  if constexpr (sizeof(T) == 4 && V::lanes > 1 && V::lanes <= D) {
    V r;
    GY_EACH(V, const Vec<bool, V::lanes> some{{{m.m.p[i]}}};
               r.p[i] = load<V::lanes>(from + run_at<D, S>(i * V::lanes), some, other).p[0];)
    return r;
  }
#endif
  Lanes<int64_t, L> at;
  GY_UNROLL for (int i = 0; i < L; ++i) at.at[i] = run_at<D, S>(i);
  return gather<L>(from, pack(at), m, other);
}
template <int D, int64_t S, int L, class T>
GY_FN Vec<T, L> load_runs(some_lanes<L> some, const T* from, Vec<bool, L> m, T other) {
  return load_runs<D, S>(lanes<L>{}, from, on(some, m), other);
}
template <int L, class T, class I> GY_FN Vec<T, L> gather(lanes<L>, const T* from, Vec<I, L> offset) {
  return gather<L>(from, offset);
}
template <int L, class T, class I>
GY_FN Vec<T, L> gather(some_lanes<L> some, const T* from, Vec<I, L> offset) {
  return gather<L>(from, offset, some.on, T{});
}
template <int L, class T, class I>
GY_FN Vec<T, L> gather(lanes<L>, const T* from, Vec<I, L> offset, Vec<bool, L> m, T other) {
  return gather<L>(from, offset, m, other);
}
template <int L, class T, class I>
GY_FN Vec<T, L> gather(some_lanes<L> some, const T* from, Vec<I, L> offset, Vec<bool, L> m, T other) {
  return gather<L>(from, offset, on(some, m), other);
}

// A gather whose lanes lie beside each other if the last one is L - 1 elements behind the first.
template <class Some, class T, class Offset, class... Mask>
GY_FN auto load_near(Some some, const T* from, int64_t first, int64_t last, Offset offset, Mask... mask) {
  return last - first == Some::value - 1 ? load(some, from + first, mask...) : gather(some, from, offset(), mask...);
}
// With one mask for all lanes nothing is read where it does not hold.
template <class Some, class T> GY_FN auto load(Some some, const T* from, Vec<bool, 1> m, T other) {
  return scalar(m) ? load(some, from) : broadcast<Some::value>(other);
}
template <class Some, class T>
GY_FN auto load_strided(Some some, const T* from, int64_t stride, Vec<bool, 1> m, T other) {
  return scalar(m) ? load_strided(some, from, stride) : broadcast<Some::value>(other);
}
template <int D, int64_t S, class Some, class T>
GY_FN auto load_repeated(Some some, const T* from, Vec<bool, 1> m, T other) {
  return scalar(m) ? load_repeated<D, S>(some, from) : broadcast<Some::value>(other);
}
template <int D, int64_t S, class Some, class T>
GY_FN auto load_runs(Some some, const T* from, Vec<bool, 1> m, T other) {
  return scalar(m) ? load_runs<D, S>(some, from) : broadcast<Some::value>(other);
}
template <class Some, class T, class I, int L>
GY_FN auto gather(Some some, const T* from, Vec<I, L> offset, Vec<bool, 1> m, T other) {
  return scalar(m) ? gather(some, from, offset) : broadcast<L>(other);
}

template <int L, class T, class... Mask> GY_FN void store(lanes<L>, T* to, Vec<T, L> v, Mask... m) {
  store(to, v, m...);
}
template <int L, class T, class... Mask> GY_FN void store(some_lanes<L> some, T* to, Vec<T, L> v, Mask... m) {
  store(to, v, on(some, m...));
}
// Of a scratch row, which has room for a whole vector at its end: what is written with a mask is read late.
template <template <int> class Some, int L, class T, class... Mask>
GY_FN Vec<T, L> load_whole(Some<L>, const T* from, Mask... m) { return load(lanes<L>{}, from, m...); }
template <template <int> class Some, int L, class T, class... Mask>
GY_FN void store_whole(Some<L>, T* to, Vec<T, L> v, Mask... m) { store(to, v, m...); }
template <int L, class T, class At, class... Mask>
GY_FN void store_strided(lanes<L>, T* to, At at, Vec<T, L> v, Mask... m) {
  store_strided(to, at, v, m...);
}
template <int L, class T, class At, class... Mask>
GY_FN void store_strided(some_lanes<L> some, T* to, At at, Vec<T, L> v, Mask... m) {
  store_strided(to, at, v, on(some, m...));
}
template <int L, class T, class I, class... Mask>
GY_FN void scatter(lanes<L>, T* to, Vec<I, L> at, Vec<T, L> v, Mask... m) {
  scatter(to, at, v, m...);
}
template <int L, class T, class I, class... Mask>
GY_FN void scatter(some_lanes<L> some, T* to, Vec<I, L> at, Vec<T, L> v, Mask... m) {
  scatter(to, at, v, on(some, m...));
}

template <int L, class I>
GY_FN Vec<I, L> check_index(lanes<L>, Vec<I, L> v, int64_t size, int* status, int site) {
  return check_index(v, size, status, site);
}
template <int L, class I>
GY_FN Vec<I, L> check_index(some_lanes<L> some, Vec<I, L> v, int64_t size, int* status, int site) {
  return check_index(where(some.on, v, broadcast<L>(I(0))), size, status, site);
}

// ---- threads ----------------------------------------------------------------------------------------------
// How many threads a loop of `steps` iterations of `cost` cheap instructions is worth: each gets at least
// 30,000.
GY_FN int team_size(int threads, int64_t steps, int64_t cost) {
  const int64_t worth = steps * (cost > 0 ? cost : 1) / 30000;
  const int64_t most = worth < threads ? worth : threads;
  const int64_t useful = most < steps ? most : steps;
  return useful < 1 ? 1 : int(useful);
}

struct Range { int64_t begin, end; };
// This thread's part of [0, steps): the same in every run with as many threads.
GY_FN Range share(int64_t steps) {
  const int64_t me = omp_get_thread_num(), all = omp_get_num_threads();
  return {steps * me / all, steps * (me + 1) / all};
}

// Memory of one thread, aligned to a cache line, with room for a last vector. The element types are trivial.
template <class T> struct Scratch {
  T* at = nullptr;
  explicit Scratch(int64_t count) {
    void* memory = nullptr;
    if (posix_memalign(&memory, 64, size_t(count + 64) * sizeof(T)) != 0) __builtin_trap();
    at = static_cast<T*>(memory);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() { free(at); }
};

// One T per thread, for the partial results of a parallel loop.
template <class T> struct PerThread {
  Scratch<T> parts;
  int count;
  explicit PerThread(int team) : parts(team), count(team) {
    for (int i = 0; i < count; ++i) parts.at[i] = T();
  }
  GY_FN T& mine() const { return parts.at[omp_get_thread_num()]; }
  // All parts in the order of the threads, so that a run repeats bit for bit.
  GY_FN T merged() const {
    T all = parts.at[0];
    for (int i = 1; i < count; ++i) all.merge(parts.at[i]);
    return all;
  }
};

// ---- index arithmetic -------------------------------------------------------------------------------------
GY_FN int64_t max_index(int64_t a, int64_t b) { return a > b ? a : b; }
GY_FN constexpr int64_t min_index(int64_t a, int64_t b) { return a < b ? a : b; }
// Rounded down; d > 0.
GY_FN int64_t floor_div(int64_t a, int64_t d) { return a / d - (a % d < 0); }
GY_FN int64_t floor_mod(int64_t a, int64_t d) { return a % d + (a % d < 0 ? d : 0); }

// first + i * S / D and i * S % D for lane i, rounded down.
template <int L, int S, int D> GY_FN Vec<int64_t, L> iota_div(int64_t first) {
  Lanes<int64_t, L> r;
  GY_UNROLL for (int i = 0; i < L; ++i) r.at[i] = i * S / D;
  return add(pack(r), broadcast<L>(first));
}
template <int L, int S, int D> GY_FN Vec<int64_t, L> iota_mod() {
  Lanes<int64_t, L> r;
  GY_UNROLL for (int i = 0; i < L; ++i) r.at[i] = i * S % D;
  return pack(r);
}

// a / d and a % d for 0 <= a < 2^51 and one divisor d > 0 for all lanes. The quotient of doubles is never
// rounded up to the next integer: that is at least 1/d away, more than half a unit in the last place of a
// number below 2^52 / d.
template <int L> GY_FN Vec<int64_t, L> div_index(Vec<int64_t, L> a, int64_t d) {
#if defined(GY_AVX512)
  if constexpr (L > 1) return cast<int64_t>(div(cast<double>(a), broadcast<L>(double(d))));
#elif defined(GY_SIMD)
  if constexpr (Vec<double, L>::lanes > 1)
    return small_to_int64(div(int64_to_double(a), broadcast<L>(double(d))));
#endif
  return map<int64_t>(a, [d](int64_t x) { return x / d; });
}
template <int L> GY_FN Vec<int64_t, L> mod_index(Vec<int64_t, L> a, int64_t d) {
  return sub(a, mul(div_index(a, d), broadcast<L>(d)));
}

// ---- combining stores -------------------------------------------------------------------------------------
struct by_add { template <class V> GY_FN V operator()(V a, V b) const { return add(a, b); } };
struct by_mul { template <class V> GY_FN V operator()(V a, V b) const { return mul(a, b); } };
struct by_maximum { template <class V> GY_FN V operator()(V a, V b) const { return maximum(a, b); } };
struct by_minimum { template <class V> GY_FN V operator()(V a, V b) const { return minimum(a, b); } };
struct plain {};
struct atomic {};

// a op b, 16-bit and 8-bit floats in float.
template <class Op, class T, int L> GY_FN Vec<T, L> combined(Vec<T, L> a, Vec<T, L> b) {
  if constexpr (is_half<T> || is_f8<T>) return cast<T>(Op()(cast<float>(a), cast<float>(b)));
  else return Op()(a, b);
}
template <class Op, class T> GY_FN T combined_one(T a, T b) {
  return scalar(combined<Op>(broadcast<1>(a), broadcast<1>(b)));
}
template <class Op, class T> GY_FN void combine_one(T* at, T value, plain) { *at = combined_one<Op>(*at, value); }
template <class Op, class T> GY_FN void combine_one(T* at, T value, atomic) {
  using Bits = uint<sizeof(T)>;
  Bits* const word = reinterpret_cast<Bits*>(at);
  Bits old = __atomic_load_n(word, __ATOMIC_RELAXED);
  while (!__atomic_compare_exchange_n(word, &old, bits_as<Bits>(combined_one<Op>(bits_as<T>(old), value)), true,
                                      __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
}

// to[offset] op= v for one lane after the other (where the mask holds), so that lanes may hit the same
// element.
template <class Op, class How, class T, class I, int L>
GY_FN void combine(lanes<L>, T* to, Vec<I, L> offset, Vec<T, L> v) {
  const auto at = unpack(offset);
  const auto a = unpack(v);
  for (int i = 0; i < L; ++i) combine_one<Op>(to + at.at[i], a.at[i], How());
}
template <class Op, class How, class T, class I, int L>
GY_FN void combine(lanes<L>, T* to, Vec<I, L> offset, Vec<T, L> v, Vec<bool, L> m) {
  const uint64_t bits = mask_bits(m);
  const auto at = unpack(offset);
  const auto a = unpack(v);
  for (int i = 0; i < L; ++i)
    if (bits >> i & 1) combine_one<Op>(to + at.at[i], a.at[i], How());
}
template <class Op, class How, class T, class I, int L, class... Mask>
GY_FN void combine(some_lanes<L> some, T* to, Vec<I, L> offset, Vec<T, L> v, Mask... m) {
  combine<Op, How>(lanes<L>{}, to, offset, v, on(some, m...));
}

// ---- reducers over the lanes ------------------------------------------------------------------------------
template <int L, class R, class... V> GY_FN void update(lanes<L>, R& reducer, V... v) {
  reducer.update(v...);
}
template <int L, class R, class... V> GY_FN void update(some_lanes<L> some, R& reducer, V... v) {
  reducer.update_some(some.on, v...);
}

}  // namespace gy
