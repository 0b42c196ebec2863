// SPDX-License-Identifier: Apache-2.0
// Cores, memory and devices of a node, as hwloc finds them. Nothing here shows hwloc's types.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/cores.hpp"

namespace llampi::comm {

/// InfiniBand devices of this machine, RoCE included.
int infiniband_devices();

class NodeTopology {
 public:
  /// This machine's. Takes some ten milliseconds: one rank of a node does it. @throws Error if hwloc cannot
  NodeTopology();
  /// One that hwloc makes of a description, "package:2 numa:2 core:4 pu:2", or reads from XML: for tests.
  static NodeTopology synthetic(const std::string& description);
  static NodeTopology from_xml(const std::string& xml);
  NodeTopology(NodeTopology&&) noexcept;
  NodeTopology& operator=(NodeTopology&&) noexcept;
  ~NodeTopology();

  /// Neighbours beside each other. Those only that a cgroup leaves to this process.
  std::vector<Core> cores() const;
  /// Nearest to the PCI device; none if it is not known.
  Cpus near_device(const std::string& bus_id) const;
  /// InfiniBand devices ("mlx5_0"), of which the nearest to the PCI device, or to the CPUs. Several that are
  /// equally near; none where there are none, or nothing says how near they are.
  std::vector<std::string> networks_near_device(const std::string& bus_id) const;
  std::vector<std::string> networks_near(const Cpus& cpus) const;

 private:
  struct Hwloc;
  explicit NodeTopology(std::unique_ptr<Hwloc> hwloc);

  std::unique_ptr<Hwloc> hwloc_;
};

}  // namespace llampi::comm
