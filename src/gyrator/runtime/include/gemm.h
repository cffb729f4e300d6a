// Matrix products, tile by tile: what a printed kernel with a product calls before it runs the epilogue.
//
//   const gy::Tiles tiles(1, m, n, {rows, columns, depth});
//   gy::Product<float, 14, 2, 4, false> product(tiles, k);         // one per thread, for its share of the tiles
//   const gy::Tile tile = tiles.at(step);
//   const auto sums = product.sum(tile, gy::Lying<float>{left, lm, lk}, gy::Lying<float>{right, rn, rk});
//   ... sums.row(row)[column] ...
//
// The last, for rows and columns of the tile, is the sum over k of left[row * lm + k * lk] * right[k * rk + column * rn].
// Both operands are cut into panels, MR rows or NR columns wide and contiguous along k, so that a micro-kernel walks
// both in the order of memory and keeps MR x NR sums in registers. An operand may be computed, block by block.
#pragma once
#include "kernel.h"

namespace gy {

GY_FN int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

constexpr int gemm_lanes = register_bytes > 0 ? register_bytes / 4 : 1;

// ---- operands ---------------------------------------------------------------------------------------------
// A matrix in memory: its i-th row (a right operand's column) has element k at[i * si + k * sk].
template <class T> struct Lying {
  static constexpr bool along_k = false;
  static constexpr int64_t most_depth = int64_t(1) << 62;
  const T* at;
  int64_t si, sk;
  GY_FN Lying block(int64_t i, int64_t, int64_t k, int64_t) const { return {at + i * si + k * sk, si, sk}; }
};
// One whose elements `fill(to, i, i_end, k, k_end)` computes: to `to[(i' - i) * Most + k' - k]` if they follow each other
// along k, else to `to[(k' - k) * Most + i' - i]`. Blocks have at most Count x Depth elements.
template <class T, bool AlongK, int Count, int Depth, class Fill> struct Computed {
  static constexpr bool along_k = AlongK;
  static constexpr int64_t most_depth = AlongK ? Depth : min_index(Depth, 64);  // elsewhere long rows of memory count
  static constexpr int Most = AlongK ? Depth : Count;
  const Fill& fill;
  Scratch<T> scratch;
  explicit Computed(const Fill& fill) : fill(fill), scratch(int64_t(Count) * most_depth + 64) {}
  GY_FN Lying<T> block(int64_t i, int64_t count, int64_t k, int64_t depth) const {
    fill(scratch.at, i, i + count, k, k + depth);
    return {scratch.at, AlongK ? Most : 1, AlongK ? 1 : Most};
  }
};

// ---- panels -----------------------------------------------------------------------------------------------
// Memory is asked for what the next panel has at the same place: lines far apart are not foreseen by the processor.
#if defined(GY_SIMD)
// to[k * width + i] = element k of the row of `from` that begins i * step bytes from it. Compiled once for all widths.
template <class To, class From>
static __attribute__((noinline)) void turn_panel(To* to, int64_t width, const From* from, int64_t step, int64_t count,
                                                 int64_t depth) {
  constexpr int L = gemm_lanes;
  for (int64_t i = 0; i < width; i += L)
    for (int64_t k = 0; k < depth; k += L) {
      const int64_t rows = count - i, left = depth - k, columns = width - i;
      native<float, L> turned[L];
      GY_UNROLL for (int r = 0; r < L; ++r) {
        turned[r] = native<float, L>{};
        if (r >= rows) continue;
        const auto at = reinterpret_cast<const From*>(reinterpret_cast<const char*>(from) + (i + r) * step) + k;
        __builtin_prefetch(reinterpret_cast<const char*>(at) + width * step);
        const auto v = left >= L ? load<L>(at) : load<L>(at, first_lanes<L>(left), From{});
        turned[r] = cast<float>(v).p[0];
      }
      transpose_rows<1>(turned);
      GY_UNROLL for (int r = 0; r < L; ++r) {
        if (r >= left) continue;
        To* const at = to + (k + r) * width + i;
        const auto v = cast<To>(Vec<float, L>{{turned[r]}});
        if (columns >= L) store(at, v);
        else store(at, v, first_lanes<L>(columns));
      }
    }
}
#endif

// to[k * width + i] = source(i, k) for k < depth and i < count; 0 for the other i < width. Writes up to gemm_lanes
// elements past the end.
template <class To, class From>
static __attribute__((noinline)) void pack_panel(To* to, int64_t width, Lying<From> source, int64_t count,
                                                 int64_t depth) {
  constexpr int L = gemm_lanes;
  const auto [from, si, sk] = source;
#if defined(GY_SIMD)
  if (si == 1) {
    for (int64_t k = 0; k < depth; ++k)
      for (int64_t i = 0; i < width; i += L) {
        const From* at = from + k * sk + i;
        __builtin_prefetch(reinterpret_cast<const char*>(at) + 128);
        const auto row = i + L <= count ? load<L>(at) : load<L>(at, first_lanes<L>(count - i), From{});
        store(to + k * width + i, cast<To>(row));
      }
    return;
  }
  if (sk == 1) return turn_panel(to, width, from, si * int64_t(sizeof(From)), count, depth);
#endif
  for (int64_t k = 0; k < depth; ++k)
    for (int64_t i = 0; i < width; ++i)
      to[k * width + i] = i < count ? bits_as<To>(cast<To>(load<1>(from + i * si + k * sk)).p[0]) : To{};
}

// to[k / G * W * G + c * G + k % G] = source(c, k) for c < count, k < depth, with G elements in four bytes; 0 up to W
// columns and k < all.
template <int W, class T>
static void pack_groups(T* to, Lying<T> source, int64_t count, int64_t depth, int64_t all) {
  constexpr int G = 4 / sizeof(T);
  const auto [from, sc, sk] = source;
  int64_t done = 0;
#if defined(GY_SIMD)
  constexpr int L = gemm_lanes;
  using U = uint<sizeof(T)>;
  const int64_t whole = depth / G * G;
  if (sk == 1) {
    const auto groups = reinterpret_cast<const float*>(from);
    turn_panel(reinterpret_cast<float*>(to), W, groups, sc * int64_t(sizeof(T)), count, whole / G);
    done = whole;
  } else if (sc == 1) {
    for (; done < whole; done += G)
      for (int c = 0; c < W; c += L) {
        const auto some = first_lanes<L>(count - c);
        auto group = broadcast<L>(uint32_t(0));
        GY_UNROLL for (int g = 0; g < G; ++g) {
          const auto row = load<L>(reinterpret_cast<const U*>(from + (done + g) * sk + c), some, U(0));
          group = bitwise_or(group, lshift(cast<uint32_t>(row), broadcast<L>(uint32_t(8 * sizeof(T) * g))));
        }
        store(reinterpret_cast<uint32_t*>(to + done * W + c * G), group);
      }
  }
#endif
  for (int64_t k = done; k < all; ++k)
    for (int64_t c = 0; c < W; ++c)
      to[k / G * W * G + c * G + k % G] = k < depth && c < count ? from[c * sc + k * sk] : T{};
}

// ---- the micro-kernel -------------------------------------------------------------------------------------
// total[i, j] (+)= sum over k of a[k * lead + i * Apart] * b[k * step + j] for M rows and V registers of columns.
template <int M, int V, class T, int Apart = 1>
static __attribute__((noinline)) void multiply_panels(float* total, int64_t stride, const float* a, int64_t lead,
                                                      const T* b, int64_t step, int64_t depth, bool fresh) {
  constexpr int L = gemm_lanes;
  using F = Vec<float, L>;
  F sum[M][V];
  _Pragma("GCC unroll 64") for (int i = 0; i < M; ++i)
    _Pragma("GCC unroll 64") for (int j = 0; j < V; ++j)
      sum[i][j] = broadcast<L>(0.0f);
  for (int64_t k = 0; k < depth; ++k, a += lead, b += step) {
    F right[V];
    _Pragma("GCC unroll 64") for (int j = 0; j < V; ++j) right[j] = cast<float>(load<L>(b + j * L));
    _Pragma("GCC unroll 64") for (int i = 0; i < M; ++i) {
      const F left = broadcast<L>(a[i * Apart]);
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
// Whether a sum over k goes on at `at`: it has one part at least, so that it is 0 where k is.
GY_FN bool goes_on(int64_t at, int64_t k) { return at == 0 || at < k; }
struct Blocks { int64_t rows, columns, depth; };  // of a tile, and of the part of k whose panels stay in cache
// What a tile's sums are, addressed by row and column of the whole result.
template <class T> struct SumsOf {
  const T* at;
  int64_t stride;
  GY_FN const T* row(int64_t row) const { return at + row * stride; }
};
using Sums = SumsOf<float>;
struct Tile { int64_t batch, row, row_end, column, column_end; bool zero = false; };
// The columns of a tile for some of k, computed at once where that reads memory in its order.
template <class Right> GY_FN decltype(auto) all_columns(const Right& right, Tile tile, int64_t k, int64_t depth) {
  if constexpr (Right::along_k) return (right);
  else return right.block(tile.column, tile.column_end - tile.column, k, depth);
}

// The tiles of all results. Neighbours lie below each other, so that they share panels of the right operand.
struct Tiles {
  int64_t m, n;
  Blocks block;
  int64_t down, across, count;
  Tiles(int64_t batch, int64_t m, int64_t n, Blocks block)
      : m(m), n(n), block(block), down((m + block.rows - 1) / block.rows),
        across((n + block.columns - 1) / block.columns), count(batch * down * across) {}
  GY_FN Tile at(int64_t step) const {
    const int64_t row = step % down * block.rows, column = step / down % across * block.columns;
    return {step / down / across, row, min_index(row + block.rows, m), column, min_index(column + block.columns, n)};
  }
};

// Where groups of rows end, one behind the other; what lies outside of `all` rows belongs to none. What lies behind the
// last group is one more, without a matrix, if it is `zeroed`.
struct Ends {
  const int32_t* at;
  int64_t step, groups, all;
  bool zeroed;
  GY_FN int64_t count() const { return groups + zeroed; }
  GY_FN int64_t begin(int64_t g) const { return g > 0 ? end(g - 1) : 0; }
  GY_FN int64_t end(int64_t g) const { return g < groups ? -min_index(0, -min_index(at[g * step], all)) : all; }
  GY_FN int64_t rows(int64_t g) const { return -min_index(0, begin(g) - end(g)); }
  GY_FN int64_t most() const {
    int64_t most = 0;
    for (int64_t g = 0; g < count(); ++g) most = rows(g) > most ? rows(g) : most;
    return most;
  }
};
// The tiles of groups of rows, each of which is multiplied by a matrix of its own, the one of its number in a batch.
struct TilesOfGroups : Tiles {
  Ends ends;
  TilesOfGroups(Ends ends, int64_t n, Blocks block) : Tiles(1, ends.most(), n, block), ends(ends) {
    count = 0;
    for (int64_t g = 0; g < ends.count(); ++g) count += (ends.rows(g) + block.rows - 1) / block.rows * across;
  }
  GY_FN Tile at(int64_t step) const {
    int64_t g = 0, high = 0;
    for (;; ++g) {
      high = (ends.rows(g) + block.rows - 1) / block.rows;
      if (step < high * across) break;
      step -= high * across;
    }
    const int64_t row = ends.begin(g) + step % high * block.rows, column = step / high * block.columns;
    const int64_t row_end = min_index(row + block.rows, ends.end(g));
    return {g, row, row_end, column, min_index(column + block.columns, n), g == ends.groups};
  }
};

// The sums of one thread's tiles, by micro-kernels for panels of `height` rows and for the last one, of `tail` if it has
// no more; both multiply `width` columns. Packed: the right operand consists of panels already, each with all k.
template <class T> struct PanelProduct {
  using Micro = void (*)(float*, int64_t, const float*, int64_t, const T*, int64_t, int64_t, bool);
  const int64_t m, k, height, tail, width;
  const Micro multiply_whole, multiply_tail;
  const Blocks block;
  const bool packed, keep;  // keep: panels of the right operand serve more than one tile
  Scratch<float> total, left_panels;
  Scratch<T> right_panels;
  int64_t kept_batch = -1, kept_column = -1;

  PanelProduct(const Tiles& tiles, int64_t k, int64_t height, int64_t tail, int64_t width, Micro whole, Micro last,
               bool packed)
      : m(tiles.m), k(k), height(height), tail(tail), width(width), multiply_whole(whole), multiply_tail(last),
        block(tiles.block), packed(packed), keep(tiles.down > 1),
        total(round_up(min_index(block.rows, m), height) * block.columns + gemm_lanes),
        left_panels(round_up(min_index(block.rows, m), height) * (keep ? min_index(block.depth, k) : k) + gemm_lanes),
        right_panels(packed ? 1 : block.columns * (keep ? k : min_index(block.depth, k)) + gemm_lanes) {}

  template <class Left, class Right> Sums sum(Tile tile, const Left& left, const Right& right) {
    const int64_t rows = tile.row_end - tile.row, columns = tile.column_end - tile.column, k = tile.zero ? 0 : this->k;
    const bool found = keep && kept_batch == tile.batch && kept_column == tile.column;
    kept_batch = tile.batch, kept_column = tile.column;
    const int64_t most = min_index(block.depth, min_index(Left::most_depth, Right::most_depth));
    if (Right::along_k && !keep) {  // columns are computed from end to end, as memory likes
      const int64_t all = round_up(rows, height);
      for (int64_t at = 0; at < k; at += most) cut_left(tile, left, at, min_index(most, k - at), all * at);
      for (int64_t c = 0; c < columns; c += width)
        for (int64_t at = 0; goes_on(at, k); at += most)
          multiply(tile, right, at, min_index(most, k - at), c, min_index(c + width, columns), all * at, false);
    } else {
      for (int64_t at = 0; goes_on(at, k); at += most) {
        cut_left(tile, left, at, min_index(most, k - at), 0);
        multiply(tile, right, at, min_index(most, k - at), 0, columns, 0, found);
      }
    }
    return {total.at - tile.row * block.columns - tile.column, block.columns};
  }

  // Panels of the tile's rows for `depth` of k, from `place` on.
  template <class Left> void cut_left(Tile tile, const Left& left, int64_t at, int64_t depth, int64_t place) {
    const int64_t rows = tile.row_end - tile.row, whole = whole_panels(rows);
    float* const to = left_panels.at + place;
    for (int64_t r = 0; r < rows; r += height) {
      const int64_t count = min_index(height, rows - r);
      pack_panel(to + r * depth, r < whole ? height : tail, left.block(tile.row + r, count, at, depth), count, depth);
    }
  }

  // Adds what these panels give for some columns.
  template <class Right>
  void multiply(Tile tile, const Right& right, int64_t at, int64_t depth, int64_t c, int64_t end, int64_t place,
                bool found) {
    const int64_t rows = tile.row_end - tile.row, columns = tile.column_end - tile.column, whole = whole_panels(rows);
    const float* const panels = left_panels.at + place;
    const auto& wide = all_columns(right, tile, at, depth);
    for (; c < end; c += width) {
      const T* panel = right_panels.at + (keep ? c * k + at * width : c * depth);
      int64_t step = width;
      if constexpr (requires { right.at; })
        if (packed) panel = right.at + (tile.column + c) * k + at * width;
      if (!packed && !found) {
        const int64_t count = min_index(width, columns - c);
        const auto block = wide.block(Right::along_k ? tile.column + c : c, count, Right::along_k ? at : 0, depth);
        const bool lies = block.si == 1 && count == width;  // and is read too rarely to be copied
        if (lies && !keep && m <= 2 * height) panel = block.at, step = block.sk;
        else pack_panel(const_cast<T*>(panel), width, block, count, depth);
      }
      float* const to = total.at + c;
      for (int64_t r = 0; r < rows; r += height) {
        const bool full = r < whole;
        const Micro multiply = full ? multiply_whole : multiply_tail;
        const float* const left = panels + r * depth;
        multiply(to + r * block.columns, block.columns, left, full ? height : tail, panel, step, depth, at == 0);
      }
    }
  }

  // Rows of a tile in panels that are multiplied as whole ones.
  int64_t whole_panels(int64_t rows) const { return rows % height <= tail ? rows - rows % height : rows; }
};
// MR and Tail rows and V registers of columns: what differs between products is compiled for each, the rest once.
template <class T, int MR, int V, int Tail, bool Packed> struct Product : PanelProduct<T> {
  Product(const Tiles& tiles, int64_t k)
      : PanelProduct<T>(tiles, k, MR, Tail, V * gemm_lanes, multiply_panels<MR, V, T>, multiply_panels<Tail, V, T>,
                        Packed) {}
};

}  // namespace gy

#include "gemm_groups.h"
#if defined(GY_AMX)
#include "amx.h"
#endif
