// SPDX-License-Identifier: Apache-2.0
// The buffers of a program, made when the first action needs them, and what is decided about each unit.
#pragma once

#include <array>
#include <vector>

#include "fsdp/fp8_weights.hpp"
#include "fsdp/program/program_spec.hpp"
#include "llampi/fsdp/program.hpp"

namespace llampi::fsdp {

/// What is to be done for a unit's parameters and gradient: decided here and nowhere else.
struct UnitPlan {
  bool trained = false;
  bool uploaded = false;       ///< its shard is in host memory, and copied to the device for each use
  bool gathered = false;       ///< it is sharded: its parameters are all-gathered for each use
  bool fp8 = false;            ///< cast to 8 bits once a step, and then gathered
  bool cast = false;           ///< its parameters are computed with in another dtype than that of the shard
  bool reduced = false;        ///< its gradient is; else it is written where it is kept
  bool cast_gradient = false;  ///< to another dtype, before it is reduced

  /// Its parameters are read where they are kept.
  bool in_place() const { return !uploaded && !gathered && !cast; }
};
std::vector<UnitPlan> plan_units(const ProgramSpec& spec);

/// A unit's optimizer state on its way through the device. None: it is not kept in host memory, and does not
/// travel.
struct StreamedState {
  BufferId master = BufferId::none, exp_avg = BufferId::none, exp_avg_sq = BufferId::none;
  BufferId shard = BufferId::none;  ///< made on the device, so it only goes out
};

class BufferTable {
 public:
  /// Adds the persistent buffers.
  BufferTable(const ProgramSpec& spec, Program& program);

  BufferId fp8_shard(int unit);
  BufferId transposed(int weight);          ///< by its number, as find_fp8_weights()
  BufferId unsharded(int unit, Pass pass);  ///< parameters in the dtype that is gathered
  BufferId cast(int unit, Pass pass);       ///< in the dtype that is computed with
  /// @param sum of partial sums of micro-batches, where there are several; so below
  BufferId unsharded_gradient(int unit, int sum = 0);
  BufferId reduce_buffer(int unit);
  BufferId sharded_gradient(int unit, int sum = 0);
  /// The sharded gradient, summed over replicas; where these divide the optimizer state, this rank's part of it.
  BufferId all_reduced_gradient(int unit, int sum = 0);

  BufferId activation(int layer);
  BufferId host_activation(int layer);
  BufferId returned_activation(int layer);  ///< from the host
  BufferId residual_gradient();
  BufferId saved(int layer, int item);
  BufferId host_saved(int layer, int item);
  BufferId returned_saved(int layer, int item);  ///< from the host
  BufferId forward_scratch(int layer, int item);
  BufferId backward_scratch(int layer, int item);

  /// One for all collectives of a stream, as large as the largest need.
  BufferId workspace(device::Stream stream, std::int64_t bytes);
  bool has_workspace(device::Stream stream) const { return workspace_[stream.index()] != BufferId::none; }

  StreamedState streamed(int unit);
  BufferId host_gradient(int unit);
  BufferId host_shard(int unit);  ///< none: the host's master is the shard

  const StatePlacement& placement() const { return placement_; }
  const std::vector<Fp8WeightPlace>& fp8_weights() const { return fp8_weights_; }

 private:
  // What has been made so far; none: nobody has needed it.
  struct UnitBuffers {
    static constexpr std::array kNeither = {BufferId::none, BufferId::none};
    std::array<BufferId, 2> unsharded = kNeither, cast = kNeither;  ///< per pass
    BufferId fp8_shard = BufferId::none, reduce_buffer = BufferId::none;
    std::vector<BufferId> unsharded_gradient, sharded_gradient, all_reduced_gradient;  ///< per sum
    StreamedState streamed;
    BufferId host_gradient = BufferId::none, host_shard = BufferId::none;
  };
  struct LayerBuffers {
    explicit LayerBuffers(const model::LayerSpec& layer);
    BufferId activation = BufferId::none, host_activation = BufferId::none,
             returned_activation = BufferId::none;
    std::vector<BufferId> saved, host_saved, returned_saved, forward_scratch, backward_scratch;  ///< per item
  };

  void add_states();
  void add_snapshots();
  BufferId add(const Buffer& buffer);
  BufferId persistent(Buffer buffer);
  /// Returns `known`; if it is none, first sets it to make().
  template <class Make>
  BufferId once(BufferId& known, const Make& make);
  BufferId partial_sum(std::vector<BufferId>& known, int sum, Buffer buffer);
  Buffer of_unit(Purpose purpose, int unit, DType dtype, std::int64_t elements) const;
  Buffer of_layer(Purpose purpose, int layer, const model::BufferSpec& spec) const;

  const ProgramSpec& spec_;
  Program& program_;
  StatePlacement placement_;
  std::vector<Fp8WeightPlace> fp8_weights_;
  std::vector<UnitBuffers> units_;
  std::vector<LayerBuffers> layers_;
  std::vector<BufferId> transposed_;  // per weight in 8 bits
  BufferId residual_gradient_ = BufferId::none;
  std::array<BufferId, device::kStreams> workspace_;
};

}  // namespace llampi::fsdp
