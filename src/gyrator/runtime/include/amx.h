// Products of bfloat16 on AMX tiles: a micro-kernel sums 32 x 32 elements in four tiles of 16 rows of 64 bytes.
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
// Tile C += A x B, with pairs of k side by side in both.
template <int C, int A, int B> GY_FN void tile_multiply() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
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

constexpr int tile_depth = 32;  // elements of k in a tile's row

// to[k / 2 * 64 + c * 2 + k % 2] = from[c * sc + k * sk] for c < count, k < depth; 0 up to 32 columns and whole tiles.
static void pack_pairs(bf16* to, const bf16* from, int64_t sc, int64_t sk, int64_t count, int64_t depth) {
  const int64_t even = depth / 2 * 2;
  int64_t done = 0;
  if (sk == 1 && sc % 2 == 0) {
    pack_panel<32>(reinterpret_cast<float*>(to), reinterpret_cast<const float*>(from), sc / 2, 1, count, even / 2);
    done = even;
  } else if (sc == 1) {
    for (; done < even; done += 2)
      for (int c = 0; c < 32; c += 16) {
        const auto* row = reinterpret_cast<const uint16_t*>(from + done * sk + c);
        const auto some = first_lanes<16>(count - c);
        const auto first = cast<uint32_t>(load<16>(row, some, uint16_t(0)));
        const auto second = cast<uint32_t>(load<16>(row + sk, some, uint16_t(0)));
        const auto both = bitwise_or(first, lshift(second, broadcast<16>(uint32_t(16))));
        store(reinterpret_cast<uint32_t*>(to + done * 32 + c * 2), both);
      }
  }
  for (int64_t k = done; k < round_up(depth, tile_depth); ++k)
    for (int64_t c = 0; c < 32; ++c)
      to[k / 2 * 64 + c * 2 + k % 2] = k < depth && c < count ? from[c * sc + k * sk] : bf16{0};
}

// Rows of whole tiles: to[i * width + k] = from[i * si + k * sk] for i < rows, k < depth; 0 for the rest.
static void pack_rows(bf16* to, int64_t height, int64_t width, const bf16* from, int64_t si, int64_t sk, int64_t rows,
                      int64_t depth) {
  for (int64_t i = 0; i < height; ++i)
    for (int64_t k = 0; k < width; k += 32) {
      bf16* const at = to + i * width + k;
      const bf16* const start = from + i * si + k * sk;
      if (i >= rows) store(at, broadcast<32>(bf16{0}));
      else if (sk == 1) store(at, load<32>(start, first_lanes<32>(depth - k), bf16{0}));
      else for (int64_t j = 0; j < 32; ++j) at[j] = k + j < depth ? start[j * sk] : bf16{0};
    }
}

// total[i, j] (+)= sum over k of left[i * step + k] * panel[k, j] for 32 columns, and 32 rows or 16.
template <bool Two>
static void multiply_tiles(float* total, int64_t stride, const bf16* left, int64_t step, const bf16* panel,
                           int64_t depth, bool fresh) {
  float* const below = total + 16 * stride;
  if (fresh) {
    tile_zero<0>(), tile_zero<1>();
    if constexpr (Two) tile_zero<2>(), tile_zero<3>();
  } else {
    tile_load<0>(total, stride * 4), tile_load<1>(total + 16, stride * 4);
    if constexpr (Two) tile_load<2>(below, stride * 4), tile_load<3>(below + 16, stride * 4);
  }
  for (int64_t k = 0; k < depth; k += tile_depth) {
    tile_load<6>(panel + k * 32, 128), tile_load<4>(left + k, step * 2), tile_load<7>(panel + k * 32 + 32, 128);
    tile_multiply<0, 4, 6>(), tile_multiply<1, 4, 7>();
    if constexpr (Two) {
      tile_load<5>(left + 16 * step + k, step * 2);
      tile_multiply<2, 5, 6>(), tile_multiply<3, 5, 7>();
    }
  }
  tile_store<0>(total, stride * 4), tile_store<1>(total + 16, stride * 4);
  if constexpr (Two) tile_store<2>(below, stride * 4), tile_store<3>(below + 16, stride * 4);
}

// As the general one. Panels of the right operand have 32 columns, and pairs of k side by side.
template <int MR, int V, int Tail, bool Packed> struct Product<bf16, MR, V, Tail, Packed> {
  const int64_t k;
  const Blocks block;
  const bool keep;
  Scratch<float> total;
  Scratch<bf16> left_panels, right_panels;
  const bf16* kept = nullptr;
  int64_t kept_column = -1;

  Product(const Tiles& tiles, int64_t k)
      : k(k), block(tiles.block), keep(tiles.down > 1),
        total(round_up(min_index(block.rows, tiles.m), 32) * block.columns),
        left_panels(round_up(min_index(block.rows, tiles.m), 32) * round_up(min_index(block.depth, k), tile_depth)),
        right_panels(Packed ? 1 : block.columns * round_up(keep ? k : min_index(block.depth, k), tile_depth)) {
    tile_begin();
  }
  ~Product() { tile_end(); }

  Sums sum(Tile tile, const bf16* left, int64_t lm, int64_t lk, const bf16* right, int64_t rk, int64_t rn) {
    const int64_t rows = tile.row_end - tile.row, columns = tile.column_end - tile.column;
    const int64_t all = round_up(k, tile_depth);
    const bool found = keep && kept == right && kept_column == tile.column;
    kept = right, kept_column = tile.column;
    left += tile.row * lm;
    right += Packed ? tile.column * all : tile.column * rn;
    for (int64_t at = 0; at < k; at += block.depth) {
      const int64_t depth = min_index(block.depth, k - at), width = round_up(depth, tile_depth);
      const int64_t whole = lk == 1 && depth == width ? rows / 32 * 32 : 0;  // read where they lie
      if (whole < rows)
        pack_rows(left_panels.at, round_up(rows - whole, 32), width, left + whole * lm + at * lk, lm, lk,
                  rows - whole, depth);
      for (int64_t c = 0; c < columns; c += 32) {
        const bf16* panel = right + c * all + at * 32;
        if (!Packed) {
          bf16* const to = right_panels.at + (keep ? c * all + at * 32 : c * width);
          if (!found) pack_pairs(to, right + at * rk + c * rn, rn, rk, min_index(32, columns - c), depth);
          panel = to;
        }
        for (int64_t r = 0; r < rows; r += 32) {
          const bf16* const from = r < whole ? left + r * lm + at : left_panels.at + (r - whole) * width;
          const int64_t step = r < whole ? lm : width;
          float* const to = total.at + r * block.columns + c;
          if (rows - r > 16) multiply_tiles<true>(to, block.columns, from, step, panel, width, at == 0);
          else multiply_tiles<false>(to, block.columns, from, step, panel, width, at == 0);
        }
      }
    }
    return {total.at - tile.row * block.columns - tile.column, block.columns};
  }
};

}  // namespace gy
