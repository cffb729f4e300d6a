// Vec<T, L>: L values of type T, held as an array of register-width vectors; loads, stores, broadcasts.
//
// The library is compiled in one of three modes, picked by the instruction set that the compiler was given:
// AVX-512 (F, BW, DQ, VL; 64-byte registers), AVX2 with FMA and F16C (32-byte registers), and a scalar
// fallback. Every function is a template over L in {1, 2, 4, 8, 16, 32, 64} and gives the same bits for every
// L, so that a loop's body can be written once and called with many lanes and, for the tail, with one.
#pragma once
#include <stdint.h>

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__) && \
    !defined(__clang__)
#define GY_AVX512 1
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__) && !defined(__clang__)
#define GY_AVX2 1
#endif
#if defined(GY_AVX512) || defined(GY_AVX2)
#define GY_SIMD 1
#endif

// Vectors never cross a call (every function is inlined), so the calling convention of wide ones does not
// matter.
#pragma GCC diagnostic ignored "-Wpsabi"

#define GY_FN inline __attribute__((always_inline))
// Small loops over the registers of one Vec must be unrolled before scalar replacement, or they live in
// memory. The fallback has one lane per part and is best used with L = 1; there loops stay loops.
#if defined(GY_SIMD)
#define GY_UNROLL _Pragma("GCC unroll 64")
#else
#define GY_UNROLL
#endif

// Runs the statements for each part i of V. One and two parts are written out: it compiles faster than a
// loop.
#define GY_EACH(V, ...)                                                                               \
  if constexpr (V::parts == 1) {                                                                      \
    constexpr int i = 0;                                                                              \
    __VA_ARGS__                                                                                       \
  } else if constexpr (V::parts == 2) {                                                               \
    { constexpr int i = 0; __VA_ARGS__ }                                                              \
    { constexpr int i = 1; __VA_ARGS__ }                                                              \
  } else {                                                                                            \
    GY_UNROLL for (int i = 0; i < V::parts; ++i) { __VA_ARGS__ }                                      \
  }

