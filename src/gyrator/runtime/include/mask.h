// Masks: comparisons, select, logic on masks, boolean loads and stores, masked memory access, gather and
// scatter. A masked access never touches memory where the mask is false.
#pragma once
#include "convert.h"

namespace gy {

// ---- comparisons ------------------------------------------------------------------------------------------
enum class Cmp { eq, ne, lt, le, gt, ge };

template <Cmp C, class T> GY_FN auto compare_native(T a, T b) {
  if constexpr (C == Cmp::eq) return a == b;
  else if constexpr (C == Cmp::ne) return a != b;
  else if constexpr (C == Cmp::lt) return a < b;
  else if constexpr (C == Cmp::le) return a <= b;
  else if constexpr (C == Cmp::gt) return a > b;
  else return a >= b;
}

#if defined(GY_AVX512)
// each(letter, width, type, name, scalar) with what instructions call a register V of integers of `size` bytes.
#define GY_SIZES(size, each, width, type1, type2, type4, type8)                               \
  if constexpr (size == 1) { each(b, width, type1, qi, char) }                                \
  else if constexpr (size == 2) { each(w, width, type2, hi, short) }                          \
  else if constexpr (size == 4) { each(d, width, type4, si, int) }                            \
  else { each(q, width, type8, di, long long) }
#define GY_INTEGERS(V, size, each)                                                            \
  if constexpr (sizeof(V) == 64) { GY_SIZES(size, each, 512, v64qi, v32hi, v16si, v8di) }     \
  else if constexpr (sizeof(V) == 32) { GY_SIZES(size, each, 256, v32qi, v16hi, v8si, v4di) } \
  else { GY_SIZES(size, each, 128, v16qi, v8hi, v4si, v2di) }

// What instructions call a comparison of floats, and one of integers.
constexpr int float_codes[] = {0, 4, 17, 18, 30, 29}, integer_codes[] = {0, 4, 1, 2, 6, 5};
// One register's comparison as bits. E: the element type.
template <Cmp C, class E, class V> GY_FN uint64_t compare_bits(V a, V b) {
  constexpr int size = sizeof(E);
  if constexpr (is_float<E>) {
    constexpr int p = float_codes[int(C)];
    if constexpr (size == 4) {
      if constexpr (sizeof(V) == 64)
        return uint16_t(__builtin_ia32_cmpps512_mask((v16sf)a, (v16sf)b, p, no_mask, current_rounding));
      else if constexpr (sizeof(V) == 32)
        return uint8_t(__builtin_ia32_cmpps256_mask((v8sf)a, (v8sf)b, p, no_mask));
      else return uint8_t(__builtin_ia32_cmpps128_mask((v4sf)a, (v4sf)b, p, no_mask)) & 15;
    } else {
      if constexpr (sizeof(V) == 64)
        return uint8_t(__builtin_ia32_cmppd512_mask((v8df)a, (v8df)b, p, no_mask, current_rounding));
      else if constexpr (sizeof(V) == 32)
        return uint8_t(__builtin_ia32_cmppd256_mask((v4df)a, (v4df)b, p, no_mask)) & 15;
      else return uint8_t(__builtin_ia32_cmppd128_mask((v2df)a, (v2df)b, p, no_mask)) & 3;
    }
  } else {
    constexpr int p = integer_codes[int(C)];
    constexpr uint64_t all =
        sizeof(V) / size == 64 ? ~uint64_t(0) : (uint64_t(1) << (sizeof(V) / size % 64)) - 1;
#define GY_COMPARE(letter, width, type, name, scalar) \
  return uint64_t(is_signed<E> ? __builtin_ia32_cmp##letter##width##_mask((type)a, (type)b, p, no_mask) \
                               : __builtin_ia32_ucmp##letter##width##_mask((type)a, (type)b, p, no_mask)) & \
         all;
    GY_INTEGERS(V, size, GY_COMPARE)
#undef GY_COMPARE
  }
}

// One register's select: `yes` where the bit is set.
template <int size, class V> GY_FN V select_bits(uint64_t m, V yes, V no) {
#define GY_SELECT(letter, width, type, name, scalar) \
  return (V)__builtin_ia32_blendm##letter##_##width##_mask((type)no, (type)yes, m);
  GY_INTEGERS(V, size, GY_SELECT)
#undef GY_SELECT
}
#endif

#if defined(GY_AVX2)
// One register's select by whole lanes of ones or zeros: no comparison with zero, as the ternary operator
// would make.
template <class M, class V> GY_FN V select_lanes(M m, V yes, V no) {
  if constexpr (sizeof(V) == 16) return (V)__builtin_ia32_pblendvb128((v16qi)no, (v16qi)yes, (v16qi)m);
  else if constexpr (same<V, native<float, 8>>)
    return (V)__builtin_ia32_blendvps256((v8sf)no, (v8sf)yes, (v8sf)m);
  else if constexpr (same<V, native<double, 4>>)
    return (V)__builtin_ia32_blendvpd256((v4df)no, (v4df)yes, (v4df)m);
  else return (V)__builtin_ia32_pblendvb256((v32qi)no, (v32qi)yes, (v32qi)m);
}
#endif

// Bits of a mask as a wider number. A comparison that GCC 12 extends itself may be spilled narrow and loaded wide, with
// garbage beyond: the extension is of bits of which it knows nothing.
template <class B> GY_FN uint64_t widen(B bits) {
#if defined(GY_AVX512)
  if constexpr (!is_bool<B>) asm("" : "+k"(bits));
#endif
  return bits;
}

template <Cmp C, class T, int L> GY_FN Vec<bool, L> compare(Vec<T, L> a, Vec<T, L> b) {
  using V = Vec<T, L>;
  if constexpr (is_small<T>) return compare<C>(convert<float>(a), convert<float>(b));
  else if constexpr (L == 1) return {bool(compare_native<C>(a.p[0], b.p[0]))};
#if defined(GY_AVX2)
  else {
    Vec<sint<sizeof(T)>, L> r;
    if constexpr (V::lanes == 1) { GY_EACH(V, r.p[i] = compare_native<C>(a.p[i], b.p[i]) ? -1 : 0;) }
    else { GY_EACH(V, r.p[i] = compare_native<C>(a.p[i], b.p[i]);) }
    return {convert<int32_t>(r)};
  }
#else
  else {
    uint64_t bits = 0;
    if constexpr (V::lanes == 1) { GY_EACH(V, bits |= uint64_t(compare_native<C>(a.p[i], b.p[i])) << i;) }
#if defined(GY_AVX512)
    else if constexpr (V::parts == 1) bits = compare_bits<C, T>(a.p[0], b.p[0]);
    else {
      using Part = typename Vec<bool, V::lanes>::bits_type;
      GY_EACH(V, bits |= widen(Part(compare_bits<C, T>(a.p[i], b.p[i]))) << (i * V::lanes);)
    }
#endif
    return {typename Vec<bool, L>::bits_type(bits)};
  }
#endif
}

#define GY_COMPARISON(name)                                                                   \
  template <class T, int L> GY_FN Vec<bool, L> name(Vec<T, L> a, Vec<T, L> b) {               \
    return compare<Cmp::name>(a, b);                                                          \
  }
GY_COMPARISON(eq) GY_COMPARISON(ne) GY_COMPARISON(lt) GY_COMPARISON(le) GY_COMPARISON(gt) GY_COMPARISON(ge)
#undef GY_COMPARISON

// ---- logic on masks ---------------------------------------------------------------------------------------
template <class F, int L> GY_FN Vec<bool, L> mask_op(Vec<bool, L> a, Vec<bool, L> b, F f) {
  if constexpr (L == 1) return {bool(f(a.bits, b.bits))};
#if defined(GY_AVX2)
  else {
    using M = Vec<int32_t, L>;
    GY_EACH(M, a.m.p[i] = f(a.m.p[i], b.m.p[i]);)
    return a;
  }
#else
  else return {typename Vec<bool, L>::bits_type(f(a.bits, b.bits))};
#endif
}
template <int L> GY_FN Vec<bool, L> logical_and(Vec<bool, L> a, Vec<bool, L> b) {
  return mask_op(a, b, [](auto x, auto y) { return x & y; });
}
template <int L> GY_FN Vec<bool, L> logical_or(Vec<bool, L> a, Vec<bool, L> b) {
  return mask_op(a, b, [](auto x, auto y) { return x | y; });
}
template <int L> GY_FN Vec<bool, L> logical_xor(Vec<bool, L> a, Vec<bool, L> b) {
  return mask_op(a, b, [](auto x, auto y) { return x ^ y; });
}
template <int L> GY_FN Vec<bool, L> logical_not(Vec<bool, L> a) { return logical_xor(a, broadcast<L>(true)); }

// One bit per lane.
template <int L> GY_FN uint64_t mask_bits(Vec<bool, L> m) {
#if defined(GY_AVX2)
  if constexpr (L > 1) {
    uint64_t bits = 0;
    using V = Vec<int32_t, L>;
    GY_UNROLL for (int i = 0; i < V::parts; ++i) {
      if constexpr (V::lanes == 1) bits |= uint64_t(m.m.p[i] & 1) << i;
      else if constexpr (V::lanes == 4) bits |= uint64_t(__builtin_ia32_movmskps((v4sf)m.m.p[i])) << (4 * i);
      else bits |= uint64_t(__builtin_ia32_movmskps256((v8sf)m.m.p[i])) << (8 * i);
    }
    return bits;
  } else
#endif
    return widen(m.bits);
}
// Those for register i of a V.
template <class V, int L> GY_FN uint64_t part_bits(Vec<bool, L> m, int i) {
  if constexpr (V::parts == 1) return m.bits;
  else return widen(m.bits) >> (i * V::lanes);
}
template <int L> GY_FN Vec<bool, L> mask_from_bits(uint64_t bits) {
#if defined(GY_AVX2)
  if constexpr (L > 1) {
    Lanes<int32_t, L> r;
    GY_UNROLL for (int i = 0; i < L; ++i) r.at[i] = -int32_t(bits >> i & 1);
    return {pack(r)};
  } else return {bool(bits & 1)};
#else
  if constexpr (L == 1) return {bool(bits & 1)};
  else return {typename Vec<bool, L>::bits_type(bits)};
#endif
}
template <int L> GY_FN bool any(Vec<bool, L> m) { return mask_bits(m) != 0; }
template <int L> GY_FN bool all(Vec<bool, L> m) { return mask_bits(logical_not(m)) == 0; }
template <int L> GY_FN bool lane(Vec<bool, L> m, int i) { return mask_bits(m) >> i & 1; }
template <int K, int L> GY_FN Vec<bool, L> exchange_lanes(Vec<bool, L> m) {
#if defined(GY_AVX2)
  return {exchange_lanes<K>(m.m)};
#else
  constexpr uint64_t low = ~uint64_t(0) / ((uint64_t(1) << K) + 1);  // blocks of K bits, every other one
  const uint64_t bits = mask_bits(m);
  return mask_from_bits<L>((bits >> K & low) | (bits & low) << K);
#endif
}
template <int L> GY_FN Vec<bool, 1> first_lane(Vec<bool, L> m) { return {bool(mask_bits(m) & 1)}; }
// The first n lanes.
template <int L> GY_FN Vec<bool, L> first_lanes(int64_t n) {
  if constexpr (L == 1) return {n > 0};
  else {
    const int64_t some = n < 0 ? 0 : n < L ? n : L;
#if defined(GY_AVX2)
    return lt(iota<L, int32_t>(0, 1), broadcast<L>(int32_t(some)));
#else
    return {typename Vec<bool, L>::bits_type(some == 64 ? ~uint64_t(0) : (uint64_t(1) << some) - 1)};
#endif
  }
}

#if defined(GY_AVX2)
// 0 or -1 in lanes of another size.
template <int Size, int L> GY_FN Vec<sint<Size>, L> mask_lanes(Vec<bool, L> m) {
  using V = Vec<sint<Size>, L>;
  if constexpr (Size >= 4 || V::lanes == 1) return convert<sint<Size>>(m.m);
  else if constexpr (Size == 2) return pack_small<int16_t>(m.m);
  else if constexpr (L == 16) {                                // both packings, then four lanes at a time in order
    const auto half = __builtin_ia32_packssdw256((v8si)m.m.p[0], (v8si)m.m.p[1]);
    const auto quarter = (v8si)__builtin_ia32_packsswb256(half, half);
    return {{piece<typename V::P, 0>(__builtin_ia32_permvarsi256(quarter, v8si{0, 4, 1, 5, 0, 4, 1, 5}))}};
  } else return pack_small<int8_t>(mask_lanes<2>(m));
}
#endif

// ---- select -----------------------------------------------------------------------------------------------
template <class T, int L> GY_FN Vec<T, L> where(Vec<bool, L> m, Vec<T, L> yes, Vec<T, L> no) {
  using V = Vec<T, L>;
  V r;
  if constexpr (L == 1) r.p[0] = m.bits ? yes.p[0] : no.p[0];
#if defined(GY_AVX2)
  else {
    const auto wide = mask_lanes<sizeof(T)>(m);
    if constexpr (V::lanes == 1) { GY_EACH(V, r.p[i] = wide.p[i] ? yes.p[i] : no.p[i];) }
    else { GY_EACH(V, r.p[i] = select_lanes(wide.p[i], yes.p[i], no.p[i]);) }
  }
#else
  else if constexpr (V::lanes == 1) { GY_EACH(V, r.p[i] = uint64_t(m.bits) >> i & 1 ? yes.p[i] : no.p[i];) }
#if defined(GY_AVX512)
  else { GY_EACH(V, r.p[i] = select_bits<sizeof(T)>(part_bits<V>(m, i), yes.p[i], no.p[i]);) }
#endif
#endif
  return r;
}
template <int L> GY_FN Vec<bool, L> where(Vec<bool, L> m, Vec<bool, L> yes, Vec<bool, L> no) {
  return logical_or(logical_and(m, yes), logical_and(logical_not(m), no));
}

// ---- cast: convert, and bool ------------------------------------------------------------------------------
template <class To, class From, int L> GY_FN Vec<To, L> cast(Vec<From, L> v) {
  if constexpr (same<To, From>) return v;
  else if constexpr (is_bool<From>)
    return where(v, broadcast<L>(convert_one<To>(1)), broadcast<L>(convert_one<To>(0)));
  else if constexpr (is_bool<To>) {
    if constexpr (is_small<From>) return cast<bool>(convert<float>(v));
    else return ne(v, broadcast<L>(From(0)));
  } else return convert<To>(v);
}

// ---- bool in memory: one byte, 0 or 1 ---------------------------------------------------------------------
template <int L> GY_FN Vec<bool, L> load(const bool* from) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(from);
#if defined(GY_AVX512)
  if constexpr (L == 8) {
    const v2di x = {*reinterpret_cast<const native_unaligned<long long, 1>*>(bytes), 0};
    return {uint8_t(compare_bits<Cmp::ne, uint8_t>((v16qi)x, v16qi{}))};
  } else
#elif defined(GY_AVX2)
  if constexpr (L % 8 == 0) {
    Vec<bool, L> r;
    GY_EACH(decltype(r.m), const v2di x = {*reinterpret_cast<const native_unaligned<long long, 1>*>(bytes + 8 * i), 0};
            r.m.p[i] = (typename decltype(r.m)::P)(__builtin_ia32_pmovzxbd256((v16qi)x) != 0);)
    return r;
  } else
#endif
    return ne(load<L>(bytes), broadcast<L>(uint8_t(0)));
}
template <int L> GY_FN void store(bool* to, Vec<bool, L> v) {
  auto* bytes = reinterpret_cast<uint8_t*>(to);
#if defined(GY_AVX512)
  if constexpr (L == 8) {
    const v2di ones = {0x0101010101010101, 0};
    *reinterpret_cast<native_unaligned<long long, 1>*>(bytes) =
        ((v2di)select_bits<1>(v.bits, (v16qi)ones, v16qi{}))[0];
  } else
#elif defined(GY_AVX2)
  if constexpr (L >= 16) {
    auto lanes = mask_lanes<1>(v);
    GY_EACH(decltype(lanes), lanes.p[i] = lanes.p[i] & 1;)
    store(reinterpret_cast<int8_t*>(to), lanes);
  } else
#endif
    store(bytes, cast<uint8_t>(v));
}

// ---- masked memory ----------------------------------------------------------------------------------------
template <int L, class T> GY_FN Vec<T, L> load(const T* from, Vec<bool, L> m, T other) {
  using V = Vec<T, L>;
  if constexpr (is_bool<T>)
    return cast<bool>(load<L>(reinterpret_cast<const uint8_t*>(from), m, uint8_t(other)));
  else {
    V r = broadcast<L>(other);
    if constexpr (L == 1) {
      if (m.bits) r = load<1>(from);
      return r;
    }
    const auto* q = reinterpret_cast<const typename V::element*>(from);
#if defined(GY_AVX512)
    if constexpr (V::lanes > 1) {
#define GY_LOAD(letter, width, type, name, scalar) \
  r.p[i] = (typename V::P)__builtin_ia32_loaddqu##name##width##_mask((const scalar*)(q + i * V::lanes), \
                                                                     (type)r.p[i], bits);
      GY_UNROLL for (int i = 0; i < V::parts; ++i) {
        const uint64_t bits = part_bits<V>(m, i);
        GY_INTEGERS(typename V::P, sizeof(T), GY_LOAD)
      }
      return r;
    }
#undef GY_LOAD
#elif defined(GY_AVX2)
    if constexpr (V::lanes > 1 && sizeof(T) >= 4) {
      const auto wide = convert<sint<sizeof(T)>>(m.m);
      V loaded;
      GY_UNROLL for (int i = 0; i < V::parts; ++i) {
        const auto* at = q + i * V::lanes;
        if constexpr (sizeof(T) == 4 && V::bytes == 32)
          loaded.p[i] = (typename V::P)__builtin_ia32_maskloadd256((const v8si*)at, (v8si)wide.p[i]);
        else if constexpr (sizeof(T) == 4)
          loaded.p[i] = (typename V::P)__builtin_ia32_maskloadd((const v4si*)at, (v4si)wide.p[i]);
        else if constexpr (V::bytes == 32)
          loaded.p[i] = (typename V::P)__builtin_ia32_maskloadq256((const v4di*)at, (v4di)wide.p[i]);
        else loaded.p[i] = (typename V::P)__builtin_ia32_maskloadq((const v2di*)at, (v2di)wide.p[i]);
      }
      return where(m, loaded, r);
    }
#endif
    const uint64_t bits = mask_bits(m);
    if (bits == ~uint64_t(0) >> (64 - L)) return load<L>(from);  // as most vectors of a part of a concatenation are
    if (bits == 0) return r;
#if defined(GY_AVX2)
    if constexpr (V::lanes > 1 && sizeof(T) == 2) {            // pairs, then those whose neighbour is off
      const auto wide = mask_lanes<2>(m);
      GY_UNROLL for (int i = 0; i < V::parts; ++i) {
        const auto* at = reinterpret_cast<const int*>(q + i * V::lanes);
        if constexpr (V::bytes == 32) {
          const auto both = (v8si)wide.p[i] == -1;
          r.p[i] = (typename V::P)((v8si)__builtin_ia32_maskloadd256((const v8si*)at, both) | ((v8si)r.p[i] & ~both));
        } else {
          const auto both = (v4si)wide.p[i] == -1;
          r.p[i] = (typename V::P)((v4si)__builtin_ia32_maskloadd((const v4si*)at, both) | ((v4si)r.p[i] & ~both));
        }
      }
      const uint64_t pairs = bits & bits >> 1 & 0x5555555555555555;
      for (uint64_t rest = bits & ~(pairs | pairs << 1); rest; rest &= rest - 1) {
        const int i = __builtin_ctzll(rest);
        r = where(eq(iota<L, int32_t>(0, 1), broadcast<L>(int32_t(i))), broadcast<L>(from[i]), r);
      }
      return r;
    }
#endif
    auto lanes_of = unpack(r);
    for (int i = 0; i < L; ++i)
      if (bits >> i & 1) lanes_of.at[i] = from[i];
    return pack(lanes_of);
  }
}

