// Attention: for tiles of rows a walk over keys, which keeps each row's greatest score, its sum of weights and the
// weighted sum of values, as in Dao, "FlashAttention-2", 2023.
//
//   const gy::RowTiles tiles(batch, heads, rows, 48, 1);
//   gy::Attention<float, 48, 8, 6, 4, 128> attention(keys, width, value_width, true);     // one per thread
//   const gy::RowTile tile = tiles.at(step);
//   attention.begin(tile, gy::Lying<float>{query, …}, gy::Lying<float>{key, …}, gy::Lying<float>{value, …}, scale);
//   attention.walk_causal(kept, gy::unchanged);          // or walk, or walk_listed
//   attention.finish(out, oi, oe);
//
// A query's or key's i-th row has element k at [i * si + k * sk], a value's i-th column its key k. Scores lie with the
// rows of a tile beside each other: score (i', j') of rows from i and keys from j on is scores[(j' - j) * Rows + i' - i].
// `change(scores, i, i_end, j, j_end)` is what happens to them before they are weights.
#pragma once
#include "gemm.h"

namespace gy {

struct RowTile { int64_t batch, head, row, row_end; };
// The rows of all heads, those of a head one after the other, so that its keys and values stay in panels. `group` heads
// have the same keys.
struct RowTiles {
  int64_t heads, rows, side, group, down, count;
  RowTiles(int64_t batch, int64_t heads, int64_t rows, int64_t side, int64_t group)
      : heads(heads), rows(rows), side(side), group(group), down((rows + side - 1) / side),
        count(batch * heads * down) {}
  GY_FN RowTile at(int64_t step) const {
    const int64_t row = step % down * side, head = step / down;
    return {head / heads, head % heads, row, min_index(row + side, rows)};
  }
  // This thread's part, in which all tiles with the same keys are together.
  GY_FN Range whole_heads() const {
    const auto [begin, end] = share(count / (group * down));
    return {begin * group * down, end * group * down};
  }
  GY_FN bool first_of_keys(int64_t step) const { return step % (group * down) == 0; }
  GY_FN bool last_of_keys(int64_t step) const { return (step + 1) % (group * down) == 0; }
};
constexpr auto unchanged = [](float*, int64_t, int64_t, int64_t, int64_t) {};

// Keys are packed in panels of so many.
constexpr int key_panel = 16;
// Rows `begin` to `end` of a matrix of `width` columns, in panels.
template <class T> static void pack_keys(float* to, Lying<T> from, int64_t begin, int64_t end, int64_t width) {
  for (int64_t p = begin; p < end; p += key_panel, to += key_panel * width) {
    const int64_t count = min_index(key_panel, end - p);
    pack_panel(to, key_panel, from.block(p, count, 0, width), count, width);
  }
}
// to[key * V * L + row] for `count` keys in panels and V vectors of rows, which lie beside each other.
template <int MK, int V>
static void multiply_keys(float* to, const float* panels, const float* rows, int64_t count, int64_t width) {
  constexpr int Rows = V * gemm_lanes;
  for (int64_t p = 0; p < count; p += MK) {
    const float* const panel = panels + p / key_panel * key_panel * width + p % key_panel;
    multiply_panels<MK, V, float>(to + p * Rows, Rows, panel, key_panel, rows, Rows, width, true);
  }
}
// `change` keys that are not after the last row of a tile: `some` where they are after the first, `all` before.
template <class Step, class Some, class All>
GY_FN void walk_below(RowTile tile, int64_t keys, int64_t step, const Step& take, const Some& some, const All& all) {
  const int64_t end = min_index(keys, tile.row_end), whole = min_index(end, tile.row + 1) / step * step;
  for (int64_t j = 0; j < whole; j += step) take(j, j + step, all);
  for (int64_t j = whole; j < end; j += step) take(j, min_index(j + step, end), some);
}

// Tiles of Rows, whole vectors. MK keys by all rows, and MR rows by VV vectors of columns, are what micro-kernels sum;
// Keys, a multiple of panels, are a step. With `lying` values their columns follow each other in memory.
template <class T, int Rows, int MK, int MR, int VV, int Keys> struct Attention {
  static constexpr int L = gemm_lanes, V = Rows / L;
  static constexpr int64_t kept = int64_t(1) << 20;  // bytes of keys in panels that may stay for all tiles of a head
  using F = Vec<float, L>;
  const int64_t keys, width, wide, padded, slots;
  const bool copied;
  Scratch<float> query, key_panels, values, scores, total, tops, sums, factors;
  Scratch<int64_t> found;  // which step's keys and values are in a slot
  Lying<T> key{}, value{};
  RowTile tile{};
  bool fresh = true;

  Attention(int64_t keys, int64_t width, int64_t wide, bool lying)
      : keys(keys), width(width), wide(wide), padded(round_up(wide, VV * L)),
        slots(keys * width * 4 <= kept ? max_index(1, (keys + Keys - 1) / Keys) : 1),
        copied(!same<T, float> || !lying || padded != wide), query(width * Rows + L),
        key_panels(slots * Keys * width + L), values(copied ? slots * Keys * padded + L : 1),
        scores(Keys * Rows), total(Rows * padded), tops(Rows), sums(Rows), factors(Rows), found(slots) {}

  // A tile's rows of `q`, times `scale`; `k` and `v` are the keys and values of its head.
  void begin(RowTile at, Lying<T> q, Lying<T> k, Lying<T> v, float scale) {
    if (tile.row_end == 0 || k.at != key.at || v.at != value.at)
      for (int64_t s = 0; s < slots; ++s) found.at[s] = -1;
    tile = at, key = k, value = v, fresh = true;
    const int64_t rows = tile.row_end - tile.row;
    pack_panel(query.at, Rows, q.block(tile.row, rows, 0, width), rows, width);
    for (int64_t e = 0; e < width * Rows; e += L)
      store(query.at + e, mul(load<L>(query.at + e), broadcast<L>(scale)));
    for (int r = 0; r < Rows; r += L) {
      store(tops.at + r, broadcast<L>(-infinity<float>));
      store(sums.at + r, broadcast<L>(0.0f));
    }
  }
  // All keys before `end`.
  template <class Change> void walk(int64_t end, const Change& change) {
    for (int64_t j = 0; j < end; j += Keys) step(j, min_index(j + Keys, end), change);
  }
  // Keys that are not after the last row: `some` where they are after the first, `all` before.
  template <class Some, class All> void walk_causal(const Some& some, const All& all) {
    const auto take = [this](int64_t j, int64_t j_end, const auto& change) { step(j, j_end, change); };
    walk_below(tile, keys, Keys, take, some, all);
  }
  // Blocks of `side` keys, a multiple of Keys, whose numbers are `count` elements of a list.
  template <class Change>
  void walk_listed(int64_t count, const int32_t* blocks, int64_t stride, int64_t side, const Change& change) {
    for (int64_t n = 0; n < count; ++n) {
      const int64_t begin = blocks[n * stride] * side, end = min_index(begin + side, keys);
      for (int64_t j = begin; j < end; j += Keys) step(j, min_index(j + Keys, end), change);
    }
  }
  // out[row * oi + column * oe] for the tile's rows; 0 where no score is kept.
  template <class O> void finish(O* out, int64_t oi, int64_t oe) const {
    for (int64_t r = 0; r < tile.row_end - tile.row; ++r) {
      const float *from = total.at + r * padded, sum = sums.at[r];
      const F factor = broadcast<L>(sum == 0.0f ? 0.0f : 1.0f / sum);
      O* const to = out + (tile.row + r) * oi;
      for_lanes<L>(0, wide, [&](auto lanes, int64_t c) GY_INLINE {
        const F weighted = sum == 0.0f ? broadcast<L>(0.0f) : mul(load<L>(from + c), factor);
        if (oe == 1) store(lanes, to + c, cast<O>(weighted));
        else store_strided(lanes, to + c * oe, oe, cast<O>(weighted));
      });
    }
  }
  // Logarithms of the sums of exponentials, and greatest scores, in `unit`; rows without a score have `none`.
  void logarithms(float* to, int64_t step, float unit, float none) const {
    for (int64_t r = 0; r < tile.row_end - tile.row; ++r)
      to[(tile.row + r) * step] =
          sums.at[r] == 0.0f ? none : (tops.at[r] + scalar(log(broadcast<1>(sums.at[r])))) * unit;
  }
  void greatest(float* to, int64_t step, float unit) const {
    for (int64_t r = 0; r < tile.row_end - tile.row; ++r) to[(tile.row + r) * step] = tops.at[r] * unit;
  }

 private:
  // Keys of the step at `j`, which begins at a multiple of Keys, in panels, and values with whole vectors.
  int64_t packed(int64_t j) {
    const int64_t number = j / Keys, slot = number % slots, end = min_index(keys, j + Keys);
    if (found.at[slot] == number) return slot;
    found.at[slot] = number;
    pack_keys(key_panels.at + slot * Keys * width, key, j, end, width);
    if (copied)
      pack_panel(values.at + slot * Keys * padded, padded, value.block(0, wide, j, end - j), wide, end - j);
    return slot;
  }
  template <class Change> void step(int64_t j, int64_t j_end, const Change& change) {
    const int64_t slot = packed(j), count = j_end - j;
    multiply_keys<MK, V>(scores.at, key_panels.at + slot * Keys * width, query.at, count, width);
    change(scores.at, tile.row, tile.row_end, j, j_end);
    weigh(count);
    const float* from = values.at + slot * Keys * padded;
    int64_t stride = padded;
    if constexpr (same<T, float>)
      if (!copied) from = value.at + j * value.sk, stride = value.sk;
    for (int64_t c = 0; c < padded; c += VV * L)
      for (int64_t r = 0; r < tile.row_end - tile.row; r += MR)
        multiply_panels<MR, VV, float>(total.at + r * padded + c, padded, scores.at + r, Rows, from + c, stride, count,
                                       fresh);
    fresh = false;
  }
  // Scores become weights, and what is summed so far counts by the new greatest scores.
  __attribute__((noinline)) void weigh(int64_t count) {
    for (int r = 0; r < Rows; r += L) {
      float* const at = scores.at + r;
      const F old = load<L>(tops.at + r);
      F top = old;
      for (int64_t j = 0; j < count; ++j) top = maximum(top, load<L>(at + j * Rows));
      const F base = MaxAndSum<float, L>::base(top), factor = exp(sub(old, base));
      F sum = mul(load<L>(sums.at + r), factor);
      for (int64_t j = 0; j < count; ++j) {
        const F weight = exp(sub(load<L>(at + j * Rows), base));
        sum = add(sum, weight);
        store(at + j * Rows, weight);
      }
      store(tops.at + r, top);
      store(sums.at + r, sum);
      store(factors.at + r, factor);
    }
    for (int64_t r = 0; r < tile.row_end - tile.row && !fresh; ++r) {
      if (factors.at[r] == 1.0f) continue;
      const F factor = broadcast<L>(factors.at[r]);
      float* const row = total.at + r * padded;
      for (int64_t c = 0; c < padded; c += L) store(row + c, mul(load<L>(row + c), factor));
    }
  }
};

}  // namespace gy

#include "attention_gradient.h"
