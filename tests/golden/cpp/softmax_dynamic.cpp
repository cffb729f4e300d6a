// model.py:12 in forward: aten.softmax.default
extern "C" int32_t softmax(const float* __restrict__ x, float* __restrict__ y, int64_t s0, int64_t s1,
    int32_t threads) {
  const int64_t steps = s0;
  const int team = gy::team_size(threads, steps, 1000);
  #pragma omp parallel num_threads(team)
  {
    const gy::Scratch<float> row_memory(s1);
    float* const row = row_memory.at;
    const gy::Range mine = gy::share(steps);
    for (int64_t i = mine.begin; i < mine.end; ++i) {
      gy::Max<float, 16> m_max;
      gy::for_lanes<16>(0, s1, [=, &m_max](auto lanes, int64_t j) GY_INLINE {
        const auto x_0 = gy::load(lanes, x + i * s1 + j);
        gy::update(lanes, m_max, x_0);
      });
      const auto m = m_max.result();
      gy::Sum<float, 16> d_sum;
      gy::for_lanes<16>(0, s1, [=, &d_sum](auto lanes, int64_t j) GY_INLINE {
        const auto x_0 = gy::load(lanes, x + i * s1 + j);
        const auto e = gy::exp(gy::sub(x_0, gy::broadcast<16>(m)));
        gy::store_whole(lanes, row + j, e);
        gy::update(lanes, d_sum, e);
      });
      const auto d = d_sum.result();
      gy::for_lanes<16>(0, s1, [=](auto lanes, int64_t j) GY_INLINE {
        const auto row_0 = gy::load_whole(lanes, row + j);
        gy::store(lanes, y + i * s1 + j, gy::div(row_0, gy::broadcast<16>(d)));
      });
    }
  }
  return 0;
}
