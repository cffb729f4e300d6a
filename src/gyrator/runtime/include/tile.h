// Transposed copies of square tiles in registers, for 2-D loops that read along one axis and write along the
// other.
#pragma once
#include "random.h"

namespace gy {

// Side of a tile that fits the registers: one row per register. Elements of 8 and 16 bits are widened to 32 there;
// larger ones than 64 bits go one by one.
template <class T> constexpr bool tile_in_registers = register_bytes > 0 && sizeof(T) <= 8;
template <class T>
constexpr int tile_side = tile_in_registers<T> ? register_bytes / int(sizeof(T) < 4 ? 4 : sizeof(T)) : 8;

#if defined(GY_SIMD)
// Exchanges the off-diagonal blocks of S lanes of two rows that are S apart.
template <int S, bool Second, int... I, class V> GY_FN V exchange(V a, V b, sequence<I...>) {
  constexpr int n = sizeof...(I);
  return __builtin_shufflevector(a, b, (Second ? (I & S ? n + I : I + S) : (I & S ? n + I - S : I))...);
}
template <int S, class V, int N> GY_FN void transpose_rows(V (&row)[N]) {
  if constexpr (S < N) {
    GY_UNROLL for (int i = 0; i < N; ++i) {
      if ((i & S) != 0) continue;
      const V a = row[i], b = row[i + S];
      row[i] = exchange<S, false>(a, b, indices<N>{});
      row[i + S] = exchange<S, true>(a, b, indices<N>{});
    }
    transpose_rows<2 * S>(row);
  }
}
#endif

// to[c * to_stride + r] = from[r * from_stride + c] for a whole tile.
template <class T> GY_FN void transpose_tile(const T* from, int64_t from_stride, T* to, int64_t to_stride) {
  constexpr int n = tile_side<T>;
#if defined(GY_SIMD)
  if constexpr (tile_in_registers<T>) {
    using E = pick<sizeof(T) < 4, uint<sizeof(T)>, T>;
    using Row = native<pick<sizeof(T) < 4, uint32_t, T>, n>;
    Row row[n];
    GY_UNROLL for (int i = 0; i < n; ++i)
      row[i] = __builtin_convertvector(read_as<native<E, n>>((const E*)(from + i * from_stride)), Row);
    transpose_rows<1>(row);
    GY_UNROLL for (int i = 0; i < n; ++i)
      *(native_unaligned<E, n>*)(to + i * to_stride) = __builtin_convertvector(row[i], native<E, n>);
    return;
  }
#endif
  for (int r = 0; r < n; ++r)
    for (int c = 0; c < n; ++c) to[c * to_stride + r] = from[r * from_stride + c];
}

// The same for any number of rows and columns of `from`: whole tiles, then the edges.
template <class T>
GY_FN void transpose_block(const T* from, int64_t from_stride, T* to, int64_t to_stride, int64_t rows,
                           int64_t columns) {
  constexpr int n = tile_side<T>;
  const int64_t whole_rows = rows / n * n, whole_columns = columns / n * n;
  for (int64_t r = 0; r < whole_rows; r += n)
    for (int64_t c = 0; c < whole_columns; c += n)
      transpose_tile(from + r * from_stride + c, from_stride, to + c * to_stride + r, to_stride);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = r < whole_rows ? whole_columns : 0; c < columns; ++c)
      to[c * to_stride + r] = from[r * from_stride + c];
}
// A rows x columns piece of `from` into a dense tile whose rows are the columns of `from`, `side` elements
// apart.
template <class T>
GY_FN void transpose_load(const T* from, int64_t from_stride, T* tile, int64_t side, int64_t rows,
                          int64_t columns) {
  transpose_block(from, from_stride, tile, side, rows, columns);
}

}  // namespace gy
