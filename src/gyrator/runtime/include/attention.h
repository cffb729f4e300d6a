// Attention: for tiles of rows a walk over keys, which keeps each row's greatest score, its sum of weights and the
// weighted sum of values, as in Dao, "FlashAttention-2", 2023.
//
//   const gy::RowTiles tiles(batch, heads, rows, 48, 1);
//   gy::Attention<float, 48, 8, 6, 4, 128> attention(keys, width, value_width);          // one per thread
//   const gy::RowTile tile = tiles.at(step);
//   attention.begin(tile, scale, gy::Lying<float>{query, …}, gy::Lying<float>{key, …}, gy::Lying<float>{value, …});
//   attention.walk_causal(kept, gy::unchanged);          // or walk, or walk_listed
//   attention.finish(natural, gy::Rows<float>{out, …}, …);
//
// Queries, keys, values and results are matrices whose i-th row has element k at [i * si + k * sk], of a tile's head.
// Scores lie with the rows of a tile beside each other: score (i', j') of rows from i and keys from j on is
// scores[(j' - j) * TileRows + i' - i]. `change(scores, i, i_end, j, j_end)` is what happens to them before they are
// weights.
#pragma once
#include "gemm.h"

namespace gy {

// Some rows of a head, and whether they are the first or the last that have its keys.
struct RowTile {
  int64_t batch, head, row, row_end;
  bool first, last;
  GY_FN int64_t rows() const { return row_end - row; }
};
// The rows of all heads, those of a head one after the other, so that its keys and values stay in panels. `group` heads
// have the same keys.
struct RowTiles {
  int64_t heads, rows, side, down, with_keys, count;
  RowTiles(int64_t batch, int64_t heads, int64_t rows, int64_t side, int64_t group)
      : heads(heads), rows(rows), side(side), down((rows + side - 1) / side), with_keys(group * down),
        count(batch * heads * down) {}
  GY_FN RowTile at(int64_t step) const {
    const int64_t row = step % down * side, head = step / down, place = step % with_keys;
    return {head / heads, head % heads, row, min_index(row + side, rows), place == 0, place == with_keys - 1};
  }
  // This thread's part; in the second form all tiles with the same keys are together.
  GY_FN Range share_tiles() const { return share(count); }
  GY_FN Range share_keys() const {
    const auto [begin, end] = share(count / max_index(1, with_keys));
    return {begin * with_keys, end * with_keys};
  }
};
constexpr float log2e = 1.4426950408889634f;
constexpr auto unchanged = [](float*, int64_t, int64_t, int64_t, int64_t) {};

// Where a result goes: its i-th row has element k at[i * si + k * sk]. Nowhere if nobody wants it.
template <class T> struct Rows {
  T* at = nullptr;
  int64_t si = 0, sk = 0;
  // Rows from `first` on, times what `factor` says for each, from memory with rows of `stride`.
  template <class Factor>
  void put(int64_t first, int64_t count, int64_t width, const float* from, int64_t stride, const Factor& factor) const {
    constexpr int L = gemm_lanes;
    for (int64_t i = 0; i < count && at != nullptr; ++i) {
      T* const to = at + (first + i) * si;
      for_lanes<L>(0, width, [&](auto lanes, int64_t c) GY_INLINE {
        const auto v = cast<T>(mul(load<L>(from + i * stride + c), broadcast<L>(float(factor(i)))));
        if (sk == 1) store(lanes, to + c, v);
        else store_strided(lanes, to + c * sk, sk, v);
      });
    }
  }
};

static void clear(float* at, int64_t count) {
  for (int64_t i = 0; i < count; i += gemm_lanes) store(at + i, broadcast<gemm_lanes>(0.0f));
}
static void multiply(float* at, int64_t count, float by) {
  for (int64_t i = 0; i < count; i += gemm_lanes)
    store(at + i, mul(load<gemm_lanes>(at + i), broadcast<gemm_lanes>(by)));
}
// A tile's rows, times a number, beside each other: to[k * all + i].
template <class T> static void pack_rows(float* to, int64_t all, Lying<T> from, RowTile tile, int64_t width, float by) {
  pack_panel(to, all, from.block(tile.row, tile.rows(), 0, width), tile.rows(), width);
  if (by != 1) multiply(to, all * width, by);
}
// Rows `begin` to `end`, one below the other: to[i * stride + k], 0 up to the stride.
template <class T>
static void copy_rows(float* to, int64_t stride, Lying<T> from, int64_t begin, int64_t end, int64_t width) {
  pack_panel(to, stride, Lying<T>{from.at + begin * from.si, from.sk, from.si}, width, end - begin);
}
// Keys are packed in panels of so many.
constexpr int key_panel = 16;
template <class T> static void pack_keys(float* to, Lying<T> from, int64_t begin, int64_t end, int64_t width) {
  for (int64_t p = begin; p < end; p += key_panel, to += key_panel * width) {
    const int64_t count = min_index(key_panel, end - p);
    pack_panel(to, key_panel, from.block(p, count, 0, width), count, width);
  }
}
// to[key * TileRows + row] for `count` keys in panels and V vectors of rows, which lie beside each other.
template <int MK, int V>
static void multiply_keys(float* to, const float* panels, const float* rows, int64_t count, int64_t width) {
  constexpr int TileRows = V * gemm_lanes;
  for (int64_t p = 0; p < count; p += MK) {
    const float* const panel = panels + p / key_panel * key_panel * width + p % key_panel;
    multiply_panels<MK, V, float>(to + p * TileRows, TileRows, panel, key_panel, rows, TileRows, width, true);
  }
}
// total[row, column] += sum over `count` keys of weights[key * TileRows + row] * right[key * stride + column].
template <int MR, int VV, int TileRows>
static void add_to_rows(float* total, const float* weights, const float* right, int64_t stride, int64_t rows,
                        int64_t count) {
  for (int64_t c = 0; c < stride; c += VV * gemm_lanes)
    for (int64_t r = 0; r < rows; r += MR)
      multiply_panels<MR, VV, float>(total + r * stride + c, stride, weights + r, TileRows, right + c, stride, count,
                                     false);
}

// e^x, but 0 where that is below the normal numbers: with those some processors multiply a hundred times as slowly.
template <int L> GY_FN Vec<float, L> weight_of(Vec<float, L> x) {
#if defined(GY_AVX512)
  if constexpr (L == 16) return {{part::exp_in_range(x.p[0], part::not_below(x.p[0], -87.0f))}};
#endif
  return where(lt(x, broadcast<L>(-87.0f)), broadcast<L>(0.0f), exp(x));
}

// Walks of keys, Keys of them in a step: `self.step(j, j_end, change)`.
template <class Self, int Keys> struct KeyWalk {
  // All of them.
  template <class Change> void walk(const Change& change) { walk_range(0, self().keys, change); }
  // Those that are not after the last row: `some` where they are after the first, `all` before.
  template <class Some, class All> void walk_causal(const Some& some, const All& all) {
    const int64_t end = min_index(self().keys, self().tile.row_end);
    const int64_t whole = min_index(end, self().tile.row + 1) / Keys * Keys;
    walk_range(0, whole, all);
    walk_range(whole, end, some);
  }
  // Those that are at least `low` and at most `high` keys after a row.
  template <class Change> void walk_near(int64_t low, int64_t high, const Change& change) {
    const int64_t begin = max_index(self().tile.row + low, 0) / Keys * Keys;
    walk_range(begin, min_index(self().keys, self().tile.row_end + high), change);
  }
  // Blocks of `side` keys, a multiple of Keys, whose numbers are `count` elements of a list.
  template <class Change>
  void walk_listed(int64_t count, const int32_t* blocks, int64_t stride, int64_t side, const Change& change) {
    for (int64_t n = 0; n < count; ++n) {
      const int64_t begin = blocks[n * stride] * side;
      walk_range(begin, min_index(begin + side, self().keys), change);
    }
  }

 private:
  GY_FN Self& self() { return static_cast<Self&>(*this); }
  template <class Change> void walk_range(int64_t begin, int64_t end, const Change& change) {
    for (int64_t j = begin; j < end; j += Keys) self().step(j, min_index(j + Keys, end), change);
  }
};

// The result of `total`, rows of `stride`; 0 in rows without a score; logarithms of the sums of exponentials, and greatest
// scores, both to base 2 if not natural, in which case rows without a score have 0, as the library leaves them, instead of
// -inf.
template <class O>
static void finish_rows(RowTile tile, const float* total, int64_t stride, int64_t wide, const float* tops,
                        const float* sums, bool natural, Rows<O> out, Rows<float> logs, Rows<float> greatest) {
  const float unit = natural ? 1.0f : log2e, none = natural ? 0.0f : -infinity<float>;
  out.put(tile.row, tile.rows(), wide, total, stride, [&](int64_t r) { return sums[r] == 0.0f ? 0.0f : 1.0f / sums[r]; });
  for (int64_t r = 0; r < tile.rows() && logs.at != nullptr; ++r) {
    const float log_of = scalar(log(broadcast<1>(sums[r])));
    logs.at[(tile.row + r) * logs.si] = sums[r] == 0.0f ? none : (tops[r] + log_of) * unit;
  }
  for (int64_t r = 0; r < tile.rows() && greatest.at != nullptr; ++r)
    greatest.at[(tile.row + r) * greatest.si] = tops[r] * unit;
}

// What is known of a tile's rows while keys are walked: their greatest scores, the sums of their weights, and what sums
// of before the last step are to be multiplied by.
template <int TileRows> struct RowsOfScores {
  static constexpr int L = gemm_lanes;
  using F = Vec<float, L>;
  Scratch<float> tops, sums, factors;
  RowsOfScores() : tops(TileRows), sums(TileRows), factors(TileRows) {}

  void begin() {
    for (int r = 0; r < TileRows; r += L) store(tops.at + r, broadcast<L>(-infinity<float>));
    clear(sums.at, TileRows);
  }
  // Scores of `count` keys, times `by`, become weights: `weigh(r, base)` makes those of a vector of rows, whose exponents
  // are counted from `base`, and returns their sum.
  template <class Weigh> GY_INLINE void update(const float* scores, int64_t count, float by, const Weigh& weigh) {
    F top[TileRows / L];
    GY_UNROLL for (int v = 0; v < TileRows / L; ++v) top[v] = broadcast<L>(-infinity<float>);
    for (int64_t j = 0; j < count; ++j)
      GY_UNROLL for (int v = 0; v < TileRows / L; ++v) top[v] = maximum(top[v], load<L>(scores + j * TileRows + v * L));
    for (int v = 0, r = 0; v < TileRows / L; ++v, r += L) {
      const F old = load<L>(tops.at + r), now = maximum(old, mul(top[v], broadcast<L>(by)));
      const F base = MaxAndSum<float, L>::base(now), factor = exp(sub(old, base));
      store(tops.at + r, now);
      store(factors.at + r, factor);
      store(sums.at + r, add(mul(load<L>(sums.at + r), factor), weigh(r, base)));
    }
  }
};

// Which step's keys and values are in which slot: all for a head where they are few, else those of the last step.
struct Slots {
  static constexpr int64_t kept = int64_t(1) << 20;  // bytes of keys in panels that may stay for all tiles of a head
  const int64_t count;
  Scratch<int64_t> found;
  const void *keys = nullptr, *values = nullptr;
  Slots(int64_t bytes, int64_t steps) : count(bytes <= kept ? max_index(1, steps) : 1), found(count) {}
  void begin(const void* k, const void* v) {
    if (keys != k || values != v)
      for (int64_t s = 0; s < count; ++s) found.at[s] = -1;
    keys = k, values = v;
  }
  // Whether a step's keys and values are there; from now on they are.
  bool has(int64_t step) {
    int64_t& at = found.at[step % count];
    const bool known = at == step;
    at = step;
    return known;
  }
};

// Tiles of TileRows, whole vectors. MK keys by all rows, and MR rows by VV vectors of columns, are what micro-kernels
// sum; Keys, a multiple of panels, are a step.
template <class T, int TileRows, int MK, int MR, int VV, int Keys>
struct Attention : KeyWalk<Attention<T, TileRows, MK, MR, VV, Keys>, Keys> {
  static constexpr int L = gemm_lanes, V = TileRows / L;
  const int64_t keys, width, wide, padded;
  RowsOfScores<TileRows> rows;
  Slots slots;
  Scratch<float> query, key_panels, values, scores, total;
  Lying<T> key{}, value{};
  RowTile tile{};

