// model.py:12 in forward: aten.column_sum.default
extern "C" int32_t column_sum(const float* __restrict__ x, float* __restrict__ y, int64_t s0,
    int32_t threads) {
  const int64_t k0 = (s0 + 1023) / 1024;
  const int64_t steps = k0;
  const int team = gy::team_size(threads, steps, 1000);
  if (steps > 0)
  #pragma omp parallel num_threads(team)
  {
    const gy::Range mine = gy::share(steps);
    for (int64_t jb = mine.begin; jb < mine.end; ++jb) {
      const int64_t k1 = gy::min_index(1024, s0 - jb * 1024);
      gy::for_lanes<16>(0, k1, [=](auto lanes, int64_t jt) GY_INLINE {
        gy::VSum<float, 16> total_sum;
        for (int64_t r = 0; r < 4096; ++r) {
          const auto x_0 = gy::load(lanes, x + r * s0 + jb * 1024 + jt);
          total_sum.update(x_0);
        }
        const auto total = total_sum.result();
        gy::store(lanes, y + jb * 1024 + jt, total);
      });
    }
  }
  return 0;
}
