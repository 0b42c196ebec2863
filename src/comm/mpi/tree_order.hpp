// SPDX-License-Identifier: Apache-2.0
// The arithmetic of the reductions. MPI's own leaves the order of additions open, and with it the last bits.
#pragma once

#include <cstdint>

#include "comm/reducible.hpp"
#include "llampi/comm/comm.hpp"

namespace llampi::comm {

/// out[i] (+)= the c_r[i] combined in the order of tree_left(), where c_r is row r of `contributions` [ranks, elements].
/// A maximum is NaN if any contribution is. bfloat16 and float16 are widened and combined in float32, the
/// result (with what it is added to) is rounded once if `out` [1, elements] is as narrow. `out` overlaps no
/// contribution, or with one rank may be the contribution. Dtypes as require_reducible() wants them.
void combine_in_tree_order(Tensor contributions, ReduceOp op, Accumulate accumulate, Tensor out);

/// The float32 sums of bfloat16 or float16 contributions [ranks, elements], for memory with room for 16 bits
/// an element: the upper halves of their bits to `upper`, the lower halves to `lower`. Either may be one of
/// the contributions.
void sum_to_halves(Tensor contributions, std::uint16_t* upper, std::uint16_t* lower);
/// out += the float32 numbers with these halves.   out [1, elements], float32, bfloat16 or float16.
void add_halves(const std::uint16_t* upper, const std::uint16_t* lower, Tensor out);

}  // namespace llampi::comm
