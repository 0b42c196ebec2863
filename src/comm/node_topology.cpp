// SPDX-License-Identifier: Apache-2.0
#include "comm/node_topology.hpp"

#include <hwloc.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "llampi/core/error.hpp"

namespace llampi::comm {

struct NodeTopology::Hwloc {
  hwloc_topology_t topology = nullptr;

  Hwloc() { check(hwloc_topology_init(&topology), "hwloc_topology_init"); }
  Hwloc(const Hwloc&) = delete;
  Hwloc& operator=(const Hwloc&) = delete;
  ~Hwloc() {
    if (topology != nullptr) hwloc_topology_destroy(topology);
  }

  static void check(int result, const char* call) {
    if (result != 0) throw CallError(call, std::strerror(errno));
  }

  void load() {
    // What computes is found elsewhere; these would start drivers.
    for (const char* component : {"cuda", "gl", "levelzero", "nvml", "opencl", "rsmi"})
      hwloc_topology_set_components(topology, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, component);
    check(hwloc_topology_set_io_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_IMPORTANT),
          "hwloc_topology_set_io_types_filter");
    check(hwloc_topology_load(topology), "hwloc_topology_load");
  }
};

namespace {

Cpus cpus_of(hwloc_const_bitmap_t set) {
  Cpus cpus;
  if (set == nullptr) return cpus;
  for (int cpu = hwloc_bitmap_first(set); cpu >= 0; cpu = hwloc_bitmap_next(set, cpu)) cpus.push_back(cpu);
  return cpus;
}

hwloc_obj_t device_of(hwloc_topology_t topology, const std::string& bus_id) {
  return bus_id.empty() ? nullptr : hwloc_get_pcidev_by_busidstring(topology, bus_id.c_str());
}

/// Steps from `from` up to what it has in common with `other`.
int steps_to_common(hwloc_obj_t from, hwloc_obj_t other) {
  int steps = 0;
  for (; from != nullptr; from = from->parent, ++steps) {
    for (hwloc_obj_t up = other; up != nullptr; up = up->parent) {
      if (up == from) return steps;
    }
  }
  return steps;
}

/// The InfiniBand devices for which `distance` is least.
template <class Distance>
std::vector<std::string> nearest_networks(hwloc_topology_t topology, const Distance& distance) {
  std::vector<std::pair<int, std::string>> found;
  for (hwloc_obj_t device = nullptr; (device = hwloc_get_next_osdev(topology, device)) != nullptr;) {
    if (device->attr->osdev.type == HWLOC_OBJ_OSDEV_OPENFABRICS)
      found.emplace_back(distance(device), device->name);
  }
  std::sort(found.begin(), found.end());
  std::vector<std::string> names;
  for (const auto& [steps, name] : found) {
    if (steps == found.front().first) names.push_back(name);
  }
  return names;
}

}  // namespace

int infiniband_devices() {
  std::error_code ignored;
  int count = 0;
  for (std::filesystem::directory_iterator device("/sys/class/infiniband", ignored), end;
       !ignored && device != end; device.increment(ignored))
    ++count;
  return count;
}

NodeTopology::NodeTopology() : NodeTopology(std::make_unique<Hwloc>()) { hwloc_->load(); }

NodeTopology::NodeTopology(std::unique_ptr<Hwloc> hwloc) : hwloc_(std::move(hwloc)) {}
NodeTopology::NodeTopology(NodeTopology&&) noexcept = default;
NodeTopology& NodeTopology::operator=(NodeTopology&&) noexcept = default;
NodeTopology::~NodeTopology() = default;

NodeTopology NodeTopology::synthetic(const std::string& description) {
  auto hwloc = std::make_unique<Hwloc>();
  Hwloc::check(hwloc_topology_set_synthetic(hwloc->topology, description.c_str()),
               "hwloc_topology_set_synthetic");
  hwloc->load();
  return NodeTopology(std::move(hwloc));
}

NodeTopology NodeTopology::from_xml(const std::string& xml) {
  auto hwloc = std::make_unique<Hwloc>();
  Hwloc::check(hwloc_topology_set_xmlbuffer(hwloc->topology, xml.c_str(), static_cast<int>(xml.size()) + 1),
               "hwloc_topology_set_xmlbuffer");
  hwloc->load();
  return NodeTopology(std::move(hwloc));
}

std::vector<Core> NodeTopology::cores() const {
  hwloc_topology_t topology = hwloc_->topology;
  // Some virtual machines and processors do not say which CPUs are of one core.
  const auto type = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE) > 0 ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
  std::vector<Core> cores;
  for (hwloc_obj_t core = nullptr; (core = hwloc_get_next_obj_by_type(topology, type, core)) != nullptr;)
    cores.push_back({cpus_of(core->cpuset), hwloc_bitmap_first(core->nodeset)});
  return cores;
}

Cpus NodeTopology::near_device(const std::string& bus_id) const {
  hwloc_obj_t device = device_of(hwloc_->topology, bus_id);
  if (device == nullptr) return {};
  return cpus_of(hwloc_get_non_io_ancestor_obj(hwloc_->topology, device)->cpuset);
}

std::vector<std::string> NodeTopology::networks_near_device(const std::string& bus_id) const {
  hwloc_obj_t device = device_of(hwloc_->topology, bus_id);
  if (device == nullptr) return {};
  return nearest_networks(hwloc_->topology,
                          [device](hwloc_obj_t network) { return steps_to_common(device, network); });
}

std::vector<std::string> NodeTopology::networks_near(const Cpus& cpus) const {
  return nearest_networks(hwloc_->topology, [&](hwloc_obj_t network) {
    const auto place = hwloc_get_non_io_ancestor_obj(hwloc_->topology, network);
    return overlap(cpus_of(place->cpuset), cpus) ? 0 : 1;
  });
}

}  // namespace llampi::comm
