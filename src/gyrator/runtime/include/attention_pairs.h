// Attention of bfloat16 where the processor multiplies it, by dot products of pairs or on tiles; included by attention.h.
//
// Both products have rows of queries as columns: scores of keys, and sums of columns of values, which lie turned. Their
// right operands, queries and weights, hold pairs of neighbours along k, in panels of rows.
#pragma once

#if defined(GY_AMX) || defined(GY_DOT_BF16)
namespace gy {

#if defined(GY_AMX)
constexpr int pair_unit = tile_depth<bf16>;
template <int TileRows> constexpr int pair_panel = 32;
#else
constexpr int pair_unit = 2;
template <int TileRows> constexpr int pair_panel = TileRows;
#endif
// Lengths of what is summed are multiples of the unit; rows and steps whole panels.
constexpr int left_panel = pair_unit > key_panel ? pair_unit : key_panel;
template <int TileRows, int Keys>
concept in_pairs =
    TileRows % gemm_lanes == 0 && TileRows % pair_panel<TileRows> == 0 && Keys % left_panel == 0;

// Left operands. Tiles read rows, which have a multiple of the unit elements; dot products panels of pairs.
GY_FN int64_t whole_rows(int64_t count) { return round_up(count, left_panel); }
// from(i, k) for i < count and k < depth; 0 up to a multiple of the unit of k. Rows are `step` elements apart.
static void pack_left(bf16* to, int64_t step, Lying<bf16> from, int64_t count, int64_t depth) {
#if defined(GY_AMX)
  if (from.sk == 1) return pack_rows(to, whole_rows(count), step, from, count, depth);
  pack_panel(to, step, Lying<bf16>{from.at, from.sk, from.si}, depth, count);
#else
  for (int64_t i = 0; i < count; i += key_panel)
    pack_groups<key_panel>(to + i * step, from.block(i, 0, 0, 0), min_index(key_panel, count - i), depth,
                           round_up(depth, pair_unit));
#endif
}
// total[i * stride + c] (+)= sum over k of left(i, k) * right(k, c), whose panels of columns are `apart` elements apart.
// `Along`: the left operand is no packed one but rows of so many elements. M of its rows are summed at once.
template <int M, int Panel, int Along = 0>
static void multiply_left(float* total, int64_t stride, const bf16* left, int64_t step, int64_t count, const bf16* right,
                          int64_t apart, int64_t columns, int64_t depth, bool fresh) {
  for (int64_t c = 0; c < columns; c += Panel, right += apart)
#if defined(GY_AMX)
    for (int64_t i = 0; i < count; i += 32) {
      float* const to = total + i * stride + c;
      if (count - i > 16) multiply_tiles<true, false>(to, stride, left + i * step, step, right, depth, fresh);
      else multiply_tiles<false, false>(to, stride, left + i * step, step, right, depth, fresh);
    }
#else
    for (int64_t i = 0; i < count; i += M) {
      constexpr int lead = Along ? 1 : key_panel, rows = Along ? Along / 2 : 1;
      const bf16* const at = left + (Along ? i * step : i / key_panel * key_panel * step + i % key_panel * 2);
      multiply_groups<M, Panel / gemm_lanes, lead, rows>(total + i * stride + c, stride, at, right, depth,
                                                         (const float*)nullptr, fresh);
    }
#endif
}
// Right operands: pairs of neighbours along k in panels of columns; 0 up to `all` of k and for columns that are not there.
template <int Panel>
static void pack_right(bf16* to, Lying<bf16> from, int64_t columns, int64_t count, int64_t depth, int64_t all) {
  for (int64_t c = 0; c < columns; c += Panel, to += Panel * all)
    pack_groups<Panel>(to, from.block(c, 0, 0, 0), max_index(0, min_index(Panel, count - c)), depth, all);
}
GY_FN Lying<bf16> turned(Lying<bf16> x) { return {x.at, x.sk, x.si}; }

// 2^x for x that are 0 or less, to 3e-6 of it, which is far less than bfloat16 tells; 0 where that is no normal number.
GY_FN v16sf quick_exp2(v16sf x) {
  v16sf above;  // how far x is above the integer below
  asm("vreduceps $9, %1, %0" : "=v"(above) : "v"(x));
  const v16sf power =
      part::polynomial(above, 0x1.bb7cd4p-7f, 0x1.aa13fp-5f, 0x1.ee798ap-3f, 0x1.62d166p-1f, 0x1.00002cp+0f);
  return part::scale(power, {x, part::Bits<v16sf>{}}, part::not_below(x, -125.0f));
}
// Exponentials of scores times `by`, less `base`, a product rounded as these are: in one step, but where rounding that
// times log2(e) would count, as in rows of which all scores are a number that hides keys, -1e9 or the lowest one.
struct Exponentials {
  const v16sf by, base, unit, below;
  const bool far;
  GY_FN Exponentials(float by, v16sf base)
      : by(v16sf{} + by), base(base), unit(v16sf{} + by * log2e), below(-base * log2e), far(any_far({{base}})) {}
  GY_FN v16sf operator()(const float* scores) const {
    const v16sf score = load<16>(scores).p[0];
    return quick_exp2(far ? (score * by - base) * log2e : part::fma(score, unit, below));
  }