  Attention(int64_t keys, int64_t width, int64_t wide)
      : keys(keys), width(width), wide(wide), padded(round_up(wide, VV * L)),
        slots(keys * width * 4, (keys + Keys - 1) / Keys), query(width * TileRows + L),
        key_panels(slots.count * Keys * width + L), values(slots.count * Keys * padded + L), scores(Keys * TileRows),
        total(TileRows * padded) {}

  void begin(RowTile at, float scale, Lying<T> q, Lying<T> k, Lying<T> v) {
    rows.begin();
    slots.begin(k.at, v.at);
    tile = at, key = k, value = v;
    pack_rows(query.at, TileRows, q, tile, width, scale);
    clear(total.at, TileRows * padded);
  }
  template <class Change> void step(int64_t j, int64_t j_end, const Change& change) {
    const int64_t slot = packed(j), count = j_end - j;
    multiply_keys<MK, V>(scores.at, key_panels.at + slot * Keys * width, query.at, count, width);
    change(scores.at, tile.row, tile.row_end, j, j_end);
    weigh(count);
    add_to_rows<MR, VV, TileRows>(total.at, scores.at, values.at + slot * Keys * padded, padded, tile.rows(), count);
  }
  template <class O = T> void finish(bool natural, Rows<O> out, Rows<float> logs = {}, Rows<float> greatest = {}) const {
    finish_rows(tile, total.at, padded, wide, rows.tops.at, rows.sums.at, natural, out, logs, greatest);
  }

