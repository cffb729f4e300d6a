// Matrix products, tile by tile: what a printed kernel with a product calls before it runs the epilogue.
//
//   gy::Product<float, 14, 2, 4> product(m, n, k, {rows, columns, depth});      // one per thread
//   const float* total = product.tile(left, lm, lk, right, rk, rn, row, column); // row stride: columns
//
// total[r, c] = sum over k of left[row + r, k] * right[k, column + c] for the rows and columns of one tile that
// exist. Both operands are cut into panels, MR rows or NR columns wide and contiguous along k, so that a
// micro-kernel walks both in the order of memory and keeps MR x NR sums in registers.
#pragma once
#include "kernel.h"

namespace gy {

struct Blocks { int64_t rows, columns, depth; };  // of a tile, and of the part of k whose panels stay in cache

GY_FN int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

constexpr int gemm_lanes = register_bytes > 0 ? register_bytes / 4 : 1;

// a * b + c; rounded twice where a single instruction is missing.
template <int L> GY_FN Vec<float, L> multiply_add(Vec<float, L> a, Vec<float, L> b, Vec<float, L> c) {
#if defined(GY_SIMD)
  return fma(a, b, c);
#else
  return add(mul(a, b), c);
#endif
}

// ---- panels -----------------------------------------------------------------------------------------------
// to[k * W + i] = from[i * si + k * sk] for k < depth and i < count; 0 for the other i < W. Writes up to
// gemm_lanes elements past the end.
template <int W, class To, class From>
static void pack_panel(To* to, const From* from, int64_t si, int64_t sk, int64_t count, int64_t depth) {
  constexpr int L = gemm_lanes;
#if defined(GY_SIMD)
  if (si == 1) {
    for (int64_t k = 0; k < depth; ++k)
      GY_UNROLL for (int i = 0; i < W; i += L) {
        const From* at = from + k * sk + i;
        const auto row = i + L <= count ? load<L>(at) : load<L>(at, first_lanes<L>(count - i), From{});
        store(to + k * W + i, cast<To>(row));
      }
    return;
  }
  if (sk == 1) {
    for (int i = 0; i < W; i += L)
      for (int64_t k = 0; k < depth; k += L) {
        const int64_t rows = count - i, left = depth - k;
        native<float, L> row[L];
        GY_UNROLL for (int r = 0; r < L; ++r) {
          row[r] = native<float, L>{};
          if (r >= rows) continue;
          const From* at = from + (i + r) * si + k;
          const auto v = left >= L ? load<L>(at) : load<L>(at, first_lanes<L>(left), From{});
          row[r] = cast<float>(v).p[0];
        }
        transpose_rows<1>(row);
        GY_UNROLL for (int r = 0; r < L; ++r)
          if (r < left) store(to + (k + r) * W + i, cast<To>(Vec<float, L>{{row[r]}}));
      }
    return;
  }
#endif
  for (int64_t k = 0; k < depth; ++k)
    for (int i = 0; i < W; ++i)
      to[k * W + i] = i < count ? bits_as<To>(cast<To>(load<1>(from + i * si + k * sk)).p[0]) : To{};
}

// How many elements the panels of a whole right operand take: of n columns, each k long.
template <int NR> GY_FN int64_t packed_size(int64_t n, int64_t k) { return round_up(n, NR) * k + 64; }

// ---- the micro-kernel -------------------------------------------------------------------------------------
// total[i, j] (+)= sum over k of a[k * M + i] * b[k * step + j] for M rows and V registers of columns.
template <int M, int V, class T>
static __attribute__((noinline)) void multiply_panels(float* total, int64_t stride, const float* a, const T* b,
                                                      int64_t step, int64_t depth, bool fresh) {
  constexpr int L = gemm_lanes;
  using F = Vec<float, L>;
  F sum[M][V];
  _Pragma("GCC unroll 64") for (int i = 0; i < M; ++i)
    _Pragma("GCC unroll 64") for (int j = 0; j < V; ++j)
      sum[i][j] = broadcast<L>(0.0f);
  for (int64_t k = 0; k < depth; ++k, a += M, b += step) {
    F right[V];
    _Pragma("GCC unroll 64") for (int j = 0; j < V; ++j) right[j] = cast<float>(load<L>(b + j * L));
    _Pragma("GCC unroll 64") for (int i = 0; i < M; ++i) {
      const F left = broadcast<L>(a[i]);
      _Pragma("GCC unroll 64") for (int j = 0; j < V; ++j) sum[i][j] = multiply_add(left, right[j], sum[i][j]);
    }
  }
  _Pragma("GCC unroll 64") for (int i = 0; i < M; ++i)
    _Pragma("GCC unroll 64") for (int j = 0; j < V; ++j) {
      float* const at = total + i * stride + j * L;
      store(at, fresh ? sum[i][j] : add(load<L>(at), sum[i][j]));
    }
}

// ---- tiles ------------------------------------------------------------------------------------------------
// The products of one thread. Tail: the height of the panel of the last rows, if they fit into it. Packed: the
// right operand consists of panels already (`pack_right`).
template <class T, int MR, int V, int Tail, bool Packed> struct Product {
  static constexpr int NR = V * gemm_lanes;
  const int64_t m, n, k;
  const Blocks block;
  const bool keep;  // the panels of a column of tiles serve more than one tile
  Scratch<float> total, left_panels;
  Scratch<T> right_panels;
  const T* kept = nullptr;
  int64_t kept_column = -1;

  Product(int64_t m, int64_t n, int64_t k, Blocks block)
      : m(m), n(n), k(k), block(block), keep(m > block.rows),
        total(round_up(block.rows, MR) * block.columns),
        left_panels(round_up(block.rows, MR) * min_index(block.depth, k) + 64),
        right_panels(Packed ? 1 : packed_size<NR>(block.columns, keep ? k : min_index(block.depth, k))) {}

  const float* tile(const T* left, int64_t lm, int64_t lk, const T* right, int64_t rk, int64_t rn, int64_t row,
                    int64_t column) {
    const int64_t rows = min_index(block.rows, m - row), columns = min_index(block.columns, n - column);
    const bool found = kept == right && kept_column == column;
    if (keep) kept = right, kept_column = column;
    // few rows do not pay for a copy of the right operand
    const bool direct = !Packed && rn == 1 && m <= 2 * MR;
    left += row * lm;
    for (int64_t at = 0; at < k; at += block.depth) {
      const int64_t depth = min_index(block.depth, k - at);
      const int64_t whole = rows - (rows % MR <= Tail ? rows % MR : 0);
      for (int64_t r = 0; r < rows; r += MR) {
        float* const to = left_panels.at + r * depth;
        if (r < whole) pack_panel<MR>(to, left + r * lm + at * lk, lm, lk, min_index(MR, rows - r), depth);
        else pack_panel<Tail>(to, left + r * lm + at * lk, lm, lk, rows - r, depth);
      }
      for (int64_t c = 0; c < columns; c += NR) {
        const T* panel;
        int64_t step = NR;
        if constexpr (Packed) panel = right + (column + c) * k + at * NR;
        else if (direct && c + NR <= columns) {
          panel = right + at * rk + column + c;
          step = rk;
        } else {
          T* const to = right_panels.at + (keep ? c * k + at * NR : c * depth);
          if (!found) pack_panel<NR>(to, right + at * rk + (column + c) * rn, rn, rk, columns - c, depth);
          panel = to;
        }
        for (int64_t r = 0; r < whole; r += MR)
          multiply_panels<MR, V>(total.at + r * block.columns + c, block.columns, left_panels.at + r * depth,
                                 panel, step, depth, at == 0);
        if (whole < rows)
          multiply_panels<Tail, V>(total.at + whole * block.columns + c, block.columns,
                                   left_panels.at + whole * depth, panel, step, depth, at == 0);
      }
    }
    return total.at;
  }
};

// All panels of a right operand of k rows and n columns.
template <class T, int V> static void pack_right(T* to, const T* from, int64_t rk, int64_t rn, int64_t n, int64_t k) {
  constexpr int NR = V * gemm_lanes;
  for (int64_t c = 0; c < n; c += NR) pack_panel<NR>(to + c * k, from + c * rn, rn, rk, n - c, k);
}

}  // namespace gy