 private:
  static GY_FN bool any_far(Vec<float, 16> base) {
    return any(logical_and(ge(abs(base), broadcast<16>(1e4f)), isfinite(base)));
  }
};
// Two vectors in bfloat16, one after the other in a register; stored in pairs of what is at one place, or each for itself.
GY_FN v32hi rounded(v16sf low, v16sf high) {
  v32hi both;
  asm("vcvtne2ps2bf16 %2, %1, %0" : "=v"(both) : "v"(high), "v"(low));
  return both;
}
GY_FN void store_pairs(bf16* to, v16sf low, v16sf high) {
  v32hi order;
  _Pragma("GCC unroll 32") for (int i = 0; i < 32; ++i) order[i] = i / 2 + i % 2 * 16;
  const v32hi pairs = __builtin_shuffle(rounded(low, high), order);
  __builtin_memcpy(to, &pairs, 64);
}
GY_FN void store_halves(bf16* first, bf16* second, v16sf low, v16sf high) {
  const v32hi both = rounded(low, high);
  __builtin_memcpy(first, &both, 32);
  __builtin_memcpy(second, reinterpret_cast<const char*>(&both) + 32, 32);
}
#if !defined(GY_AMX)
struct TilesInUse {};
#endif

// Scores as the user changes them, -inf for keys from j_end on up to `all`; returns what they are still to be multiplied
// by.
template <int TileRows, class Change>
static float changed(float* scores, RowTile tile, int64_t j, int64_t j_end, int64_t all, float scale,
                     const Change& change) {
  constexpr int L = gemm_lanes;
  const int64_t end = (j_end - j) * TileRows;
  const bool later = same<const Change, decltype(unchanged)> && scale > 0;
  if (!later) multiply(scores, end, scale);
  change(scores, tile.row, tile.row_end, j, j_end);
  for (int64_t e = end; e < all * TileRows; e += L) store(scores + e, broadcast<L>(-infinity<float>));
  return later ? scale : 1;
}

template <int TileRows, int MK, int MR, int VV, int Keys>
  requires in_pairs<TileRows, Keys>
struct Attention<bf16, TileRows, MK, MR, VV, Keys> : KeyWalk<Attention<bf16, TileRows, MK, MR, VV, Keys>, Keys> {
  static constexpr int L = gemm_lanes, Panel = pair_panel<TileRows>;
  const int64_t keys, width, wide, deep, tall;
  RowsOfScores<TileRows> rows;
  Slots slots;
  Scratch<bf16> query, left_keys, left_values, weights;
  Scratch<float> scores, total, results;
  Lying<bf16> key{}, value{};
  RowTile tile{};
  float scale = 1;
  [[no_unique_address]] TilesInUse in_use;

  Attention(int64_t keys, int64_t width, int64_t wide)
      : keys(keys), width(width), wide(wide), deep(round_up(width, pair_unit)), tall(whole_rows(wide)),
        slots(keys * width * 2, (keys + Keys - 1) / Keys), query(TileRows * deep + 2 * L),
        left_keys(slots.count * Keys * deep + 2 * L), left_values(slots.count * Keys * tall + 2 * L),
        weights(TileRows * Keys), scores(Keys * TileRows), total(tall * TileRows), results(TileRows * tall) {}