 private:
  // Keys of the step at `j`, which begins at a multiple of Keys, in panels, and values with whole vectors.
  int64_t packed(int64_t j) {
    const int64_t slot = j / Keys % slots.count, end = min_index(keys, j + Keys);
    if (slots.has(j / Keys)) return slot;
    pack_keys(key_panels.at + slot * Keys * width, key, j, end, width);
    copy_rows(values.at + slot * Keys * padded, padded, value, j, end, wide);
    return slot;
  }
  // Scores become weights, and what is summed so far counts by the new greatest scores.
  __attribute__((noinline)) void weigh(int64_t count) {
    rows.update(scores.at, count, 1, [&](int r, auto base) GY_INLINE {
      auto sum = broadcast<L>(0.0f);
      for (int64_t at = r; at < count * TileRows; at += TileRows) {
        const auto weight = weight_of(sub(load<L>(scores.at + at), base));
        sum = add(sum, weight);
        store(scores.at + at, weight);
      }
      return sum;
    });
    for (int64_t r = 0; r < tile.rows(); ++r)
      if (rows.factors.at[r] != 1.0f) multiply(total.at + r * padded, padded, rows.factors.at[r]);
  }
};

}  // namespace gy

#include "attention_gradient.h"
#include "attention_few.h"
#include "attention_pairs.h"
