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
inline float wide(uint16_t bits) { return __builtin_bit_cast(float, uint32_t(bits) << 16); }
template <int C, int A, int B> GY_FN void tile_multiply() {
  for (int m = 0; m < 16; ++m)
    for (int k = 0; k < 16; ++k)
      for (int n = 0; n < 16; ++n) {
        float& sum = ((float*)model[C].row[m])[n];
        const uint16_t* a = (const uint16_t*)model[A].row[m] + 2 * k;
        const uint16_t* b = (const uint16_t*)model[B].row[k] + 2 * n;
        sum += wide(a[0]) * wide(b[0]);
        sum += wide(a[1]) * wide(b[1]);
      }
}
inline void tile_begin() { configured = true; }
inline void tile_end() { configured = false; }
}  // namespace gy
