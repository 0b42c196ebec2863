// SPDX-License-Identifier: Apache-2.0
// What collectives take of memory: pure functions, so that a plan needs no communicator.
#pragma once

#include <cstdint>

#include "llampi/comm/forward.hpp"
#include "llampi/comm/reduction.hpp"
#include "llampi/core/tensor.hpp"

namespace llampi::comm {

/// Scratch memory of the collectives in bytes. `dtype` is that of what is reduced (whole, values), whatever
/// the result's. Between GPUs, with Reduction::tree, about `exchange_bytes` at most, or a sixteenth of what a rank receives if
/// that is more; what NCCL reduces needs none: if not
/// straight into its place, it is reduced where `whole` and `values` are. MPI has but one reduction.
std::int64_t reduce_scatter_workspace(Backend backend, std::int64_t whole_elements, int ranks, DType dtype,
                                      Reduction reduction = Reduction::tree,
                                      std::int64_t exchange_bytes = kExchangeBytes);
std::int64_t all_reduce_workspace(Backend backend, std::int64_t elements, int ranks, DType dtype,
                                  Reduction reduction = Reduction::tree,
                                  std::int64_t exchange_bytes = kExchangeBytes);
/// In so many pieces, one after another, `whole` or `values` is reduced, so that the scratch memory is enough.
std::int64_t reduce_scatter_pieces(Backend backend, std::int64_t whole_elements, int ranks, DType dtype,
                                   Reduction reduction);
std::int64_t all_reduce_pieces(Backend backend, std::int64_t elements, int ranks, DType dtype,
                               Reduction reduction);
/// Those of MPI.
inline std::int64_t reduce_scatter_workspace(std::int64_t whole_elements, int ranks, DType dtype) {
  return reduce_scatter_workspace(Backend::mpi, whole_elements, ranks, dtype);
}
inline std::int64_t all_reduce_workspace(std::int64_t elements, int ranks, DType dtype) {
  return all_reduce_workspace(Backend::mpi, elements, ranks, dtype);
}

/// About what a communicator of so many ranks takes of the device's memory for itself: an estimate, from what
/// is public about NCCL. A group of several ranks has one for each stream that its collectives use.
std::int64_t communicator_bytes(Backend backend, int ranks);

/// Besides that, about what it takes for exchanges, with which Reduction::tree reduces (ncclSend and ncclRecv): buffers for each rank of the
/// node, at most 2.2 GiB on eight GPUs of one node, and for networks 128 MiB. From NCCL's source (communicator_bytes.cpp has the
/// places), for GPUs with NVLinks and a NIC each, and not measured with several GPUs; what limits channels, as fsdp.nccl_ctas does, makes it
/// less.
/// @param ranks_on_node the most that share a node; more than 8 are taken for 8
std::int64_t exchange_buffer_bytes(Backend backend, int ranks, int ranks_on_node);

}  // namespace llampi::comm
