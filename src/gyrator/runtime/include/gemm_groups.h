// Products whose right panels hold groups of neighbours along k, as many as four bytes hold, for instructions that add up
// a group's products: int8, exact in int32, and bfloat16 where the processor multiplies it.
#pragma once

namespace gy {

#if defined(GY_AVX512) && defined(__AVX512VNNI__)
#define GY_DOT_BYTES 1
#endif
#if defined(GY_AVX512) && defined(__AVX512BF16__)
#define GY_DOT_BF16 1
#endif

// What is summed of T, and the elements of left panels. VNNI wants those unsigned, `a + 128`: what that adds for each
// column is taken off again. Without, bytes are widened to 16 bits, and two sums for each column are added in the end.
template <class T> struct Groups {
  using Sum = float;
  using Left = T;
  static constexpr bool shifted = false;
};
template <> struct Groups<int8_t> {
  using Sum = int32_t;
#if defined(GY_DOT_BYTES)
  using Left = uint8_t;
  static constexpr bool shifted = true;
#else
  using Left = int16_t;
  static constexpr bool shifted = false;
#endif
};

// ---- panels -----------------------------------------------------------------------------------------------
// to[k / G * M * G + i * G + k % G] = source(i, k) for i < count, k < depth; what it is for other k up to a multiple of G
// does not matter.
template <int M, class T>
static void pack_left_groups(T* to, Lying<T> source, int64_t count, int64_t depth) {
  pack_groups<M>(to, source, count, depth, round_up(depth, 4 / sizeof(T)));
}
template <int M>
static void pack_left_groups(uint8_t* to, Lying<int8_t> source, int64_t count, int64_t depth) {
  pack_left_groups<M>(reinterpret_cast<int8_t*>(to), source, count, depth);
  uint32_t* const words = reinterpret_cast<uint32_t*>(to);
  constexpr int L = gemm_lanes;
  for (int64_t i = 0; i < round_up(depth, 4) / 4 * M; i += L)
    store(words + i, bitwise_xor(load<L>(words + i), broadcast<L>(0x80808080u)));
}
template <int M>
static void pack_left_groups(int16_t* to, Lying<int8_t> source, int64_t count, int64_t depth) {
  constexpr int L = gemm_lanes;
  const int64_t all = round_up(depth, 4) * M;
  int8_t* const bytes = reinterpret_cast<int8_t*>(to) + all;  // the second half, which the first reaches last
  pack_left_groups<M>(bytes, source, count, depth);
  for (int64_t i = 0; i < all; i += L) store(to + i, cast<int16_t>(load<L>(bytes + i)));
}

// ---- the micro-kernel -------------------------------------------------------------------------------------
#if defined(GY_DOT_BYTES) || defined(GY_DOT_BF16)
// total + the products of the groups in a and b.
GY_FN v16si add_groups(v16si total, v16si a, v16si b) {
  asm("vpdpbusd %2, %1, %0" : "+v"(total) : "v"(a), "v"(b));
  return total;
}
GY_FN v16sf add_groups(v16sf total, v16si a, v16si b) {
  asm("vdpbf16ps %2, %1, %0" : "+v"(total) : "v"(a), "v"(b));
  return total;
}

// What 128 in each element of the left operand adds to the columns of a panel of V registers.
template <int V> static void sum_shift(int32_t* shift, const int8_t* panel, int64_t depth) {
  v16si sum[V] = {};
  for (int64_t k = 0; k < depth; k += 4, panel += V * 64)
    _Pragma("GCC unroll 8") for (int j = 0; j < V; ++j)
      sum[j] = add_groups(sum[j], v16si{} + int(0x80808080), read_as<v16si>((const int32_t*)(panel + j * 64)));
  for (int j = 0; j < V; ++j) store(shift + j * 16, Vec<int32_t, 16>{{sum[j]}});
}

// total[i, j] (+)= sum over k of a[k, i] * b[k, j] - shift[j] for M rows and V registers of columns. Of a, the groups of a
// row are Lead of them apart, rows Apart.
template <int M, int V, int Lead = M, int Apart = 1, class Left, class T, class Sum>
static __attribute__((noinline)) void multiply_groups(Sum* total, int64_t stride, const Left* a, const T* b,
                                                      int64_t depth, const Sum* shift, bool fresh) {
  using S = native<Sum, 16>;
  S sum[M][V];
  _Pragma("GCC unroll 64") for (int i = 0; i < M; ++i)
    _Pragma("GCC unroll 64") for (int j = 0; j < V; ++j) sum[i][j] = S{};
  const int32_t* left = reinterpret_cast<const int32_t*>(a);
  const int32_t* panel = reinterpret_cast<const int32_t*>(b);
  for (int64_t k = 0; k < depth; k += 4 / sizeof(T), left += Lead, panel += V * 16) {
    v16si right[V];
    _Pragma("GCC unroll 64") for (int j = 0; j < V; ++j) right[j] = read_as<v16si>(panel + j * 16);
    _Pragma("GCC unroll 64") for (int i = 0; i < M; ++i) {
      const v16si spread = v16si{} + read_as<int32_t>(left + i * Apart);
      _Pragma("GCC unroll 64") for (int j = 0; j < V; ++j) sum[i][j] = add_groups(sum[i][j], spread, right[j]);
    }
  }
  _Pragma("GCC unroll 64") for (int i = 0; i < M; ++i)
    _Pragma("GCC unroll 64") for (int j = 0; j < V; ++j) {
      Sum* const at = total + i * stride + j * 16;
      Vec<Sum, 16> found{{sum[i][j]}};
      if constexpr (Groups<T>::shifted) found = sub(found, load<16>(shift + j * 16));
      store(at, fresh ? found : add(load<16>(at), found));
    }
}
#endif

#if !defined(GY_DOT_BYTES)
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

template <int M, int V>
static __attribute__((noinline)) void multiply_groups(int32_t* total, int64_t stride, const int16_t* a, const int8_t* b,
                                                      int64_t depth, const int32_t*, bool fresh) {
  constexpr int L = gemm_lanes, NR = V * L;
#if defined(GY_SIMD)
  using I = native<int32_t, L>;
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
#endif

// ---- tiles ------------------------------------------------------------------------------------------------
// As the general one.
template <class T, int MR, int V, int Tail, bool Packed> struct GroupProduct {
  static constexpr int NR = V * gemm_lanes, G = 4 / sizeof(T);
  using Sum = typename Groups<T>::Sum;
  using LeftElement = typename Groups<T>::Left;
  const int64_t k;
  const Blocks block;
  const bool keep;
  Scratch<Sum> total;
  Scratch<LeftElement> left_panels;
  Scratch<T> right_panels;
  int64_t kept_batch = -1, kept_column = -1;

  GroupProduct(const Tiles& tiles, int64_t k)
      : k(k), block(tiles.block), keep(tiles.down > 1),
        total(round_up(min_index(block.rows, tiles.m), MR) * block.columns),
        left_panels(round_up(min_index(block.rows, tiles.m), MR) * round_up(min_index(block.depth, k), G) + 4 * gemm_lanes),
        right_panels(Packed ? 1 : block.columns * round_up(keep ? k : min_index(block.depth, k), G) + 4 * gemm_lanes) {}

  template <class Left, class Right> SumsOf<Sum> sum(Tile tile, const Left& left, const Right& right) {
    const int64_t rows = tile.row_end - tile.row, columns = tile.column_end - tile.column, last = rows % MR;
    const int64_t whole = last <= Tail ? rows - last : rows, all = round_up(k, G);
    const bool found = keep && kept_batch == tile.batch && kept_column == tile.column;
    kept_batch = tile.batch, kept_column = tile.column;
    const int64_t most = min_index(block.depth, min_index(Left::most_depth, Right::most_depth));
    for (int64_t at = 0; goes_on(at, k); at += most) {
      const int64_t depth = min_index(most, k - at), width = round_up(depth, G);
      const auto& wide = all_columns(right, tile, at, depth);
      for (int64_t r = 0; r < whole; r += MR) {
        const int64_t count = min_index(MR, rows - r);
        pack_left_groups<MR>(left_panels.at + r * width, left.block(tile.row + r, count, at, depth), count, depth);
      }
      if (whole < rows)
        pack_left_groups<Tail>(left_panels.at + whole * width, left.block(tile.row + whole, rows - whole, at, depth),
                               rows - whole, depth);
      for (int64_t c = 0; c < columns; c += NR) {
        const T* panel = right_panels.at + (keep ? c * all + at * NR : c * width);
        if constexpr (Packed) panel = right.at + (tile.column + c) * all + at * NR;
        else if (!found) {
          const int64_t count = min_index(NR, columns - c);
          const auto block = wide.block(Right::along_k ? tile.column + c : c, count, Right::along_k ? at : 0, depth);
          pack_groups<NR>(const_cast<T*>(panel), block, count, depth, width);
        }
        alignas(64) Sum shift[NR];
        if constexpr (Groups<T>::shifted) sum_shift<V>(shift, panel, width);
        Sum* const to = total.at + c;
        for (int64_t r = 0; r < whole; r += MR)
          multiply_groups<MR, V>(to + r * block.columns, block.columns, left_panels.at + r * width, panel, width, shift,
                                 at == 0);
        if (whole < rows)
          multiply_groups<Tail, V>(to + whole * block.columns, block.columns, left_panels.at + whole * width, panel, width,
                                   shift, at == 0);
      }
    }
    return {total.at - tile.row * block.columns - tile.column, block.columns};
  }
};
#if !defined(GY_AMX)
template <int MR, int V, int Tail, bool Packed>
struct Product<int8_t, MR, V, Tail, Packed> : GroupProduct<int8_t, MR, V, Tail, Packed> {
  using GroupProduct<int8_t, MR, V, Tail, Packed>::GroupProduct;
};
#if defined(GY_DOT_BF16)
template <int MR, int V, int Tail, bool Packed>
struct Product<bf16, MR, V, Tail, Packed> : GroupProduct<bf16, MR, V, Tail, Packed> {
  using GroupProduct<bf16, MR, V, Tail, Packed>::GroupProduct;
};
#endif
#endif

}  // namespace gy