namespace gy {

// ---- element types ----------------------------------------------------------------------------------------
struct bf16 { uint16_t bits; };
struct f16 { uint16_t bits; };
struct f8e4m3fn { uint8_t bits; };
struct f8e5m2 { uint8_t bits; };

template <bool C, class A, class B> struct pick_type { using type = A; };
template <class A, class B> struct pick_type<false, A, B> { using type = B; };
template <bool C, class A, class B> using pick = typename pick_type<C, A, B>::type;

template <class A, class B> constexpr bool same = __is_same(A, B);
template <class T> constexpr bool is_float = same<T, float> || same<T, double>;
template <class T> constexpr bool is_half = same<T, bf16> || same<T, f16>;
template <class T> constexpr bool is_f8 = same<T, f8e4m3fn> || same<T, f8e5m2>;
template <class T> constexpr bool is_small = is_half<T> || is_f8<T>;
template <class T> constexpr bool is_real = is_float<T> || is_small<T>;
template <class T> constexpr bool is_bool = same<T, bool>;
template <class T> constexpr bool is_int = !is_float<T> && !is_half<T> && !is_f8<T> && !is_bool<T>;
template <class T> constexpr T infinity = T(__builtin_inff());
template <class T> constexpr T quiet_nan = T(__builtin_nanf(""));
template <class T>
constexpr bool is_signed =
    is_float<T> || same<T, int8_t> || same<T, int16_t> || same<T, int32_t> || same<T, int64_t>;
template <int Size> using sint =
    pick<Size == 1, int8_t, pick<Size == 2, int16_t, pick<Size == 4, int32_t, int64_t>>>;
template <int Size> using uint =
    pick<Size == 1, uint8_t, pick<Size == 2, uint16_t, pick<Size == 4, uint32_t, uint64_t>>>;
// What a register holds: 16-bit and 8-bit floats are kept as their bits.
template <class T> using rep = pick<is_small<T>, uint<sizeof(T)>, T>;
// The type in which wrapping arithmetic is defined.
template <class T> using wrap = pick<is_float<T>, T, uint<sizeof(T)>>;

// ---- registers --------------------------------------------------------------------------------------------
template <class T, int N> struct native_type {
  typedef T type __attribute__((vector_size(N * sizeof(T))));
  typedef T unaligned __attribute__((vector_size(N * sizeof(T)), aligned(1), may_alias));
};
template <class T> struct native_type<T, 1> {
  typedef T type;
  typedef T unaligned __attribute__((aligned(1), may_alias));
};
template <class T, int N> using native = typename native_type<T, N>::type;
template <class T, int N> using native_unaligned = typename native_type<T, N>::unaligned;

#if defined(GY_AVX512)
constexpr int register_bytes = 64;
#elif defined(GY_AVX2)
constexpr int register_bytes = 32;
#else
constexpr int register_bytes = 0;
#endif
// Lanes of one register: scalars where a vector would be under 16 bytes.
template <class T> constexpr int lanes_per_part(int lanes) {
  const int bytes = lanes * int(sizeof(T));
  if (register_bytes == 0 || bytes < 16) return 1;
  return bytes < register_bytes ? lanes : register_bytes / int(sizeof(T));
}

template <class T, int L> struct Vec {
  using element = rep<T>;
  static constexpr int lanes = lanes_per_part<T>(L);
  static constexpr int parts = L / lanes;
  static constexpr int bytes = lanes * int(sizeof(T));
  using P = native<element, lanes>;                              // one part
  using U = native<wrap<element>, lanes>;                        // the same part where arithmetic wraps
  using B = native<uint<sizeof(T)>, lanes>;                      // the same part as bits
  P p[parts];
};

// A mask. AVX-512 and the fallback keep one bit per lane, AVX2 a 32-bit 0 or -1 per lane, one lane is a bool.
template <int L> struct Vec<bool, L> {
#if defined(GY_AVX2)
  Vec<int32_t, L> m;
#else
  using bits_type = uint<(L <= 8 ? 1 : L / 8)>;
  static constexpr uint64_t full = L == 64 ? ~uint64_t(0) : (uint64_t(1) << (L % 64)) - 1;
  bits_type bits;
#endif
};
template <> struct Vec<bool, 1> { bool bits; };

// Whether a vector's registers hold several numbers each; masks have none.
template <class V> constexpr bool in_registers = requires { requires V::lanes > 1; };

template <int L> struct lanes { static constexpr int value = L; };

template <class To, class From> GY_FN To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  if constexpr (same<To, From>) return from;
  else if constexpr (sizeof(To) >= 16) return (To)from;
  else return __builtin_bit_cast(To, from);
}

