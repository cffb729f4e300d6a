// model.py:12 in forward: aten.embedding.default
extern "C" int32_t embedding(const float* __restrict__ table, const int64_t* __restrict__ idx,
    float* __restrict__ y, int64_t s0, int32_t threads) {
  int32_t failed = 0;
  int32_t* const status = &failed;
  const int64_t steps = s0;
  const int team = gy::team_size(threads, steps, 1000);
  #pragma omp parallel num_threads(team)
  {
    const gy::Range mine = gy::share(steps);
    for (int64_t i = mine.begin; i < mine.end; ++i) {
      const auto idx_0 = gy::load<1>(idx + i);
      const auto at0 = gy::check_index(idx_0, 50257, status, 1);
      for (int64_t j = 0; j < 768; j += 16) {
        constexpr gy::lanes<16> lanes;
        const auto table_0 = gy::load(lanes, table + gy::scalar(at0) * 768 + j);
        gy::store(lanes, y + i * 768 + j, table_0);
      }
    }
  }
  return failed;
}
