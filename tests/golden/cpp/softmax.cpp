// model.py:12 in forward: aten.softmax.default
extern "C" int32_t softmax(const float* __restrict__ x, float* __restrict__ y, int32_t threads) {
  const int64_t steps = 4096;
  const int team = gy::team_size(threads, steps, 1000);
  #pragma omp parallel num_threads(team)
  {
    alignas(64) float row_memory[1024];
    float* const row = row_memory;
    const gy::Range mine = gy::share(steps);
    for (int64_t i = mine.begin; i < mine.end; ++i) {
      gy::Max<float, 16> m_max;
      for (int64_t j = 0; j < 1024; j += 16) {
        constexpr gy::lanes<16> lanes;
        const auto x_0 = gy::load(lanes, x + i * 1024 + j);
        gy::update(lanes, m_max, x_0);
      }
      const auto m = m_max.result();
      gy::Sum<float, 16> d_sum;
      for (int64_t j = 0; j < 1024; j += 16) {
        constexpr gy::lanes<16> lanes;
        const auto x_0 = gy::load(lanes, x + i * 1024 + j);
        const auto e = gy::exp(gy::sub(x_0, gy::broadcast<16>(m)));
        gy::store_whole(lanes, row + j, e);
        gy::update(lanes, d_sum, e);
      }
      const auto d = d_sum.result();
      for (int64_t j = 0; j < 1024; j += 16) {
        constexpr gy::lanes<16> lanes;
        const auto row_0 = gy::load_whole(lanes, row + j);
        gy::store(lanes, y + i * 1024 + j, gy::div(row_0, gy::broadcast<16>(d)));
      }
    }
  }
  return 0;
}
