// model.py:12 in forward: aten.argmax.default
extern "C" int32_t argmax(const float* __restrict__ x, int64_t* __restrict__ y, int32_t threads) {
  const int64_t steps = 512;
  const int team = gy::team_size(threads, steps, 1000);
  #pragma omp parallel num_threads(team)
  {
    const gy::Range mine = gy::share(steps);
    for (int64_t i = mine.begin; i < mine.end; ++i) {
      gy::ArgMax<float, 16> best;
      gy::for_lanes<16>(0, 1000, [=, &best](auto lanes, int64_t j) GY_INLINE {
        const auto x_0 = gy::load(lanes, x + i * 1000 + j);
        gy::update(lanes, best, x_0, gy::iota<16>(j, 1));
      });
      const auto best_2 = best.result();
      gy::store(y + i, best_2.index);
    }
  }
  return 0;
}
