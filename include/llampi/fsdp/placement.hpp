// SPDX-License-Identifier: Apache-2.0
// Where the buffers of a program lie: live ranges read off the operands, placed in one arena per kind of
// memory. The arenas are allocated once; nothing is allocated inside a step. Nothing here knows an operation.
#pragma once

#include <cstdint>

#include "llampi/fsdp/program.hpp"

namespace llampi::fsdp {

/// Sets Buffer::live of all buffers that are not persistent.
///
/// An action that only writes to a buffer begins another live range of it: what the buffer held is dead. A
/// part that nothing has touched since the range began belongs to the same range. A range lasts to the last
/// action that touches the buffer or, where that action is on another stream than compute, until no action
/// that takes memory could still meet it: a collective until the compute stream has waited for it.
/// @throws Error if an action reads what none has written
void find_live_ranges(Program& program);

/// Finds live ranges, then sets Buffer::offset and Program::arena_bytes.
///
/// Persistent buffers come first, at the same offsets in all programs with equal ones, so that a training step and an
/// evaluation can share one arena, as large as the larger of the two. The others are placed one after
/// another, each at the lowest offset that is free during all of its live ranges: the largest first, or those
/// with the largest product of bytes and length of life, whichever takes less.
void place(Program& program);

/// Bytes that a buffer takes of its arena: a multiple of 256.
std::int64_t in_arena(std::int64_t bytes);

}  // namespace llampi::fsdp
