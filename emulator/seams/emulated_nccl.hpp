// SPDX-License-Identifier: Apache-2.0
// NCCL for the emulated GPU: collectives over MPI, done when the emulated stream comes to them. Linked
// instead of libnccl; here is what tests can make it do.
//
// Every call takes effect only after some polls of ncclCommGetAsyncError, as in NCCL, whose own thread puts
// the kernel into the stream, and the first collective of a communicator only when all ranks have come to it.
// Sums go round a ring in the numbers' own dtype. What NCCL leaves undefined
// (overlapping buffers, memory that is no GPU's, a call while another is in progress) is an error.
#pragma once

#include <nccl.h>

#include <string>

namespace llampi::emulated_nccl {

struct Counts {
  int open = 0;  ///< communicators
  int destroyed = 0;
  int aborted = 0;
  int memory = 0;  ///< blocks by ncclMemAlloc
};
Counts counts();

/// Polls until a call takes effect; -1: it never does.
void set_delay(int polls);
/// Whether each collective waits for the one that was issued before, also on another stream, as at the start.
/// A rank that synchronizes lazy streams does nothing else until the collectives there are done, so ranks
/// that wait for different streams first would wait for each other; in one chain they do not. It can hide
/// that an event is missing.
void chain_collectives(bool wanted);
/// The next call of this function fails with `result` after the delay, or without effect at once for
/// ncclMemAlloc.
void fail_next(const std::string& function, ncclResult_t result);
/// All communicators that there are have lost a rank: what is in their streams never ends by itself.
void lose_a_rank();
/// Memory of ncclMemAlloc is aligned to 256 bytes instead of 2 MiB, as without cuMem.
void misalign_memory(bool wanted);
/// As it was at the start, but for the counts.
void reset();

}  // namespace llampi::emulated_nccl
