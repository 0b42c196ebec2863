// SPDX-License-Identifier: Apache-2.0
// In which dtype and in which memory a rank keeps what.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "llampi/core/tensor.hpp"

namespace llampi::fsdp {

/// dtypes by role. Master parameters and moments are kept on each rank's shard.
struct Precision {
  DType param = DType::float32;    ///< gathered
  DType compute = DType::float32;  ///< computed with: on CPUs float32, whatever is gathered
  DType reduce = DType::float32;   ///< gradients while they travel; sums are formed in gradient()
  DType master = DType::float32;
  DType moment = DType::float32;
  /// Sharded gradients, in which micro-batches add up: gradient(), or `reduce` where memory is short.
  DType gradient_shard = DType::float32;
  /// Of frozen units, kept and gathered; none: param.
  std::optional<DType> frozen = {};
  /// Frozen matrices of blocks are kept and gathered in 8 bits, DType::int8_blocks, and cast to `compute` for each use.
  bool int8_base = false;

  DType gathered(bool is_frozen) const { return is_frozen ? frozen.value_or(param) : param; }
  /// True if gradients are kept in less than they are computed in.
  bool shortens_gradient() const { return gradient_shard != gradient(); }
  /// Of the sums that gradients are; GPUs may write them in gradient_shard at once.
  DType gradient() const { return compute == DType::float64 ? DType::float64 : DType::float32; }
};

/// In what frozen parameters are kept: "bfloat16, the matrices of the blocks in int8 with a scale for each 128 elements".
std::string frozen_in_words(const Precision& precision);

/// What is kept in host memory, and where the optimizer runs then.
///
/// - optimizer: moments and, where it is not the gathered shard itself, the master.
/// - params: the shards that are gathered too; each gather is preceded by a copy of the shard to the device.
/// - host_step: sharded gradients are copied to the host, AdamW runs there, new shards are copied back.
///   Otherwise master and moments pass through the device, two units at a time.
///
/// - residuals: what the backward pass reads of the residual stream, the input of each layer, is copied to the
///   host as soon as it is made, and back shortly before it is read. That of the last block stays.
///
/// Bytes over the link per element of a shard and step, with float32 state: 12 in and 12 out on the device (8
/// and 8 where the master is the shard), or 4 out and the size of param in on the host; params adds the size
/// of param in for each gather.
struct Offload {
  bool optimizer = false;
  bool params = false;  ///< implies optimizer
  bool host_step = false;
  bool residuals = false;

  bool operator==(const Offload&) const = default;
};

/// What there is of an optimizer's state for a unit that is trained, and where.
struct StatePlacement {
  bool own_master;  ///< else the shard is the master
  bool host_shard, host_master, host_moments;
};
StatePlacement state_placement(const Precision& precision, const Offload& offload);

}  // namespace llampi::fsdp
