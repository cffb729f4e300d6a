// Products of int8, exact in int32: panels of the right operand hold four neighbours along k of each column together.
#pragma once

namespace gy {

// With VNNI the left operand is shifted to unsigned, `a + 128`, and `128 * b` is summed beside to be taken off again.
// Without, both are widened to 16 bits, and two sums for each column are added in the end.
#if defined(GY_AVX512) && defined(__AVX512VNNI__)
using LeftByte = uint8_t;
GY_FN uint8_t left_byte(int8_t x) { return uint8_t(x) ^ 0x80; }
#else
using LeftByte = int16_t;
GY_FN int16_t left_byte(int8_t x) { return x; }
#endif

// to[k / 4 * M * 4 + i * 4 + k % 4] = source(i, k) for i < count, k < depth; what it is for other k up to a multiple of 4
// does not matter.
template <int M>
static void pack_left_bytes(LeftByte* to, Lying<int8_t> source, int64_t count, int64_t depth) {
  const auto [from, si, sk] = source;
  for (int64_t i = 0; i < M; ++i) {
    const int8_t* const row = from + i * si;
    LeftByte* const at = to + i * 4;
    int64_t k = 0;
    if (i < count && sk == 1)
      for (; k + 4 <= depth; k += 4)
        for (int g = 0; g < 4; ++g) at[k * M + g] = left_byte(row[k + g]);
    for (; k < round_up(depth, 4); ++k)
      at[k / 4 * M * 4 + k % 4] = left_byte(i < count && k < depth ? row[k * sk] : int8_t(0));
  }
}

#if defined(GY_SIMD)
template <int Start, int... I, class V> GY_FN V every_second(V low, V high, sequence<I...>) {
  return __builtin_shufflevector(low, high, (2 * I + Start)...);
}
// a[2 i] * b[2 i] + a[2 i + 1] * b[2 i + 1].
GY_FN v8si multiply_pairs(v16hi a, v16hi b) { return __builtin_ia32_pmaddwd256(a, b); }
#if defined(GY_AVX512)
GY_FN v16si multiply_pairs(v32hi a, v32hi b) {
  return __builtin_ia32_pmaddwd512_mask(a, b, v16si{}, uint16_t(-1));
}
#endif
#endif

// total[i, j] (+)= sum over k of a[k, i] * b[k, j] for M rows and V registers of columns.
template <int M, int V>
static __attribute__((noinline)) void multiply_bytes(int32_t* total, int64_t stride, const LeftByte* a, const int8_t* b,
                                                     int64_t depth, bool fresh) {
  constexpr int L = gemm_lanes, NR = V * L;
#if defined(GY_SIMD)
  using I = native<int32_t, L>;
#endif
#if defined(GY_AVX512) && defined(__AVX512VNNI__)
  I sum[M][V], shift[V];
  _Pragma("GCC unroll 64") for (int j = 0; j < V; ++j) {
    shift[j] = I{};
    _Pragma("GCC unroll 64") for (int i = 0; i < M; ++i) sum[i][j] = I{};
  }
  for (int64_t k = 0; k < depth; k += 4, a += 4 * M, b += 4 * NR) {
    I right[V];
    _Pragma("GCC unroll 64") for (int j = 0; j < V; ++j) {
      right[j] = read_as<I>(reinterpret_cast<const int32_t*>(b + j * 64));
      shift[j] = __builtin_ia32_vpdpbusd_v16si(shift[j], I{} + int(0x80808080), right[j]);
    }
    _Pragma("GCC unroll 64") for (int i = 0; i < M; ++i) {
      const I left = I{} + read_as<int32_t>(reinterpret_cast<const int32_t*>(a + i * 4));
      _Pragma("GCC unroll 64") for (int j = 0; j < V; ++j)
        sum[i][j] = __builtin_ia32_vpdpbusd_v16si(sum[i][j], left, right[j]);
    }
  }
  _Pragma("GCC unroll 64") for (int i = 0; i < M; ++i)
    _Pragma("GCC unroll 64") for (int j = 0; j < V; ++j) {
      int32_t* const at = total + i * stride + j * L;
      const Vec<int32_t, L> found{{sum[i][j] - shift[j]}};
      store(at, fresh ? found : add(load<L>(at), found));
    }
#elif defined(GY_SIMD)
  using H = native<int16_t, 2 * L>;   // four elements of L / 2 columns
  I sum[M][V][2];
  _Pragma("GCC unroll 64") for (int i = 0; i < M; ++i)
    _Pragma("GCC unroll 64") for (int j = 0; j < V; ++j) sum[i][j][0] = sum[i][j][1] = I{};
  for (int64_t k = 0; k < depth; k += 4, a += 4 * M, b += 4 * NR) {
    H right[V][2];
    _Pragma("GCC unroll 64") for (int j = 0; j < 2 * V; ++j)
      right[j / 2][j % 2] = __builtin_convertvector(read_as<native<int8_t, 2 * L>>(b + j * 2 * L), H);
    _Pragma("GCC unroll 64") for (int i = 0; i < M; ++i) {
      const auto four = native<int64_t, L / 2>{} + read_as<int64_t>(reinterpret_cast<const int64_t*>(a + i * 4));
      _Pragma("GCC unroll 64") for (int j = 0; j < V; ++j)
        _Pragma("GCC unroll 64") for (int h = 0; h < 2; ++h) sum[i][j][h] += multiply_pairs((H)four, right[j][h]);
    }
  }
  _Pragma("GCC unroll 64") for (int i = 0; i < M; ++i)
    _Pragma("GCC unroll 64") for (int j = 0; j < V; ++j) {
      int32_t* const at = total + i * stride + j * L;
      const I low = sum[i][j][0], high = sum[i][j][1];
      const Vec<int32_t, L> found{{every_second<0>(low, high, indices<L>{}) + every_second<1>(low, high, indices<L>{})}};
      store(at, fresh ? found : add(load<L>(at), found));
    }
#else
  for (int i = 0; i < M; ++i)
    for (int j = 0; j < NR; ++j) {
      int32_t sum = fresh ? 0 : total[i * stride + j];
      for (int64_t k = 0; k < depth; k += 4)
        for (int g = 0; g < 4; ++g) sum += int32_t(a[k * M + i * 4 + g]) * b[k * NR + j * 4 + g];
      total[i * stride + j] = sum;
    }
#endif
}

#if !defined(GY_AMX)
// As the general one.
template <int MR, int V, int Tail, bool Packed> struct Product<int8_t, MR, V, Tail, Packed> {
  static constexpr int NR = V * gemm_lanes;
  const int64_t k;
  const Blocks block;
  const bool keep;
  Scratch<int32_t> total;
  Scratch<LeftByte> left_panels;
  Scratch<int8_t> right_panels;
  int64_t kept_batch = -1, kept_column = -1;

  Product(const Tiles& tiles, int64_t k)
      : k(k), block(tiles.block), keep(tiles.down > 1),
        total(round_up(min_index(block.rows, tiles.m), MR) * block.columns),
        left_panels(round_up(min_index(block.rows, tiles.m), MR) * round_up(min_index(block.depth, k), 4)),
        right_panels(Packed ? 1 : block.columns * round_up(keep ? k : min_index(block.depth, k), 4)) {}

  template <class Left, class Right> SumsOf<int32_t> sum(Tile tile, const Left& left, const Right& right) {
    const int64_t rows = tile.row_end - tile.row, columns = tile.column_end - tile.column, last = rows % MR;
    const int64_t whole = last <= Tail ? rows - last : rows, all = round_up(k, 4);
    const bool found = keep && kept_batch == tile.batch && kept_column == tile.column;
    kept_batch = tile.batch, kept_column = tile.column;
    const int64_t most = min_index(block.depth, min_index(Left::most_depth, Right::most_depth));
    for (int64_t at = 0; at < k; at += most) {
      const int64_t depth = min_index(most, k - at), width = round_up(depth, 4);
      const auto& wide = all_columns(right, tile, at, depth);
      for (int64_t r = 0; r < whole; r += MR) {
        const int64_t count = min_index(MR, rows - r);
        pack_left_bytes<MR>(left_panels.at + r * width, left.block(tile.row + r, count, at, depth), count, depth);
      }
      if (whole < rows)
        pack_left_bytes<Tail>(left_panels.at + whole * width, left.block(tile.row + whole, rows - whole, at, depth),
                              rows - whole, depth);
      for (int64_t c = 0; c < columns; c += NR) {
        const int8_t* panel = right_panels.at + (keep ? c * all + at * NR : c * width);
        if constexpr (Packed) panel = right.at + (tile.column + c) * all + at * NR;
        else if (!found) {
          const int64_t count = min_index(NR, columns - c);
          const auto block = wide.block(Right::along_k ? tile.column + c : c, count, Right::along_k ? at : 0, depth);
          pack_groups<NR>(const_cast<int8_t*>(panel), block, count, depth, width);
        }
        int32_t* const to = total.at + c;
        for (int64_t r = 0; r < whole; r += MR)
          multiply_bytes<MR, V>(to + r * block.columns, block.columns, left_panels.at + r * width, panel, width, at == 0);
        if (whole < rows)
          multiply_bytes<Tail, V>(to + whole * block.columns, block.columns, left_panels.at + whole * width, panel, width,
                                  at == 0);
      }
    }
    return {total.at - tile.row * block.columns - tile.column, block.columns};
  }
};
#endif

}  // namespace gy
