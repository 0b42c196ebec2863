// SPDX-License-Identifier: Apache-2.0
// Worlds that differ from the test's own in something.
#pragma once

#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "llampi/comm/comm.hpp"

namespace llampi::test {

/// Does what another world does; for tests that change some of it.
class WorldOver : public comm::World {
 public:
  explicit WorldOver(comm::World& world) : world_(world) {}
  int size() const override { return world_.size(); }
  int rank() const override { return world_.rank(); }
  const comm::Topology& topology() const override { return world_.topology(); }
  std::string describe() const override { return world_.describe(); }
  comm::Backend backend() const override { return world_.backend(); }
  std::unique_ptr<comm::Group> group(const std::vector<int>& members,
                                     const std::vector<device::Stream>& streams) override {
    return world_.group(members, streams);
  }
  std::unique_ptr<comm::Channel> channel() override { return world_.channel(); }
  std::unique_ptr<comm::World> duplicate() override { return world_.duplicate(); }
  std::unique_ptr<comm::World> split(int color) override { return world_.split(color); }
  int communicator_number() const override { return world_.communicator_number(); }
  device::Memory allocate(std::int64_t bytes) override { return world_.allocate(bytes); }
  bool waits() const override { return world_.waits(); }
  void barrier() override { world_.barrier(); }
  void sum(std::span<double> values) override { world_.sum(values); }
  void sum(std::span<std::int64_t> values) override { world_.sum(values); }
  void max(std::span<std::int64_t> values) override { world_.max(values); }
  void max(std::span<double> values) override { world_.max(values); }
  std::string broadcast(const std::string& text, int root) override { return world_.broadcast(text, root); }
  std::vector<std::string> all_gather(const std::string& text) override { return world_.all_gather(text); }
  std::vector<std::string> all_gather_on_node(const std::string& text) override {
    return world_.all_gather_on_node(text);
  }
  std::vector<std::string> gather(const std::string& text, int root) override {
    return world_.gather(text, root);
  }
  void leave_mpi_open() override { world_.leave_mpi_open(); }
  std::unique_ptr<comm::Work> start_to_combine(std::span<std::int64_t> values, std::size_t sums) override {
    return world_.start_to_combine(values, sums);
  }
  [[noreturn]] void abort(int status) override {
    world_.abort(status);
    std::abort();  // not reached, which g++ does not see through a virtual function
  }

 protected:
  comm::World& world_;
};

/// As where MPI has no MPI_THREAD_MULTIPLE.
class WorldOfOneThread final : public WorldOver {
 public:
  using WorldOver::WorldOver;
  std::string describe() const override { return "an MPI for one thread"; }
  std::unique_ptr<comm::Channel> channel() override { return nullptr; }
  std::unique_ptr<comm::World> duplicate() override { return nullptr; }
};

/// This rank alone, as if it had been started without others.
class WorldAlone final : public WorldOver {
 public:
  explicit WorldAlone(comm::World& world) : WorldOver(world) { topology_.host = world.topology().host; }
  int size() const override { return 1; }
  int rank() const override { return 0; }
  const comm::Topology& topology() const override { return topology_; }
  std::unique_ptr<comm::Group> group(const std::vector<int>&,
                                     const std::vector<device::Stream>& streams) override {
    return world_.group({world_.rank()}, streams);
  }
  std::unique_ptr<comm::Channel> channel() override { return nullptr; }
  std::unique_ptr<comm::World> duplicate() override { return nullptr; }
  std::unique_ptr<comm::World> split(int color) override {
    return color < 0 ? nullptr : std::make_unique<WorldAlone>(world_);
  }
  void barrier() override {}
  void sum(std::span<double>) override {}
  void sum(std::span<std::int64_t>) override {}
  void max(std::span<std::int64_t>) override {}
  void max(std::span<double>) override {}
  std::string broadcast(const std::string& text, int) override { return text; }
  std::vector<std::string> all_gather(const std::string& text) override { return {text}; }
  std::vector<std::string> all_gather_on_node(const std::string& text) override { return {text}; }
  std::vector<std::string> gather(const std::string& text, int) override { return {text}; }
  std::unique_ptr<comm::Work> start_to_combine(std::span<std::int64_t>, std::size_t) override {
    struct Done final : comm::Work {
      bool progress() override { return true; }
      void wait(device::Stream) override {}
    };
    return std::make_unique<Done>();
  }

 private:
  comm::Topology topology_;
};

}  // namespace llampi::test
