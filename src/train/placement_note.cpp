// SPDX-License-Identifier: Apache-2.0
#include "train/placement_note.hpp"

#include <fmt/format.h>

#include "llampi/comm/format_ranks.hpp"
#include "llampi/core/tensor.hpp"

namespace llampi::train {
namespace {

/// The dtype that the sums of nodes are rounded to before they are added, if they are.
const char* rounded_to(const fsdp::DeviceMesh& mesh, const fsdp::Precision& precision) {
  const auto narrow = [](DType dtype) { return size_of(dtype) < size_of(DType::float32); };
  if (mesh.shards_sum_inside_nodes && narrow(precision.reduce)) return to_string(precision.reduce);
  if (mesh.replicas_sum_inside_nodes && narrow(precision.gradient_shard))
    return to_string(precision.gradient_shard);
  return nullptr;
}

}  // namespace

std::string placement_note(const fsdp::DeviceMesh& mesh, const fsdp::Precision& precision,
                           const std::vector<int>& node_of_rank) {
  if (!mesh.sums_follow_placement && rounded_to(mesh, precision) == nullptr) return "";
  return comm::format_placement(node_of_rank);
}

std::string sums_in_words(const fsdp::DeviceMesh& mesh, const fsdp::Precision& precision,
                          const std::string& note) {
  const char* dtype = rounded_to(mesh, precision);
  return fmt::format(
      "within each node first{}; the last bits depend on which ranks share a node ({})",
      dtype == nullptr
          ? ""
          : fmt::format(", and the sum of a node is rounded to {} before nodes are added", dtype),
      note);
}

std::string change_of_placement(const std::string& then, const std::string& now) {
  if (then == now) return "";
  const auto shown = [](const std::string& note) {
    return note.empty() ? std::string("one that sums do not depend on") : note;
  };
  return fmt::format(
      "placement of ranks on nodes = {}, was {}: sums over ranks are formed in another order, so the last bits differ",
      shown(now), shown(then));
}

}  // namespace llampi::train
