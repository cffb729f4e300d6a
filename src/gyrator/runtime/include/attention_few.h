// Attention of fewer rows than a vector has lanes, as in a step of decoding: keys and values are read once, as they lie;
// included by attention.h.
//
// Scores lie as ever, those of a key for all rows side by side, so a vector has several keys, and what is known of a row
// is in each lane that has scores of it.
#pragma once

namespace gy {

template <class T, int TileRows, int MK, int MR, int VV, int Keys>
  requires(TileRows < gemm_lanes)
struct Attention<T, TileRows, MK, MR, VV, Keys> : KeyWalk<Attention<T, TileRows, MK, MR, VV, Keys>, Keys> {
  static constexpr int L = gemm_lanes, M = TileRows < 4 ? TileRows : 4;  // rows that are summed at once
  static constexpr int KeysAtOnce = 4, Ahead = 8;  // keys that are summed at once; keys between what is asked for and read
  using F = Vec<float, L>;
  const int64_t keys, width, wide, deep, padded;
  Scratch<float> query, copied, scores, total, tops, sums;
  Lying<T> key{}, value{};
  RowTile tile{};

  Attention(int64_t keys, int64_t width, int64_t wide)
      : keys(keys), width(width), wide(wide), deep(round_up(width, L)), padded(round_up(wide, L)),
        query(TileRows * deep + L), copied(Keys * max_index(deep, padded) + L), scores((Keys + KeysAtOnce) * TileRows + L),
        total(TileRows * padded), tops(L), sums(L) {}

  void begin(RowTile at, float scale, Lying<T> q, Lying<T> k, Lying<T> v) {
    tile = at, key = k, value = v;
    clear(query.at, TileRows * deep);
    copy_rows(query.at, deep, q, tile.row, tile.row_end, width);
    multiply(query.at, TileRows * deep, scale);
    store(tops.at, broadcast<L>(-infinity<float>));
    clear(sums.at, L);
    clear(total.at, TileRows * padded);
  }
  template <class Change> void step(int64_t j, int64_t j_end, const Change& change) {
    const int64_t count = j_end - j;
    if (key.sk == 1) score(key.at + j * key.si, key.si, count);
    else copy_rows(copied.at, deep, key, j, j_end, width), score(copied.at, deep, count);
    change(scores.at, tile.row, tile.row_end, j, j_end);
    weigh(count);
    if (value.sk == 1) add_values(value.at + j * value.si, value.si, count);
    else copy_rows(copied.at, padded, value, j, j_end, wide), add_values(copied.at, padded, count);
  }
  template <class O = T> void finish(bool natural, Rows<O> out, Rows<float> logs = {}, Rows<float> greatest = {}) {
    for (int l = TileRows; l < L; ++l) sums.at[l % TileRows] += sums.at[l];
    finish_rows(tile, total.at, padded, wide, tops.at, sums.at, natural, out, logs, greatest);
  }

 private:
  template <class E> GY_FN static F part_of(const E* at, int64_t left) {
    return cast<float>(left >= L ? load<L>(at) : load<L>(at, first_lanes<L>(left), E{}));
  }
  template <class E> __attribute__((noinline)) void score(const E* at, int64_t si, int64_t count) {
    for (int64_t j = 0; j < count; j += KeysAtOnce)
      for (int64_t r = 0; r < TileRows; r += M) {
        F sum[KeysAtOnce][M];
        GY_UNROLL for (int i = 0; i < KeysAtOnce; ++i)
          GY_UNROLL for (int m = 0; m < M; ++m) sum[i][m] = broadcast<L>(0.0f);
        for (int64_t c = 0; c < deep; c += L)
          GY_UNROLL for (int i = 0; i < KeysAtOnce; ++i) {
            const E* const from = at + min_index(j + i, count - 1) * si + c;
            __builtin_prefetch(from + Ahead * si);
            const F part = part_of(from, width - c);
            GY_UNROLL for (int m = 0; m < M; ++m)
              sum[i][m] = multiply_add(part, load<L>(query.at + (r + m) * deep + c), sum[i][m]);
          }
        GY_UNROLL for (int i = 0; i < KeysAtOnce; ++i)
          GY_UNROLL for (int m = 0; m < M; ++m)
            scores.at[(j + i) * TileRows + r + m] = scalar(fold(sum[i][m], [](auto a, auto b) { return add(a, b); }));
      }
  }
  // Scores become weights, and what is summed so far counts by the new greatest scores.
  __attribute__((noinline)) void weigh(int64_t count) {
    const int64_t end = count * TileRows;
    store(scores.at + end, broadcast<L>(-infinity<float>));
    const F old = load<L>(tops.at);
    F top = old;
    for (int64_t e = 0; e < end; e += L) top = maximum(top, load<L>(scores.at + e));
    store(tops.at, top);
    for (int l = TileRows; l < L; ++l) {
      float* const first = tops.at + l % TileRows;
      *first = scalar(maximum(load<1>(first), load<1>(tops.at + l)));
    }
    for (int l = TileRows; l < L; ++l) tops.at[l] = tops.at[l % TileRows];
    const F base = MaxAndSum<float, L>::base(load<L>(tops.at)), factor = exp(sub(old, base));
    F sum = mul(load<L>(sums.at), factor);
    for (int64_t e = 0; e < end; e += L) {
      const F weight = weight_of(sub(load<L>(scores.at + e), base));
      sum = add(sum, weight);
      store(scores.at + e, weight);
    }
    store(sums.at, sum);
    alignas(64) float factors[L];
    store(factors, factor);
    for (int64_t r = 0; r < TileRows; ++r)
      if (factors[r] != 1.0f) multiply(total.at + r * padded, padded, factors[r]);
  }
  template <class E> __attribute__((noinline)) void add_values(const E* at, int64_t si, int64_t count) {
    constexpr int C = M < 4 ? 8 : 4;  // vectors of columns that are summed at once
    for (int64_t r = 0; r < TileRows; r += M)
      for (int64_t c = 0; c < padded;) {
        if (c + C * L <= wide) add_columns<C>(at, si, count, r, c), c += C * L;
        else add_columns<1>(at, si, count, r, c), c += L;
      }
  }
  template <int C, class E> GY_INLINE void add_columns(const E* at, int64_t si, int64_t count, int64_t r, int64_t c) {
    float* const to = total.at + r * padded + c;
    F sum[M][C];
    GY_UNROLL for (int m = 0; m < M; ++m)
      GY_UNROLL for (int i = 0; i < C; ++i) sum[m][i] = load<L>(to + m * padded + i * L);
    for (int64_t j = 0; j < count; ++j) {
      const E* const from = at + j * si + c;
      GY_UNROLL for (int i = 0; i < C; ++i) {
        __builtin_prefetch(from + Ahead * si + i * L);
        const F part = part_of(from + i * L, wide - c - i * L);
        GY_UNROLL for (int m = 0; m < M; ++m)
          sum[m][i] = multiply_add(broadcast<L>(scores.at[j * TileRows + r + m]), part, sum[m][i]);
      }
    }
    GY_UNROLL for (int m = 0; m < M; ++m)
      GY_UNROLL for (int i = 0; i < C; ++i) store(to + m * padded + i * L, sum[m][i]);
  }
};

}  // namespace gy