// ---- whole registers of another width ---------------------------------------------------------------------
#if defined(GY_SIMD)
template <int... I> struct sequence {};
template <int N> using indices = sequence<__integer_pack(N)...>;
template <int Start, int... I, class V> GY_FN auto take_lanes(V v, sequence<I...>) {
  return __builtin_shufflevector(v, v, (Start + I)...);
}
template <int... I, class V> GY_FN auto join_lanes(V a, V b, sequence<I...>) {
  return __builtin_shufflevector(a, b, I...);
}
template <int K, int... I, class V> GY_FN V exchange_within(V v, sequence<I...>) {
  return __builtin_shufflevector(v, v, (I ^ K)...);
}
// Each lane D times; the first D lanes in turns; the first of each D lanes D times, where the upper half begins with
// the last lane of the lower one.
template <int D, int... I, class V> GY_FN V spread_lanes(V v, sequence<I...>) {
  return __builtin_shufflevector(v, v, (I / D)...);
}
template <int D, int... I, class V> GY_FN V cycle_lanes(V v, sequence<I...>) {
  return __builtin_shufflevector(v, v, (I % D)...);
}
template <int D, int... I, class V> GY_FN V spread_first(V v, sequence<I...>) {
  return __builtin_shufflevector(v, v, (I / D * D + (I / D * D >= int(sizeof...(I)) / 2))...);
}
// The last K lanes of a, then the first ones of b.
template <int K, int... I, class V> GY_FN V shift_in(V a, V b, sequence<I...>) {
  return __builtin_shufflevector(a, b, (int(sizeof...(I)) - K + I)...);
}
// The k-th piece of To's size inside v.
template <class To, int K, class V> GY_FN To piece(V v) {
  if constexpr (sizeof(To) == sizeof(V)) return (To)v;
  else
    return (To)take_lanes<K* int(sizeof(To)) / 8>((native<int64_t, sizeof(V) / 8>)v,
                                                  indices<sizeof(To) / 8>{});
}
// The same with k known only after unrolling; v has Pieces of them.
template <class To, int Pieces, class V> GY_FN To nth_piece(V v, int k) {
  if constexpr (Pieces == 1) return (To)v;
  else if constexpr (Pieces == 2) return k == 0 ? piece<To, 0>(v) : piece<To, 1>(v);
  else
    return k == 0 ? piece<To, 0>(v) : k == 1 ? piece<To, 1>(v) : k == 2 ? piece<To, 2>(v) : piece<To, 3>(v);
}
template <class To, class V> GY_FN To join(V low, V high) {
  using Q = native<int64_t, sizeof(V) / 8>;
  return (To)join_lanes((Q)low, (Q)high, indices<2 * sizeof(V) / 8>{});
}
#endif

// ---- memory -----------------------------------------------------------------------------------------------
template <class V, class E> GY_FN V read_as(const E* from) {
  return *reinterpret_cast<const native_unaligned<E, sizeof(V) / sizeof(E)>*>(from);
}

template <int L, class T> GY_FN Vec<T, L> load(const T* from) {
  using V = Vec<T, L>;
  V r;
  const auto* q = reinterpret_cast<const typename V::element*>(from);
  using unaligned = native_unaligned<typename V::element, V::lanes>;
  GY_EACH(V, r.p[i] = *reinterpret_cast<const unaligned*>(q + i * V::lanes);)
  return r;
}

template <class T, int L> GY_FN void store(T* to, Vec<T, L> v) {
  using V = Vec<T, L>;
  auto* q = reinterpret_cast<typename V::element*>(to);
  using unaligned = native_unaligned<typename V::element, V::lanes>;
  GY_EACH(V, *reinterpret_cast<unaligned*>(q + i * V::lanes) = v.p[i];)
}

template <int L> GY_FN Vec<bool, L> load(const bool* from);      // mask.h
template <int L> GY_FN void store(bool* to, Vec<bool, L> v);     // mask.h

template <int L, class T> GY_FN Vec<T, L> broadcast(T value) {
  using V = Vec<T, L>;
  V r;
  const auto e = bits_as<typename V::element>(value);
  if constexpr (V::lanes == 1) { GY_EACH(V, r.p[i] = e;) }
  else { GY_EACH(V, r.p[i] = e - typename V::P{};) }          // x - 0 keeps every x, -0 too
  return r;
}
template <int L> GY_FN Vec<bool, L> broadcast(bool value) {
#if defined(GY_AVX2)
  if constexpr (L > 1) return {broadcast<L>(value ? int32_t(-1) : int32_t(0))};
  else return {value};
#else
  if constexpr (L > 1) return {typename Vec<bool, L>::bits_type(value ? Vec<bool, L>::full : 0)};
  else return {value};
#endif
}

template <int L, class T> GY_FN Vec<T, L> broadcast(Vec<T, 1> v) { return broadcast<L>(bits_as<T>(v.p[0])); }
template <int L> GY_FN Vec<bool, L> broadcast(Vec<bool, 1> v) { return broadcast<L>(v.bits); }

