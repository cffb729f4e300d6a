// AMX tiles in plain C++, for processors that have none: what amx.h asks of them.
#pragma once
#include "kernel.h"
#define GY_TILE_OPERATIONS 1

namespace gy {
struct ModelTile { uint8_t row[16][64]; };
inline thread_local ModelTile model[8];
inline thread_local bool configured = false;

template <int I> GY_FN void tile_zero() { model[I] = ModelTile{}; }
template <int I> GY_FN void tile_load(const void* from, int64_t bytes) {
  if (!configured) __builtin_trap();
  for (int r = 0; r < 16; ++r) __builtin_memcpy(model[I].row[r], (const uint8_t*)from + r * bytes, 64);
}
template <int I> GY_FN void tile_store(void* to, int64_t bytes) {
  for (int r = 0; r < 16; ++r) __builtin_memcpy((uint8_t*)to + r * bytes, model[I].row[r], 64);
}
template <class T, class Sum, int C, int A, int B> inline void multiply_model(Sum (*number)(T)) {
  constexpr int G = 4 / sizeof(T);
  for (int m = 0; m < 16; ++m)
    for (int k = 0; k < 16; ++k)
      for (int n = 0; n < 16; ++n)
        for (int g = 0; g < G; ++g)
          ((Sum*)model[C].row[m])[n] +=
              number(((const T*)model[A].row[m])[G * k + g]) * number(((const T*)model[B].row[k])[G * n + g]);
}
template <class T, int C, int A, int B> GY_FN void tile_multiply() {
  if constexpr (same<T, bf16>)
    multiply_model<T, float, C, A, B>([](bf16 x) { return __builtin_bit_cast(float, uint32_t(x.bits) << 16); });
  else multiply_model<T, int32_t, C, A, B>([](int8_t x) { return int32_t(x); });
}
inline void tile_begin() { configured = true; }
inline void tile_end() { configured = false; }
}  // namespace gy
