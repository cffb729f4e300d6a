// The gradient of attention, of queries, keys and values at once; included by attention.h.
//
//   gy::AttentionGradient<float, 48, 8, 6, 4, 4, 128> attention(keys, width, value_width);      // one per thread
//   if (tiles.first_of_keys(step)) attention.keys_of(gy::Lying<float>{key, …}, gy::Lying<float>{value, …});
//   attention.begin(tile, gy::Lying<float>{query, …}, {grad, …}, {out, …}, logarithms, step, scale);
//   attention.walk_causal(kept, gy::unchanged);          // or walk
//   attention.finish_rows(d_query, oi, oe);
//   if (tiles.last_of_keys(step)) attention.finish_keys(d_key, oj, oe, d_value, oj, oe);
//
// With the weights P and what the result's gradient makes of them, dP, of each row of scores S:
//   dV = Pᵀ dO,   dP = dO Vᵀ,   dS = P (dP - Σ dO O),   dQ = dS K,   dK = dSᵀ Q
// P and dS lie as scores do, with the rows of a tile beside each other.
#pragma once

namespace gy {

// As gy::Attention; MC keys by VV vectors of columns are summed at once too.
template <class T, int Rows, int MK, int MR, int VV, int MC, int Keys> struct AttentionGradient {
  static constexpr int L = gemm_lanes, V = Rows / L;
  using F = Vec<float, L>;
  const int64_t keys, width, wide, padded, padded_wide, all_keys;
  Scratch<float> query, grad;                    // of a tile, its rows beside each other
  Scratch<float> query_rows, grad_rows, result;  // the same row by row, and the result
  Scratch<float> key_panels, value_panels, key_rows, d_key, d_value, d_query;
  Scratch<float> weights, slopes, sums, deltas;
  RowTile tile{};
  float scale = 1;

  AttentionGradient(int64_t keys, int64_t width, int64_t wide)
      : keys(keys), width(width), wide(wide), padded(round_up(width, VV * L)), padded_wide(round_up(wide, VV * L)),
        all_keys(round_up(keys, Keys)), query(width * Rows + L), grad(wide * Rows + L), query_rows(Rows * padded + L),
        grad_rows(Rows * padded_wide + L), result(Rows * padded_wide + L), key_panels(all_keys * width + L),
        value_panels(all_keys * wide + L), key_rows(all_keys * padded + L), d_key(all_keys * padded),
        d_value(all_keys * padded_wide), d_query(Rows * padded), weights(Keys * Rows), slopes(Keys * Rows), sums(Rows),
        deltas(Rows) {}

  // The keys and values of a head, by rows both.
  void keys_of(Lying<T> k, Lying<T> v) {
    pack_keys(key_panels.at, k, 0, keys, width);
    pack_keys(value_panels.at, v, 0, keys, wide);
    pack_panel(key_rows.at, padded, Lying<T>{k.at, k.sk, k.si}, width, keys);
    clear(d_key.at, all_keys * padded);
    clear(d_value.at, all_keys * padded_wide);
  }
  // A tile's rows of the query, of the result and of its gradient; `logs` are the logarithms of sums.
  void begin(RowTile at, Lying<T> q, Lying<T> g, Lying<T> o, const float* logs, int64_t step, float by) {
    tile = at, scale = by;
    const int64_t rows = tile.row_end - tile.row;
    const auto of_tile = [&](Lying<T> m, int64_t n) { return m.block(tile.row, rows, 0, n); };
    const auto across = [&](Lying<T> m) { return Lying<T>{m.at + tile.row * m.si, m.sk, m.si}; };
    pack_panel(query.at, Rows, of_tile(q, width), rows, width);
    pack_panel(grad.at, Rows, of_tile(g, wide), rows, wide);
    pack_panel(query_rows.at, padded, across(q), width, rows);
    pack_panel(grad_rows.at, padded_wide, across(g), wide, rows);
    pack_panel(result.at, padded_wide, across(o), wide, rows);
    multiply_by(query.at, width * Rows, scale);
    clear(d_query.at, Rows * padded);
    for (int64_t r = 0; r < Rows; ++r) {  // rows that are not there have no weights
      sums.at[r] = r < rows ? logs[(tile.row + r) * step] : infinity<float>;
      Sum<float, L> delta;
      for (int64_t c = 0; c < padded_wide && r < rows; c += L)
        delta.update(mul(load<L>(grad_rows.at + r * padded_wide + c), load<L>(result.at + r * padded_wide + c)));
      deltas.at[r] = scalar(delta.result());
    }
  }
  template <class Change> void walk(int64_t end, const Change& change) {
    for (int64_t j = 0; j < end; j += Keys) step(j, min_index(j + Keys, end), change);
  }
  template <class Some, class All> void walk_causal(const Some& some, const All& all) {
    const auto take = [this](int64_t j, int64_t j_end, const auto& change) { step(j, j_end, change); };
    walk_below(tile, keys, Keys, take, some, all);
  }
  template <class O> void finish_rows(O* to, int64_t oi, int64_t oe) const {
    put(to + tile.row * oi, oi, oe, d_query.at, tile.row_end - tile.row, width, padded, scale);
  }
  template <class O>
  void finish_keys(O* to_key, int64_t kj, int64_t ke, O* to_value, int64_t vj, int64_t ve) const {
    if (to_key != nullptr) put(to_key, kj, ke, d_key.at, keys, width, padded, scale);
    if (to_value != nullptr) put(to_value, vj, ve, d_value.at, keys, wide, padded_wide, 1.0f);
  }

 private:
  static void clear(float* at, int64_t count) {
    for (int64_t i = 0; i < count; i += L) store(at + i, broadcast<L>(0.0f));
  }
  static void multiply_by(float* at, int64_t count, float factor) {
    for (int64_t i = 0; i < count; i += L) store(at + i, mul(load<L>(at + i), broadcast<L>(factor)));
  }
  template <class O>
  static void put(O* to, int64_t step, int64_t oe, const float* from, int64_t count, int64_t columns, int64_t stride,
                  float factor) {
    for (int64_t i = 0; i < count; ++i)
      for_lanes<L>(0, columns, [&](auto lanes, int64_t c) GY_INLINE {
        const auto v = cast<O>(mul(load<L>(from + i * stride + c), broadcast<L>(factor)));
        if (oe == 1) store(lanes, to + i * step + c, v);
        else store_strided(lanes, to + i * step + c * oe, oe, v);
      });
  }
  // to[key, column] += sum over rows of from[key * Rows + row] * right[row, column].
  static void add_to_keys(float* to, const float* from, const float* right, int64_t stride, int64_t count,
                          int64_t rows) {
    for (int64_t c = 0; c < stride; c += VV * L)
      for (int64_t p = 0; p < count; p += MC)
        multiply_panels<MC, VV, float, Rows>(to + p * stride + c, stride, from + p * Rows, 1, right + c, stride, rows,
                                             false);
  }
  template <class Change> void step(int64_t j, int64_t j_end, const Change& change) {
    const int64_t count = j_end - j, rows = tile.row_end - tile.row;
    multiply_keys<MK, V>(weights.at, key_panels.at + j * width, query.at, count, width);
    change(weights.at, tile.row, tile.row_end, j, j_end);
    multiply_keys<MK, V>(slopes.at, value_panels.at + j * wide, grad.at, count, wide);
    weigh(count);
    add_to_keys(d_value.at + j * padded_wide, weights.at, grad_rows.at, padded_wide, count, rows);
    add_to_keys(d_key.at + j * padded, slopes.at, query_rows.at, padded, count, rows);
    for (int64_t c = 0; c < padded; c += VV * L)
      for (int64_t r = 0; r < rows; r += MR)
        multiply_panels<MR, VV, float>(d_query.at + r * padded + c, padded, slopes.at + r, Rows,
                                       key_rows.at + j * padded + c, padded, count, false);
  }
  // Scores become weights, and their gradients those of scores; both are 0 for further keys that are summed with these.
  __attribute__((noinline)) void weigh(int64_t count) {
    for (int r = 0; r < Rows; r += L) {
      const F log = load<L>(sums.at + r), delta = load<L>(deltas.at + r);
      for (int64_t at = r; at < count * Rows; at += Rows) {
        const F weight = exp(sub(load<L>(weights.at + at), log));
        store(weights.at + at, weight);
        store(slopes.at + at, mul(weight, sub(load<L>(slopes.at + at), delta)));
      }
    }
    const int64_t more = (round_up(count, MC) - count) * Rows;
    clear(weights.at + count * Rows, more);
    clear(slopes.at + count * Rows, more);
  }
};

}  // namespace gy