  void begin(RowTile at, float by, Lying<bf16> q, Lying<bf16> k, Lying<bf16> v) {
    rows.begin();
    slots.begin(k.at, v.at);
    tile = at, key = k, value = v, scale = by;
    pack_right<Panel>(query.at, q.block(tile.row, 0, 0, 0), TileRows, tile.rows(), width, deep);
    clear(total.at, tall * TileRows);
  }
  template <class Change> void step(int64_t j, int64_t j_end, const Change& change) {
    const int64_t slot = packed(j), count = j_end - j, all = round_up(count, pair_unit);
    multiply_left<MK, Panel>(scores.at, TileRows, left_keys.at + slot * Keys * deep, deep, count, query.at, Panel * deep,
                             TileRows, deep, true);
    weigh(all, changed<TileRows>(scores.at, tile, j, j_end, all, scale, change));
    multiply_left<MK, Panel>(total.at, TileRows, left_values.at + slot * Keys * tall, Keys, wide, weights.at, Panel * Keys,
                             TileRows, all, false);
  }
  template <class O> void finish(bool natural, Rows<O> out, Rows<float> logs = {}, Rows<float> greatest = {}) const {
    transpose_block(total.at, TileRows, results.at, tall, wide, tile.rows());
    finish_rows(tile, results.at, tall, wide, rows.tops.at, rows.sums.at, natural, out, logs, greatest);
  }

