// Products of bfloat16 and int8 on AMX tiles: a micro-kernel sums 32 x 32 elements in four tiles of 16 rows of 64
// bytes.
#pragma once

namespace gy {

#if !defined(GY_TILE_OPERATIONS)  // tests run these on a model of the tiles
template <int I> GY_FN void tile_zero() { asm volatile("tilezero %%tmm%c0" ::"i"(I)); }
template <int I> GY_FN void tile_load(const void* from, int64_t bytes) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(bytes), "i"(I) : "memory");
}
template <int I> GY_FN void tile_store(void* to, int64_t bytes) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(bytes), "i"(I) : "memory");
}
// Tile C += A x B, with as many of k side by side in both as four bytes hold.
template <class T, int C, int A, int B> GY_FN void tile_multiply() {
  if constexpr (same<T, bf16>) asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
  else asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
}
extern "C" long syscall(long, ...);
struct TileConfig {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
// Eight tiles of full size, for this thread. Linux wants a process to ask for the tiles once.
GY_FN void tile_begin() {
  static int asked = 0;
  if (!__atomic_exchange_n(&asked, 1, __ATOMIC_RELAXED)) syscall(158, 0x1023, 18);
  alignas(64) const TileConfig config;
  asm volatile("ldtilecfg %0" ::"m"(config));
}
GY_FN void tile_end() { asm volatile("tilerelease"); }
#endif

// A thread has tiles as long as it has one of these.
struct TilesInUse {
  TilesInUse() { tile_begin(); }
  ~TilesInUse() { tile_end(); }
};

template <class T> constexpr int tile_depth = 64 / sizeof(T);  // elements of k in a tile's row

// Rows of whole tiles: to[i * width + k] = source(i, k) for i < rows, k < depth; 0 for the rest.
template <class T>
static void pack_rows(T* to, int64_t height, int64_t width, Lying<T> source, int64_t rows, int64_t depth) {
  constexpr int D = tile_depth<T>;
  const auto [from, si, sk] = source;
  for (int64_t i = 0; i < height; ++i)
    for (int64_t k = 0; k < width; k += D) {
      T* const at = to + i * width + k;
      const T* const start = from + i * si + k * sk;
      if (i >= rows) store(at, broadcast<D>(T{}));
      else if (sk == 1) store(at, load<D>(start, first_lanes<D>(depth - k), T{}));
      else for (int64_t j = 0; j < D; ++j) at[j] = k + j < depth ? start[j * sk] : T{};
    }
}

// Bytes of a panel that are asked for early: the processor does not see where loads of tiles are going.
constexpr int tiles_ahead = 8192;

// Sums of 32 rows or 16 (Two) and 32 columns or 16 (Wide) in tiles: set to 0 or read, added to, stored.
template <bool Two, bool Wide, class Total> static void begin_tiles(const Total* total, int64_t stride, bool fresh) {
  const Total* const below = total + 16 * stride;
  if (fresh) {
    tile_zero<0>();
    if constexpr (Wide) tile_zero<1>();
    if constexpr (Two) tile_zero<2>();
    if constexpr (Two && Wide) tile_zero<3>();
  } else {
    tile_load<0>(total, stride * 4);
    if constexpr (Wide) tile_load<1>(total + 16, stride * 4);
    if constexpr (Two) tile_load<2>(below, stride * 4);
    if constexpr (Two && Wide) tile_load<3>(below + 16, stride * 4);
  }
}
// Adds left[i * step + k] * panel[k, j]. `Far`: the panel comes from far, as nobody read it yet.
template <bool Two, bool Wide, bool Far, class T>
static void add_tiles(const T* left, int64_t step, const T* panel, int64_t depth) {
  constexpr int D = tile_depth<T>, bytes = sizeof(T);
  for (int64_t k = 0; k < depth; k += D) {
    if constexpr (Far)
      for (int i = 0; i < 32; ++i) __builtin_prefetch(panel + k * 32 + (tiles_ahead + i * 64) / bytes, 0, 3);
    tile_load<6>(panel + k * 32, 128), tile_load<4>(left + k, step * bytes);
    if constexpr (Wide) tile_load<7>(panel + k * 32 + D, 128);
    tile_multiply<T, 0, 4, 6>();
    if constexpr (Wide) tile_multiply<T, 1, 4, 7>();
    if constexpr (Two) tile_load<5>(left + 16 * step + k, step * bytes), tile_multiply<T, 2, 5, 6>();
    if constexpr (Two && Wide) tile_multiply<T, 3, 5, 7>();
  }
}
template <bool Two, bool Wide, class Total> static void end_tiles(Total* total, int64_t stride) {
  Total* const below = total + 16 * stride;
  tile_store<0>(total, stride * 4);
  if constexpr (Wide) tile_store<1>(total + 16, stride * 4);
  if constexpr (Two) tile_store<2>(below, stride * 4);
  if constexpr (Two && Wide) tile_store<3>(below + 16, stride * 4);
}
template <bool Two, bool Far, class T, class Total>
static void multiply_tiles(Total* total, int64_t stride, const T* left, int64_t step, const T* panel, int64_t depth,
                           bool fresh) {
  begin_tiles<Two, true>(total, stride, fresh);
  add_tiles<Two, true, Far>(left, step, panel, depth);
  end_tiles<Two, true>(total, stride);
}

// As the general one. Panels of the right operand have 32 columns, with groups of k side by side.
template <class T, class Total, bool Packed> struct TileProduct {
  const int64_t k;
  const Blocks block;
  const bool keep;
  Scratch<Total> total, turned;
  Scratch<T> left_panels, right_panels;
  int64_t kept_batch = -1, kept_column = -1;
  [[no_unique_address]] TilesInUse in_use;

  TileProduct(const Tiles& tiles, int64_t k)
      : k(k), block(tiles.block), keep(tiles.down > 1),
        total(round_up(min_index(block.rows, tiles.m), 32) * block.columns),
        turned(round_up(min_index(block.rows, tiles.m), 32) * 32),
        left_panels(round_up(min_index(block.rows, tiles.m), 32) *
                    round_up(keep ? min_index(block.depth, k) : k, tile_depth<T>)),
        right_panels(Packed ? 1 : block.columns * round_up(keep ? k : min_index(block.depth, k), tile_depth<T>)) {}

  template <class Left, class Right> SumsOf<Total> sum(Tile tile, const Left& left, const Right& right) {
    constexpr bool lies = same<Left, Lying<T>>;
    if constexpr (Right::along_k)
      if (!keep) return sum_turned(tile, left, right);
    const int64_t rows = tile.row_end - tile.row, columns = tile.column_end - tile.column;
    const int64_t all = round_up(k, tile_depth<T>);
    const bool found = keep && kept_batch == tile.batch && kept_column == tile.column;
    kept_batch = tile.batch, kept_column = tile.column;
    const int64_t most = min_index(block.depth, min_index(Left::most_depth, Right::most_depth));
    for (int64_t at = 0; goes_on(at, k); at += most) {
      const int64_t depth = min_index(most, k - at), width = round_up(depth, tile_depth<T>);
      const auto& wide = all_columns(right, tile, at, depth);
      Lying<T> there{};
      int64_t whole = 0;  // rows that are read where they lie
      if constexpr (lies) {
        there = left.block(tile.row, rows, at, depth);
        whole = there.sk == 1 && depth == width ? rows / 32 * 32 : 0;
      }
      for (int64_t r = whole; r < rows; r += 32) {
        const int64_t count = min_index(32, rows - r);
        pack_rows(left_panels.at + (r - whole) * width, 32, width, left.block(tile.row + r, count, at, depth), count,
                  depth);
      }
      for (int64_t c = 0; c < columns; c += 32) {
        const T* panel = right_panels.at + (keep ? c * all + at * 32 : c * width);
        if constexpr (Packed) panel = right.at + (tile.column + c) * all + at * 32;
        else if (!found) {
          const int64_t count = min_index(32, columns - c);
          const auto block = wide.block(Right::along_k ? tile.column + c : c, count, Right::along_k ? at : 0, depth);
          pack_groups<32>(const_cast<T*>(panel), block, count, depth, width);
        }
        for (int64_t r = 0; r < rows; r += 32) {
          const T* const from = r < whole ? there.at + r * there.si : left_panels.at + (r - whole) * width;
          const int64_t step = r < whole ? there.si : width;
          Total* const to = total.at + r * block.columns + c;
          if (rows - r > 16 && r > 0) multiply_tiles<true, false>(to, block.columns, from, step, panel, width, at == 0);
          else if (rows - r > 16) multiply_tiles<true, Packed>(to, block.columns, from, step, panel, width, at == 0);
          else multiply_tiles<false, Packed>(to, block.columns, from, step, panel, width, at == 0);
        }
      }
    }
    return {total.at - tile.row * block.columns - tile.column, block.columns};
  }

  // Few rows, so that each column of the right operand is computed once: columns are the rows of tiles, as they lie along
  // k, and are walked from end to end, as memory likes. In the end the sums are turned.
  template <class Left, class Right> SumsOf<Total> sum_turned(Tile tile, const Left& left, const Right& right) {
    const int64_t rows = tile.row_end - tile.row, columns = tile.column_end - tile.column;
    const int64_t all = round_up(k, tile_depth<T>), height = round_up(rows, 32);
    const int64_t most = min_index(min_index(block.depth, 512 / sizeof(T)), Left::most_depth);
    if (kept_batch != tile.batch)
      for (int64_t r = 0; r < rows; r += 32)
        for (int64_t at = 0; at < k; at += most) {
          const int64_t count = min_index(32, rows - r), depth = min_index(most, k - at);
          pack_groups<32>(left_panels.at + r * all + at * 32, left.block(tile.row + r, count, at, depth), count, depth,
                          round_up(depth, tile_depth<T>));
        }
    kept_batch = tile.batch;
    for (int64_t c = 0; c < columns; c += 32) {
      for (int64_t at = 0; goes_on(at, k); at += most) {
        const int64_t depth = min_index(most, k - at), width = round_up(depth, tile_depth<T>);
        const Lying<T> found = right.block(tile.column + c, min_index(32, columns - c), at, depth);
        for (int64_t i = 0; i < 32 && depth < width; ++i)
          for (int64_t j = depth; j < width; ++j) const_cast<T*>(found.at)[i * found.si + j] = T{};
        for (int64_t r = 0; r < rows; r += 32) {
          const T* const panel = left_panels.at + r * all + at * 32;
          const bool begins = at == 0 || rows > 32, ends = at + most >= k || rows > 32;
          if (rows - r > 16) add_turned<true>(turned.at + r, height, found, panel, width, begins, at == 0, ends);
          else add_turned<false>(turned.at + r, height, found, panel, width, begins, at == 0, ends);
        }
      }
      transpose_block(turned.at, height, total.at + c, block.columns, min_index(32, columns - c), rows);
    }
    return {total.at - tile.row * block.columns - tile.column, block.columns};
  }
  template <bool Wide>
  static void add_turned(Total* to, int64_t height, Lying<T> found, const T* panel, int64_t width, bool begins, bool fresh,
                         bool ends) {
    if (begins) begin_tiles<true, Wide>(to, height, fresh);
    add_tiles<true, Wide, false>(found.at, found.si, panel, width);
    if (ends) end_tiles<true, Wide>(to, height);
  }
};
template <int MR, int V, int Tail, bool Packed>
struct Product<bf16, MR, V, Tail, Packed> : TileProduct<bf16, float, Packed> {
  using TileProduct<bf16, float, Packed>::TileProduct;
};
template <int MR, int V, int Tail, bool Packed>
struct Product<int8_t, MR, V, Tail, Packed> : TileProduct<int8_t, int32_t, Packed> {
  using TileProduct<int8_t, int32_t, Packed>::TileProduct;
};

}  // namespace gy
