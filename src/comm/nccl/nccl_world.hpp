// SPDX-License-Identifier: Apache-2.0
// The world with groups on GPUs. See llampi/comm/nccl.hpp.
#pragma once

#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "comm/nccl/gpu.hpp"
#include "comm/nccl/session.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/comm/nccl.hpp"

namespace llampi::comm::nccl {

class NcclWorld final : public World {
 public:
  /// Collective.
  NcclWorld(World& mpi, Gpu gpu, const NcclOptions& options = {});
  /// Aborts while an exception unwinds.
  ~NcclWorld() override;

  int size() const override { return mpi_.size(); }
  int rank() const override { return mpi_.rank(); }
  const Topology& topology() const override { return mpi_.topology(); }
  std::string describe() const override;
  Backend backend() const override { return Backend::nccl; }

  std::unique_ptr<Group> group(const std::vector<int>& members,
                               const std::vector<device::Stream>& streams) override;
  std::unique_ptr<Channel> channel() override { return mpi_.channel(); }
  /// ncclMemAlloc, so that it can be registered; where that does not give aligned memory, cudaMalloc. describe() names that, and
  /// windows that were asked for and are not there on some rank.
  device::Memory allocate(std::int64_t bytes) override;
  std::unique_ptr<World> split(int color) override { return mpi_.split(color); }
  int communicator_number() const override { return mpi_.communicator_number(); }
  bool waits() const override { return mpi_.waits(); }
  void check() override { session_->check(); }

  void barrier() override { mpi_.barrier(); }
  void sum(std::span<double> values) override { mpi_.sum(values); }
  void sum(std::span<std::int64_t> values) override { mpi_.sum(values); }
  void max(std::span<std::int64_t> values) override { mpi_.max(values); }
  void max(std::span<double> values) override { mpi_.max(values); }
  std::string broadcast(const std::string& text, int root) override { return mpi_.broadcast(text, root); }
  std::vector<std::string> all_gather(const std::string& text) override { return mpi_.all_gather(text); }
  std::vector<std::string> all_gather_on_node(const std::string& text) override {
    return mpi_.all_gather_on_node(text);
  }
  std::vector<std::string> gather(const std::string& text, int root) override {
    return mpi_.gather(text, root);
  }
  void leave_mpi_open() override { mpi_.leave_mpi_open(); }
  std::unique_ptr<Work> start_to_combine(std::span<std::int64_t> values, std::size_t sums) override {
    return mpi_.start_to_combine(values, sums);
  }
  [[noreturn]] void abort(int status) override;

 private:
  World& mpi_;
  Gpu gpu_;
  NcclOptions options_;
  std::shared_ptr<Session> session_;
  void add_note(const std::string& note);

  std::string note_;
  int exceptions_ = std::uncaught_exceptions();
};

}  // namespace llampi::comm::nccl