 private:
  int64_t packed(int64_t j) {
    const int64_t slot = j / Keys % slots.count, count = min_index(Keys, keys - j);
    if (slots.has(j / Keys)) return slot;
    pack_left(left_keys.at + slot * Keys * deep, deep, key.block(j, 0, 0, 0), count, width);
    pack_left(left_values.at + slot * Keys * tall, Keys, turned(value.block(j, 0, 0, 0)), wide, count);
    return slot;
  }
  // Scores become pairs of weights, and what is summed so far counts by the new greatest scores.
  __attribute__((noinline)) void weigh(int64_t count, float by) {
    rows.update(scores.at, count, by, [&](int r, auto base) GY_INLINE {
      const Exponentials weight(by, base.p[0]);
      const float* at = scores.at + r;
      bf16* to = weights.at + r / Panel * Panel * Keys + r % Panel * 2;
      v16sf sum{};
      for (int64_t j = 0; j < count; j += 2, at += 2 * TileRows, to += 2 * Panel) {
        const v16sf low = weight(at), high = weight(at + TileRows);
        sum += low + high;
        store_pairs(to, low, high);
      }
      return Vec<float, L>{{sum}};
    });
    for (int64_t r = 0; r < TileRows; r += L) {
      const auto factor = load<L>(rows.factors.at + r);
      for (int64_t at = r; at < wide * TileRows; at += TileRows) store(total.at + at, mul(load<L>(total.at + at), factor));
    }
  }
};

// As the general one.
template <int TileRows, int MK, int MR, int VV, int MC, int Keys>
  requires in_pairs<TileRows, Keys>
struct AttentionGradient<bf16, TileRows, MK, MR, VV, MC, Keys>
    : KeyWalk<AttentionGradient<bf16, TileRows, MK, MR, VV, MC, Keys>, Keys> {
  static constexpr int L = gemm_lanes, Panel = pair_panel<TileRows>, Columns = 32;
  const int64_t keys, width, wide, deep, deep_wide, tall, padded, padded_wide, all_keys;
  RowsOfGradients<TileRows> rows;
  Scratch<bf16> query, grad;            // pairs along columns, their rows beside each other
  Scratch<bf16> query_rows, grad_rows;  // pairs along rows
  Scratch<bf16> left_keys, left_values, turned_keys;
  Scratch<bf16> weights, slopes, slope_pairs;
  Scratch<float> scores, d_weights, d_key, d_value, d_query, results;
  RowTile tile{};
  float scale = 1;
  [[no_unique_address]] TilesInUse in_use;

  AttentionGradient(int64_t keys, int64_t width, int64_t wide)
      : keys(keys), width(width), wide(wide), deep(round_up(width, pair_unit)), deep_wide(round_up(wide, pair_unit)),
        tall(whole_rows(width)), padded(round_up(width, Columns)), padded_wide(round_up(wide, Columns)),
        all_keys(round_up(keys, Keys)), rows(wide, L), query(TileRows * deep + 2 * L), grad(TileRows * deep_wide + 2 * L),
        query_rows(TileRows * padded + 2 * L), grad_rows(TileRows * padded_wide + 2 * L),
        left_keys(all_keys * deep + 2 * L), left_values(all_keys * deep_wide + 2 * L),
        turned_keys(all_keys * tall + 2 * L), weights(Keys * TileRows), slopes(Keys * TileRows),
        slope_pairs(Keys * TileRows), scores(Keys * TileRows), d_weights(Keys * TileRows), d_key(all_keys * padded),
        d_value(all_keys * padded_wide), d_query(tall * TileRows), results(TileRows * tall) {}

  void begin(RowTile at, float by, Lying<bf16> q, Lying<bf16> k, Lying<bf16> v, Lying<bf16> g, Lying<bf16> o,
             Lying<float> logs) {
    tile = at, scale = by;
    for (int64_t j = 0; j < keys && tile.first; j += Keys) {
      const int64_t count = min_index(Keys, keys - j);
      pack_left(left_keys.at + j * deep, deep, k.block(j, 0, 0, 0), count, width);
      pack_left(left_values.at + j * deep_wide, deep_wide, v.block(j, 0, 0, 0), count, wide);
      pack_left(turned_keys.at + j * tall, Keys, turned(k.block(j, 0, 0, 0)), width, count);
    }
    if (tile.first) clear(d_key.at, all_keys * padded), clear(d_value.at, all_keys * padded_wide);
    rows.begin(tile, g, o, logs);
    q = q.block(tile.row, 0, 0, 0), g = g.block(tile.row, 0, 0, 0);
    pack_right<Panel>(query.at, q, TileRows, tile.rows(), width, deep);
    pack_right<Panel>(grad.at, g, TileRows, tile.rows(), wide, deep_wide);
    pack_right<Columns>(query_rows.at, turned(q), padded, width, tile.rows(), TileRows);
    pack_right<Columns>(grad_rows.at, turned(g), padded_wide, wide, tile.rows(), TileRows);
    clear(d_query.at, tall * TileRows);
  }
  template <class Change> void step(int64_t j, int64_t j_end, const Change& change) {
    const int64_t count = j_end - j, all = min_index(Keys, round_up(count, 32));
    multiply_left<MK, Panel>(scores.at, TileRows, left_keys.at + j * deep, deep, count, query.at, Panel * deep, TileRows,
                             deep, true);
    multiply_left<MK, Panel>(d_weights.at, TileRows, left_values.at + j * deep_wide, deep_wide, count, grad.at,
                             Panel * deep_wide, TileRows, deep_wide, true);
    clear(d_weights.at + count * TileRows, (all - count) * TileRows);
    weigh(all, changed<TileRows>(scores.at, tile, j, j_end, all, scale, change));
    multiply_left<8, Columns, TileRows>(d_value.at + j * padded_wide, padded_wide, weights.at, TileRows, count,
                                        grad_rows.at, Columns * TileRows, padded_wide, TileRows, false);
    multiply_left<8, Columns, TileRows>(d_key.at + j * padded, padded, slopes.at, TileRows, count, query_rows.at,
                                        Columns * TileRows, padded, TileRows, false);
    multiply_left<MK, Panel>(d_query.at, TileRows, turned_keys.at + j * tall, Keys, width, slope_pairs.at, Panel * Keys,
                             TileRows, round_up(count, pair_unit), false);
  }
  template <class O> void finish(Rows<O> of_query, Rows<O> of_key, Rows<O> of_value) const {
    transpose_block(d_query.at, TileRows, results.at, tall, width, tile.rows());
    of_query.put(tile.row, tile.rows(), width, results.at, tall, [&](int64_t) { return scale; });
    if (!tile.last) return;
    of_key.put(0, keys, width, d_key.at, padded, [&](int64_t) { return scale; });
    of_value.put(0, keys, wide, d_value.at, padded_wide, [](int64_t) { return 1.0f; });
  }

 private:
  // Scores become weights, and their gradients those of scores, as rows of keys and as pairs.
  __attribute__((noinline)) void weigh(int64_t count, float by) {
    for (int r = 0; r < TileRows; r += L) {
      const Exponentials weight(by, load<L>(rows.sums.at + r).p[0]);
      const v16sf delta = load<L>(rows.deltas.at + r).p[0];
      bf16* to = slope_pairs.at + r / Panel * Panel * Keys + r % Panel * 2;
      for (int64_t at = r; at < count * TileRows; at += 2 * TileRows, to += 2 * Panel) {
        const v16sf low = weight(scores.at + at), high = weight(scores.at + at + TileRows);
        const v16sf slope = low * (load<L>(d_weights.at + at).p[0] - delta);
        const v16sf next = high * (load<L>(d_weights.at + at + TileRows).p[0] - delta);
        store_halves(weights.at + at, weights.at + at + TileRows, low, high);
        store_halves(slopes.at + at, slopes.at + at + TileRows, slope, next);
        store_pairs(to, slope, next);
      }
    }
  }
};

}  // namespace gy
#endif
