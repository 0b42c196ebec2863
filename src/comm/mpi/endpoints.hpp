// SPDX-License-Identifier: Apache-2.0
// A group as its messages need it.
#pragma once

#include <cstdint>
#include <memory>

#include "comm/levels.hpp"
#include "comm/mpi/handles.hpp"

namespace llampi::comm {

/// What an exchange needs to know of its group. A copy: a collective may outlive the group.
struct Endpoints {
  MPI_Comm communicator = MPI_COMM_NULL;
  int rank = 0;
  int ranks = 1;
  std::int64_t max_count = kMaxCount;
  std::shared_ptr<const Levels> levels;  ///< null: each rank exchanges with every other
};

}  // namespace llampi::comm