template <class T, int L> GY_FN void store(T* to, Vec<T, L> v, Vec<bool, L> m) {
  if constexpr (is_bool<T>) store(reinterpret_cast<uint8_t*>(to), cast<uint8_t>(v), m);
  else if constexpr (L == 1) {
    if (m.bits) store(to, v);
  } else {
    using V = Vec<T, L>;
#if defined(GY_AVX512)
    if constexpr (V::lanes > 1) {
      auto* q = reinterpret_cast<typename V::element*>(to);
#define GY_STORE(letter, width, type, name, scalar) \
  __builtin_ia32_storedqu##name##width##_mask((scalar*)(q + i * V::lanes), (type)v.p[i], bits);
      GY_UNROLL for (int i = 0; i < V::parts; ++i) {
        const uint64_t bits = part_bits<V>(m, i);
        GY_INTEGERS(typename V::P, sizeof(T), GY_STORE)
      }
      return;
    }
#undef GY_STORE
#undef GY_INTEGERS
#undef GY_SIZES
#endif
    const uint64_t bits = mask_bits(m);
    const auto a = unpack(v);
    if (bits & (bits + 1)) {
      for (int i = 0; i < L; ++i)
        if (bits >> i & 1) to[i] = a.at[i];
    } else {                                                   // the first lanes, as at a row's end: in halves of halves
      const uint64_t count = bits == ~uint64_t(0) ? 64 : __builtin_ctzll(bits + 1);
      int at = 0;
      GY_UNROLL for (int n = L; n > 0; n /= 2)
        if (count & n) {
          __builtin_memcpy(to + at, a.at + at, n * sizeof(T));
          at += n;
        }
    }
  }
}

