// Transposed copies, block by block in registers.
#pragma once
#include "gyrator.h"

namespace gy {

// Edge of the square that is transposed in registers: one register per row, at most 16 of them.
template <class T> constexpr int tile_edge = register_bytes == 0 || int(sizeof(T)) * 16 <= register_bytes
                                                 ? 16
                                                 : register_bytes / int(sizeof(T));

#if defined(GY_SIMD)
template <int N, int Half, int... I, class V> GY_FN V zip(V a, V b, sequence<I...>) {
  return __builtin_shufflevector(a, b, ((I & 1) * N + Half * N / 2 + I / 2)...);
}
// One step of a perfect shuffle: rows i and i + N/2 are interleaved. After log2(N) steps rows are columns.
template <int N, class V> GY_FN void shuffle_rows(V (&row)[N]) {
  V next[N];
  GY_UNROLL for (int i = 0; i < N / 2; ++i) {
    next[2 * i] = zip<N, 0>(row[i], row[i + N / 2], indices<N>{});
    next[2 * i + 1] = zip<N, 1>(row[i], row[i + N / 2], indices<N>{});
  }
  GY_UNROLL for (int i = 0; i < N; ++i) row[i] = next[i];
}
#endif

// to[q * to_stride + p] = from[p * from_stride + q] for p < rows, q < columns, both at most tile_edge<T>.
template <class T>
GY_FN void transpose_block(T* to, int64_t to_stride, const T* from, int64_t from_stride, int64_t rows, int64_t columns) {
#if defined(GY_SIMD)
  constexpr int N = tile_edge<T>;
  if (rows == N && columns == N) {
    using V = typename Vec<T, N>::P;
    V row[N];
    GY_UNROLL for (int p = 0; p < N; ++p) row[p] = load<N>(from + p * from_stride).p[0];
    GY_UNROLL for (int step = 1; step < N; step *= 2) shuffle_rows<N>(row);
    GY_UNROLL for (int q = 0; q < N; ++q) {
      Vec<T, N> v;
      v.p[0] = row[q];
      store(to + q * to_stride, v);
    }
    return;
  }
#endif
  for (int64_t p = 0; p < rows; ++p)
    for (int64_t q = 0; q < columns; ++q) to[q * to_stride + p] = from[p * from_stride + q];
}

// The same for any number of rows and columns.
template <class T>
__attribute__((noinline)) void transpose(T* to, int64_t to_stride, const T* from, int64_t from_stride, int64_t rows,
                                         int64_t columns) {
  constexpr int N = tile_edge<T>;
  for (int64_t p = 0; p < rows; p += N) {
    const int64_t height = rows - p < N ? rows - p : N;
    for (int64_t q = 0; q < columns; q += N)
      transpose_block(to + q * to_stride + p, to_stride, from + p * from_stride + q, from_stride, height,
                      columns - q < N ? columns - q : N);
  }
}

}  // namespace gy
