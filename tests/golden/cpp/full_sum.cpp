// model.py:12 in forward: aten.full_sum.default
extern "C" int32_t full_sum(const float* __restrict__ x, float* __restrict__ y, int64_t s0, int32_t threads) {
  const int64_t k0 = (s0 + 1023) / 1024;
  const int64_t steps = k0;
  const int team = gy::team_size(threads, steps, 2048);
  gy::PerThread<gy::Sum<float, 16>> total_sum_parts(team);
  if (steps > 0)
  #pragma omp parallel num_threads(team)
  {
    const gy::Range mine = gy::share(steps);
    gy::Sum<float, 16> total_sum;
    for (int64_t jb = mine.begin; jb < mine.end; ++jb) {
      const int64_t k1 = gy::min_index(1024, s0 - jb * 1024);
      gy::for_lanes<16>(0, k1, [=, &total_sum](auto lanes, int64_t jt) GY_INLINE {
        const auto x_0 = gy::load(lanes, x + jb * 1024 + jt);
        gy::update(lanes, total_sum, x_0);
      });
    }
    total_sum_parts.mine() = total_sum;
  }
  const auto total = total_sum_parts.merged().result();
  gy::store(y, total);
  return 0;
}
