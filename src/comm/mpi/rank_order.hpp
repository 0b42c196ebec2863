// The arithmetic of the reductions. MPI's own leaves the order of additions open, and with it the last bits.
#pragma once

#include <cstdint>

#include "llampi/comm/comm.hpp"

namespace llampi {

/// out[i] (+)= ((c0[i] op c1[i]) op c2[i]) op ..., where contribution r begins `stride` elements behind
/// contribution r - 1. A maximum is NaN if any contribution is. `out` overlaps no contribution, or with one
/// rank may be the contribution. float32, float64, int64, int32.
void combine_in_rank_order(const void* contributions, std::int64_t stride, int ranks, std::int64_t elements,
                           DType dtype, ReduceOp op, Accumulate accumulate, void* out);

/// @throws Error for dtypes that cannot be reduced
void require_reducible(DType dtype);

}  // namespace llampi
