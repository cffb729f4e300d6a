// The library that generated C++ kernels include: vectors, masks, conversions, math, reducers, random
// numbers, tiles. It needs no header but stdint.h, so that a kernel compiles in a fraction of a second.
#pragma once
#include "vec.h"
#include "convert.h"
#include "mask.h"
#include "arith.h"
#include "elementary.h"
#include "trig.h"
#include "special.h"
#include "gamma.h"
#include "reduce.h"
#include "random.h"
#include "tile.h"
