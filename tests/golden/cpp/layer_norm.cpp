// model.py:12 in forward: aten.layer_norm.default
extern "C" int32_t layer_norm(const float* __restrict__ x, const float* __restrict__ w,
    const float* __restrict__ b, float* __restrict__ y, int32_t threads) {
  const int64_t steps = 4096;
  const int team = gy::team_size(threads, steps, 1000);
  const auto t0 = gy::cast<float>(gy::broadcast<1>(int64_t(768)));
  #pragma omp parallel num_threads(team)
  {
    const gy::Range mine = gy::share(steps);
    for (int64_t i = mine.begin; i < mine.end; ++i) {
      gy::Welford<float, 16> moments;
      for (int64_t j = 0; j < 768; j += 16) {
        constexpr gy::lanes<16> lanes;
        const auto x_0 = gy::load(lanes, x + i * 768 + j);
        gy::update(lanes, moments, x_0);
      }
      const auto moments_2 = moments.result();
      const auto rstd = gy::rsqrt(gy::add(gy::div(moments_2.m2, t0), gy::broadcast<1>(1e-05f)));
      for (int64_t j = 0; j < 768; j += 16) {
        constexpr gy::lanes<16> lanes;
        const auto x_0 = gy::load(lanes, x + i * 768 + j);
        const auto t1 = gy::sub(x_0, gy::broadcast<16>(moments_2.mean));
        const auto w_0 = gy::load(lanes, w + j);
        const auto b_0 = gy::load(lanes, b + j);
        gy::store(lanes, y + i * 768 + j, gy::add(gy::mul(gy::mul(t1, gy::broadcast<16>(rstd)), w_0), b_0));
      }
    }
  }
  return 0;
}
