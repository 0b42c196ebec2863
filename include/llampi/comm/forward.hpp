// SPDX-License-Identifier: Apache-2.0
// The names of `comm` and its enumerations, for headers that only pass them on.
#pragma once

#include <cstdint>

namespace llampi::comm {

class Channel;
class Group;
class Work;
class World;
struct Compute;
struct Topology;

enum class ReduceOp : std::uint8_t { sum, max };

/// What moves the data: MPI between processes in host memory, NCCL between GPUs (see nccl.hpp).
enum class Backend : std::uint8_t { mpi, nccl };

}  // namespace llampi::comm
