// The gradient of attention, of queries, keys and values at once; included by attention.h.
//
//   gy::AttentionGradient<float, 48, 8, 6, 4, 4, 128> attention(keys, width, value_width);      // one per thread
//   attention.begin(tile, scale, query, key, value, grad, result, logarithms of sums);
//   attention.walk_causal(kept, gy::unchanged);                                                  // or walk
//   attention.finish(d_query, d_key, d_value);
//
// With the weights P and what the result's gradient makes of them, dP, of each row of scores S:
//   dV = Pᵀ dO,   dP = dO Vᵀ,   dS = P (dP - Σ dO O),   dQ = dS K,   dK = dSᵀ Q
// P and dS lie as scores do, with the rows of a tile beside each other. The tiles with the same keys follow each other.
#pragma once

namespace gy {

// Of a tile's rows: logarithms of sums, and what the result's gradient, row by row up to a multiple of a unit, makes of the
// result. Rows that are not there have no weights.
template <int TileRows> struct RowsOfGradients {
  static constexpr int L = gemm_lanes;
  const int64_t wide, padded;
  Scratch<float> sums, deltas, grad, result;
  RowsOfGradients(int64_t wide, int64_t unit)
      : wide(wide), padded(round_up(wide, unit)), sums(TileRows), deltas(TileRows), grad(TileRows * padded + L),
        result(TileRows * padded + L) {}
  template <class T> void begin(RowTile tile, Lying<T> g, Lying<T> o, Lying<float> logs) {
    copy_rows(grad.at, padded, g, tile.row, tile.row_end, wide);
    copy_rows(result.at, padded, o, tile.row, tile.row_end, wide);
    for (int64_t r = 0; r < TileRows; ++r) {
      const bool there = r < tile.rows();
      sums.at[r] = there ? logs.at[(tile.row + r) * logs.si] : infinity<float>;
      Sum<float, L> delta;
      for (int64_t c = r * padded; c < (r + 1) * padded && there; c += L)
        delta.update(mul(load<L>(grad.at + c), load<L>(result.at + c)));
      deltas.at[r] = scalar(delta.result());
    }
  }
};

// As gy::Attention; MC keys by VV vectors of columns are summed at once too.
template <class T, int TileRows, int MK, int MR, int VV, int MC, int Keys>
struct AttentionGradient : KeyWalk<AttentionGradient<T, TileRows, MK, MR, VV, MC, Keys>, Keys> {
  static constexpr int L = gemm_lanes, V = TileRows / L;
  using F = Vec<float, L>;
  const int64_t keys, width, wide, padded, padded_wide, all_keys;
  Scratch<float> query, grad;  // of a tile, its rows beside each other
  Scratch<float> query_rows;   // the same row by row
  Scratch<float> key_panels, value_panels, key_rows, d_key, d_value, d_query;
  Scratch<float> weights, slopes;
  RowsOfGradients<TileRows> rows;
  RowTile tile{};
  float scale = 1;

  AttentionGradient(int64_t keys, int64_t width, int64_t wide)
      : keys(keys), width(width), wide(wide), padded(round_up(width, VV * L)), padded_wide(round_up(wide, VV * L)),
        all_keys(round_up(keys, Keys)), query(width * TileRows + L), grad(wide * TileRows + L),
        query_rows(TileRows * padded + L),
        key_panels(all_keys * width + L), value_panels(all_keys * wide + L), key_rows(all_keys * padded + L),
        d_key(all_keys * padded), d_value(all_keys * padded_wide), d_query(TileRows * padded),
        weights(Keys * TileRows), slopes(Keys * TileRows), rows(wide, VV * L) {}

  void begin(RowTile at, float by, Lying<T> q, Lying<T> k, Lying<T> v, Lying<T> g, Lying<T> o, Lying<float> logs) {
    tile = at, scale = by;
    if (tile.first) {
      pack_keys(key_panels.at, k, 0, keys, width);
      pack_keys(value_panels.at, v, 0, keys, wide);
      copy_rows(key_rows.at, padded, k, 0, keys, width);
      clear(d_key.at, all_keys * padded);
      clear(d_value.at, all_keys * padded_wide);
    }
    pack_rows(query.at, TileRows, q, tile, width, scale);
    pack_rows(grad.at, TileRows, g, tile, wide, 1);
    copy_rows(query_rows.at, padded, q, tile.row, tile.row_end, width);
    rows.begin(tile, g, o, logs);
    clear(d_query.at, TileRows * padded);
  }
  template <class Change> void step(int64_t j, int64_t j_end, const Change& change) {
    const int64_t count = j_end - j;
    multiply_keys<MK, V>(weights.at, key_panels.at + j * width, query.at, count, width);
    change(weights.at, tile.row, tile.row_end, j, j_end);
    multiply_keys<MK, V>(slopes.at, value_panels.at + j * wide, grad.at, count, wide);
    weigh(count);
    add_to_keys(d_value.at + j * padded_wide, weights.at, rows.grad.at, padded_wide, count);
    add_to_keys(d_key.at + j * padded, slopes.at, query_rows.at, padded, count);
    add_to_rows<MR, VV, TileRows>(d_query.at, slopes.at, key_rows.at + j * padded, padded, tile.rows(), count);
  }
  template <class O> void finish(Rows<O> of_query, Rows<O> of_key, Rows<O> of_value) const {
    of_query.put(tile.row, tile.rows(), width, d_query.at, padded, [&](int64_t) { return scale; });
    if (!tile.last) return;
    of_key.put(0, keys, width, d_key.at, padded, [&](int64_t) { return scale; });
    of_value.put(0, keys, wide, d_value.at, padded_wide, [](int64_t) { return 1.0f; });
  }

 private:
  // total[key, column] += sum over the tile's rows of from[key * TileRows + row] * right[row * stride + column].
  void add_to_keys(float* total, const float* from, const float* right, int64_t stride, int64_t count) const {
    for (int64_t c = 0; c < stride; c += VV * L)
      for (int64_t p = 0; p < count; p += MC)
        multiply_panels<MC, VV, float, TileRows>(total + p * stride + c, stride, from + p * TileRows, 1, right + c,
                                                 stride, tile.rows(), false);
  }
  // Scores become weights, and their gradients those of scores; both are 0 for further keys that are summed with these.
  __attribute__((noinline)) void weigh(int64_t count) {
    for (int r = 0; r < TileRows; r += L) {
      const F log_of = load<L>(rows.sums.at + r), delta = load<L>(rows.deltas.at + r);
      for (int64_t at = r; at < count * TileRows; at += TileRows) {
        const F weight = weight_of(sub(load<L>(weights.at + at), log_of));
        store(weights.at + at, weight);
        store(slopes.at + at, mul(weight, sub(load<L>(slopes.at + at), delta)));
      }
    }
    const int64_t more = (round_up(count, MC) - count) * TileRows;
    clear(weights.at + count * TileRows, more);
    clear(slopes.at + count * TileRows, more);
  }
};

}  // namespace gy
