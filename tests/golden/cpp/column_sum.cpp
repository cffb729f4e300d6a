// model.py:12 in forward: aten.column_sum.default
extern "C" int32_t column_sum(const float* __restrict__ x, float* __restrict__ y, int64_t s0,
    int32_t threads) {
  const int64_t steps = s0;
  const int team = gy::team_size(threads, steps, 1000);
  #pragma omp parallel num_threads(team)
  {
    const gy::Range mine = gy::share(steps, 16);
    gy::for_lanes<16>(mine.begin, mine.end, [=](auto lanes, int64_t j) GY_INLINE {
      gy::VSum<float, 16> total_sum;
      for (int64_t r = 0; r < 4096; ++r) {
        const auto x_0 = gy::load(lanes, x + r * s0 + j);
        total_sum.update(x_0);
      }
      const auto total = total_sum.result();
      gy::store(lanes, y + j, total);
    });
  }
  return 0;
}
