// Work of one rank that all ranks wait for. Private to the library.
#pragma once

#include "llampi/comm/comm.hpp"

namespace llampi::comm {

/// Rank 0 does the work. Collective. @throws on every rank alike what it throws, as agree() does
template <class Work>
void on_rank_0(World& world, const Work& work) {
  agree(world, [&] {
    if (world.rank() == 0) work();
  });
}

}  // namespace llampi::comm
