// model.py:12 in forward: aten.full_sum.default
extern "C" int32_t full_sum(const float* __restrict__ x, float* __restrict__ y, int64_t s0, int32_t threads) {
  const int64_t steps = s0;
  const int team = gy::team_size(threads, steps, 2);
  gy::PerThread<gy::Sum<float, 16>> total_sum_parts(team);
  #pragma omp parallel num_threads(team)
  {
    const gy::Range mine = gy::share(steps, 16);
    gy::Sum<float, 16> total_sum;
    gy::for_lanes<16>(mine.begin, mine.end, [=, &total_sum](auto lanes, int64_t j) GY_INLINE {
      const auto x_0 = gy::load(lanes, x + j);
      gy::update(lanes, total_sum, x_0);
    });
    total_sum_parts.mine() = total_sum;
  }
  const auto total = total_sum_parts.merged().result();
  gy::store(y, total);
  return 0;
}