// start, start + step, ..., start + (L-1) * step; T is not deduced.
template <class T> struct given { using type = T; };
template <int L, class T = int64_t> GY_FN Vec<T, L> iota(typename given<T>::type start, typename given<T>::type step) {
  using V = Vec<T, L>;
  V r;
  GY_UNROLL for (int i = 0; i < V::parts; ++i) {
    if constexpr (V::lanes == 1) r.p[i] = start + i * step;
    else {
      GY_UNROLL for (int k = 0; k < V::lanes; ++k) r.p[i][k] = i * V::lanes + k;
      r.p[i] = r.p[i] * step + start;
    }
  }
  return r;
}

// ---- lanes one by one -------------------------------------------------------------------------------------
template <class T, int L> struct Lanes {
  alignas(L * sizeof(T) < 64 ? L * sizeof(T) : 64) T at[L];
};
template <class T, int L> GY_FN Lanes<T, L> unpack(Vec<T, L> v) {
  Lanes<T, L> r;
  store(r.at, v);
  return r;
}
template <class T, int L> GY_FN Vec<T, L> pack(const Lanes<T, L>& a) { return load<L>(a.at); }

template <class T, int L> GY_FN T lane(Vec<T, L> v, int i) { return unpack(v).at[i]; }
template <class T> GY_FN T scalar(Vec<T, 1> v) { return bits_as<T>(v.p[0]); }
GY_FN bool scalar(Vec<bool, 1> v) { return v.bits; }

// f applied to each lane by a loop: for library calls that have no vector form.
template <class To, class F, class T, int L> GY_FN Vec<To, L> map(Vec<T, L> v, F f) {
  if constexpr (L == 1) return broadcast<1>(To(f(scalar(v))));
  else {
    const auto a = unpack(v);
    Lanes<To, L> r;
    for (int i = 0; i < L; ++i) r.at[i] = f(a.at[i]);
    return pack(r);
  }
}
template <class To, class F, class T, class S, int L> GY_FN Vec<To, L> map(Vec<T, L> x, Vec<S, L> y, F f) {
  if constexpr (L == 1) return broadcast<1>(To(f(scalar(x), scalar(y))));
  else {
    const auto a = unpack(x);
    const auto b = unpack(y);
    Lanes<To, L> r;
    for (int i = 0; i < L; ++i) r.at[i] = f(a.at[i], b.at[i]);
    return pack(r);
  }
}