// Loops over the lanes that are on, not unrolled: text for each lane takes the compiler seconds.
template <int L, class T>
GY_FN Vec<T, L> load_strided(const T* from, int64_t stride, Vec<bool, L> m, T other) {
  const uint64_t bits = mask_bits(m);
  if (bits == ~uint64_t(0) >> (64 - L)) return load_strided<L>(from, stride);
  if (bits == 0) return broadcast<L>(other);
  auto r = unpack(broadcast<L>(other));
  for (uint64_t rest = bits; rest; rest &= rest - 1) {
    const int i = __builtin_ctzll(rest);
    r.at[i] = from[i * stride];
  }
  return pack(r);
}
template <class T, int L> GY_FN void store_strided(T* to, int64_t stride, Vec<T, L> v, Vec<bool, L> m) {
  const auto a = unpack(v);
  for (uint64_t rest = mask_bits(m); rest; rest &= rest - 1) {
    const int i = __builtin_ctzll(rest);
    to[i * stride] = a.at[i];
  }
}

// ---- gather and scatter: element offsets, not bytes -------------------------------------------------------
template <int L, class T, class I>
GY_FN Vec<T, L> gather(const T* from, Vec<I, L> offset, Vec<bool, L> m, T other) {
  using V = Vec<T, L>;
#if defined(GY_AVX512)
  if constexpr (sizeof(I) == sizeof(T) && sizeof(T) == 4 && L % 16 == 0) {
    V r = broadcast<L>(other);
    GY_UNROLL for (int i = 0; i < L / 16; ++i) {
      const auto bits = uint16_t(mask_bits(m) >> (16 * i));
      r.p[i] = (typename V::P)__builtin_ia32_gathersiv16si((v16si)r.p[i], from, (v16si)offset.p[i], bits, 4);
    }
    return r;
  }
#endif
  if constexpr (sizeof(I) == 4) return gather<L>(from, convert<int64_t>(offset), m, other);
#if defined(GY_AVX512)
  else if constexpr (!is_bool<T> && sizeof(T) >= 4 && L % 8 == 0) {
    V r = broadcast<L>(other);
    GY_UNROLL for (int i = 0; i < L / 8; ++i) {
      const uint8_t bits = mask_bits(m) >> (8 * i);
      if constexpr (sizeof(T) == 8)
        r.p[i] = (typename V::P)__builtin_ia32_gatherdiv8di((v8di)r.p[i], from, (v8di)offset.p[i], bits, 8);
      else if constexpr (L == 8)
        r.p[0] = (typename V::P)__builtin_ia32_gatherdiv16si((v8si)r.p[0], from, (v8di)offset.p[0], bits, 4);
    }
    if constexpr (sizeof(T) == 4 && L >= 16) GY_UNROLL for (int i = 0; i < L / 16; ++i) {
      const uint64_t bits = mask_bits(m) >> (16 * i);
      const v8si rest = piece<v8si, 0>(r.p[i]);
      const v8si low = __builtin_ia32_gatherdiv16si(rest, from, (v8di)offset.p[2 * i], uint8_t(bits), 4);
      const v8si high =
          __builtin_ia32_gatherdiv16si(rest, from, (v8di)offset.p[2 * i + 1], uint8_t(bits >> 8), 4);
      r.p[i] = join<typename V::P>(low, high);
    }
    return r;
  }
#elif defined(GY_AVX2)
  else if constexpr (!is_bool<T> && sizeof(T) >= 4 && L % 4 == 0) {
    V r = broadcast<L>(other);
    const auto wide = convert<int64_t>(m.m);
    if constexpr (sizeof(T) == 8) {
      GY_UNROLL for (int i = 0; i < L / 4; ++i)
        r.p[i] = (typename V::P)__builtin_ia32_gatherdiv4di((v4di)r.p[i], (const long long*)from,
                                                            (v4di)offset.p[i], (v4di)wide.p[i], 8);
    } else {
      v4si quarter[L / 4];
      const auto narrow = Vec<int32_t, L>(m.m);
      GY_UNROLL for (int i = 0; i < L / 4; ++i) {
        const v4si bits = nth_piece<v4si, Vec<int32_t, L>::bytes / 16>(narrow.p[i * 4 / narrow.lanes],
                                                                       i % (narrow.lanes / 4));
        quarter[i] = __builtin_ia32_gatherdiv4si256(piece<v4si, 0>(r.p[0]), (const int*)from,
                                                    (v4di)offset.p[i], bits, 4);
      }
      GY_UNROLL for (int i = 0; i < V::parts; ++i) {
        if constexpr (V::bytes == 32) r.p[i] = join<typename V::P>(quarter[2 * i], quarter[2 * i + 1]);
        else r.p[i] = (typename V::P)quarter[i];
      }
    }
    return r;
  }
#endif
  else {
    const uint64_t bits = mask_bits(m);
    const auto at = unpack(offset);
    Lanes<T, L> r;
    for (int i = 0; i < L; ++i) r.at[i] = bits >> i & 1 ? from[at.at[i]] : other;
    return pack(r);
  }
}
#if defined(GY_SIMD)
template <class P, class E, class At, int... I> GY_FN P gather_part(const E* from, const At* at, sequence<I...>) {
  return P{from[at[I]]...};
}
#endif
// Without a mask one by one, but for offsets of 32 bits where AMX tells of a processor (Sapphire Rapids or later) whose
// gathering instructions take half the time then: those of other ones take as long or longer, on some several times as
// long. With 64 bits they are quicker in the caches alone, and slower by 4 to 10% beyond them.
template <int L, class T, class I> GY_FN Vec<T, L> gather(const T* from, Vec<I, L> offset) {
#if defined(GY_AMX) && defined(GY_AVX512)
  if constexpr (sizeof(I) == 4 && !is_bool<T> && sizeof(T) >= 4 && L % 16 == 0)
    return gather<L>(from, offset, broadcast<L>(true), T{});
#endif
  const auto at = unpack(offset);
#if defined(GY_SIMD)
  using V = Vec<T, L>;
  if constexpr (in_registers<V>) {
    V r;
    const auto* q = reinterpret_cast<const typename V::element*>(from);
    GY_EACH(V, r.p[i] = gather_part<typename V::P>(q, at.at + i * V::lanes, indices<V::lanes>{});)
    return r;
  }
#endif
  Lanes<T, L> r;
  GY_UNROLL for (int i = 0; i < L; ++i) r.at[i] = from[at.at[i]];
  return pack(r);
}
// Lanes are stored in order: the last of equal offsets stays.
template <class T, class I, int L> GY_FN void scatter(T* to, Vec<I, L> offset, Vec<T, L> v, Vec<bool, L> m) {
  const uint64_t bits = mask_bits(m);
  const auto at = unpack(offset);
  const auto a = unpack(v);
  for (int i = 0; i < L; ++i)
    if (bits >> i & 1) to[at.at[i]] = a.at[i];
}
template <class T, class I, int L> GY_FN void scatter(T* to, Vec<I, L> offset, Vec<T, L> v) {
  const auto at = unpack(offset);
  const auto a = unpack(v);
  for (int i = 0; i < L; ++i) to[at.at[i]] = a.at[i];
}

// An index as eager checks it: negative ones count from the end; a lane outside [0, size) stores `site` (not
// 0) to *status and yields 0, so that the access stays inside and the caller can raise.
template <class I, int L> GY_FN Vec<I, L> check_index(Vec<I, L> v, int64_t size, int* status, int site) {
  using V = Vec<I, L>;
  const auto zero = broadcast<L>(I(0)), end = broadcast<L>(I(size));
  V shifted;
  GY_UNROLL for (int i = 0; i < V::parts; ++i)
    shifted.p[i] = (typename V::P)((typename V::U)v.p[i] + (typename V::U)end.p[i]);
  v = where(lt(v, zero), shifted, v);
  const auto bad = ge(bitcast<wrap<I>>(v), bitcast<wrap<I>>(end));
  if (__builtin_expect(any(bad), 0)) {
    __atomic_store_n(status, site, __ATOMIC_RELAXED);
    v = where(bad, zero, v);
  }
  return v;
}

}  // namespace gy
