// model.py:12 in forward: aten.transpose_add.default
extern "C" int32_t transpose_add(const float* __restrict__ x, const float* __restrict__ z,
    float* __restrict__ y, int32_t threads) {
  const int64_t steps = 16384;
  const int team = gy::team_size(threads, steps, 8000);
  #pragma omp parallel num_threads(team)
  {
    alignas(64) float t_memory[4096];
    float* const t = t_memory;
    const gy::Range mine = gy::share(steps);
    int64_t ib = mine.begin / 128;
    int64_t jb = mine.begin % 128;
    for (int64_t step = mine.begin; step < mine.end; ++step) {
      gy::transpose_block(x + jb * 524288 + ib * 64, 8192, t, 64, 64, 64);
      for (int64_t i = 0; i < 64; ++i) {
        for (int64_t j = 0; j < 64; j += 16) {
          constexpr gy::lanes<16> lanes;
          const auto t_0 = gy::load(lanes, t + i * 64 + j);
          const auto z_0 = gy::load(lanes, z + ib * 524288 + i * 8192 + jb * 64 + j);
          gy::store(lanes, y + ib * 524288 + i * 8192 + jb * 64 + j, gy::add(t_0, z_0));
        }
      }
      if (++jb == 128) { jb = 0; ++ib; }
    }
  }
  return 0;
}