#if defined(GY_SIMD)
// Each S-th element, in registers: of S registers side by side the last begins earlier, so that it ends with the last
// element. Lanes of the K-th are put where they belong.
template <int S, int K, int... I, class V> GY_FN V put_each(V r, V v, sequence<I...>) {
  constexpr int P = sizeof...(I), start = K < S - 1 ? K * P : (P - 1) * (S - 1);
  return __builtin_shufflevector(r, v, ((I * S / P < S - 1 ? I * S / P : S - 1) == K ? P + I * S - start : I)...);
}
template <int S, int K, class V, class E> GY_FN V each(V r, const E* from) {
  if constexpr (K == S) return r;
  else {
    constexpr int P = sizeof(V) / sizeof(E), start = K < S - 1 ? K * P : (P - 1) * (S - 1);
    return each<S, K + 1>(put_each<S, K>(r, read_as<V>(from + start), indices<P>{}), from);
  }
}
template <class V, int... I> GY_FN V reversed(V v, sequence<I...>) {
  return __builtin_shufflevector(v, v, (int(sizeof...(I)) - 1 - I)...);
}
template <int S, class V, class E> GY_FN V load_each(const E* from) {
  V r;
  GY_EACH(V, r.p[i] = each<S, 0>(typename V::P{}, from + i * S * V::lanes);)
  return r;
}
#endif
template <int L, class T> GY_FN Vec<T, L> load_strided(const T* from, int64_t stride) {
  using V = Vec<T, L>;
#if defined(GY_SIMD)
  if constexpr (in_registers<V>)
    if (__builtin_constant_p(stride) && (stride == -1 || (stride > 1 && stride <= 8))) {
      const auto* q = reinterpret_cast<const typename V::element*>(from);
      V r;
      switch (stride) {
        case -1:
          GY_EACH(V, r.p[i] = reversed(read_as<typename V::P>(q - (i + 1) * V::lanes + 1), indices<V::lanes>{});)
          return r;
        case 2: return load_each<2, V>(q);
        case 3: return load_each<3, V>(q);
        case 4: return load_each<4, V>(q);
        case 5: return load_each<5, V>(q);
        case 6: return load_each<6, V>(q);
        case 7: return load_each<7, V>(q);
        default: return load_each<8, V>(q);
      }
    }
#endif
  Lanes<T, L> r;
  GY_UNROLL for (int i = 0; i < L; ++i) r.at[i] = from[i * stride];
  return pack(r);
}
template <class T, int L> GY_FN void store(T* to, Vec<T, L> v, Vec<bool, L> m);      // mask.h
#if defined(GY_AVX512)
// The same way back: register K of S side by side has each S-th element alone.
template <int S, int K, class T, int P, int... I> GY_FN void store_kth(T* to, Vec<T, P> v, sequence<I...>) {
  constexpr uint64_t bits = ((uint64_t((K * P + I) % S == 0) << I) | ...);
  const Vec<T, P> spread{{__builtin_shufflevector(v.p[0], v.p[0], ((K * P + I) / S)...)}};
  store(to + K * P, spread, Vec<bool, P>{typename Vec<bool, P>::bits_type(bits)});
}
template <int S, class T, int L, int... K> GY_FN void store_each(T* to, Vec<T, L> v, sequence<K...>) {
  using V = Vec<T, L>;
  GY_EACH(V, (store_kth<S, K>(to + i * S * V::lanes, Vec<T, V::lanes>{{v.p[i]}}, indices<V::lanes>{}), ...);)
}
#endif
template <class T, int L> GY_FN void store_strided(T* to, int64_t stride, Vec<T, L> v) {
#if defined(GY_AVX512)
  if constexpr (in_registers<Vec<T, L>>) {
    if (__builtin_constant_p(stride) && stride > 1 && stride <= 4) {
      if (stride == 2) return store_each<2>(to, v, indices<2>{});
      if (stride == 3) return store_each<3>(to, v, indices<3>{});
      return store_each<4>(to, v, indices<4>{});
    }
  }
#endif
  const auto a = unpack(v);
  GY_UNROLL for (int i = 0; i < L; ++i) to[i * stride] = a.at[i];
}

// Lane i gets lane i ^ K; K is a power of two below L.
template <int K, class T, int L> GY_FN Vec<T, L> exchange_lanes(Vec<T, L> v) {
  using V = Vec<T, L>;
  V r;
  if constexpr (K >= V::lanes) { GY_EACH(V, r.p[i] = v.p[i ^ (K / V::lanes)];) }
#if defined(GY_SIMD)
  else { GY_EACH(V, r.p[i] = exchange_within<K>(v.p[i], indices<V::lanes>{});) }
#endif
  return r;
}
template <class T, int L> GY_FN Vec<T, 1> last_lane(Vec<T, L> v) {
  constexpr int last = Vec<T, L>::lanes - 1;
  if constexpr (last == 0) return {{v.p[Vec<T, L>::parts - 1]}};
  else return {{v.p[Vec<T, L>::parts - 1][last]}};
}
template <class T, int L> GY_FN Vec<T, 1> first_lane(Vec<T, L> v) {
  if constexpr (Vec<T, L>::lanes == 1) return {{v.p[0]}};
  else return {{v.p[0][0]}};
}

// The same bits under another type of the same size.
template <class To, class T, int L> GY_FN Vec<To, L> bitcast(Vec<T, L> v) {
  static_assert(sizeof(To) == sizeof(T));
  Vec<To, L> r;
  using P = typename Vec<To, L>::P;
  using V = Vec<To, L>;
  if constexpr (V::lanes == Vec<T, L>::lanes) { GY_EACH(V, r.p[i] = bits_as<P>(v.p[i]);) }
  return r;
}

}  // namespace gy
