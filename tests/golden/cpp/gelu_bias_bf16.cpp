// model.py:12 in forward: aten.gelu_bias.default
extern "C" int32_t gelu_bias(const gy::bf16* __restrict__ x, const gy::bf16* __restrict__ b,
    gy::bf16* __restrict__ y, int32_t threads) {
  const int64_t steps = 4096;
  const int team = gy::team_size(threads, steps, 1000);
  #pragma omp parallel num_threads(team)
  {
    const gy::Range mine = gy::share(steps);
    for (int64_t i = mine.begin; i < mine.end; ++i) {
      for (int64_t j = 0; j < 3072; j += 16) {
        constexpr gy::lanes<16> lanes;
        const auto x_0 = gy::load(lanes, x + i * 3072 + j);
        const auto b_0 = gy::load(lanes, b + j);
        const auto t0 = gy::add(gy::cast<float>(x_0), gy::cast<float>(b_0));
        const auto t1 = gy::erf(gy::mul(t0, gy::broadcast<16>(0.70710677f)));
        const auto t2 = gy::mul(t0, gy::broadcast<16>(0.5f));
        const auto t3 = gy::cast<gy::bf16>(gy::mul(t2, gy::add(t1, gy::broadcast<16>(1.0f))));
        gy::store(lanes, y + i * 3072 + j, t3);
      }
    }
  }
  return 0;
}
