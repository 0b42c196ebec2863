// SPDX-License-Identifier: Apache-2.0
// The checks that are done so far, and the words that all of them use. Every rank has the same.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "llampi/comm/comm.hpp"
#include "llampi/comm/format_ranks.hpp"
#include "llampi/core/config_error.hpp"
#include "llampi/train/preflight.hpp"

namespace llampi::train {

class Checklist {
 public:
  /// Collective. Both must outlive it. @param tell PreflightOptions::tell @param name_of how sentences name keys
  Checklist(comm::World& world, std::function<void(const PreflightCheck&)> tell,
            const ConfigError::Naming& name_of)
      : world_(world),
        tell_(std::move(tell)),
        name_of_(name_of),
        hosts_(world.all_gather(world.topology().host)) {}

  void pass(const char* name, std::string text) { add(name, Verdict::pass, std::move(text)); }
  void fail(const char* name, std::string text) { add(name, Verdict::fail, std::move(text)); }
  void skip(const char* name, std::string text) { add(name, Verdict::skip, std::move(text)); }
  /// After a failure that leaves nothing to check with.
  void skip_the_rest();
  /// Collective. A failure of all ranks becomes that of the check. Of one rank alone it leaves, as others may wait for it.
  bool attempt(const char* name, const std::string& advice, const std::function<void()>& work);

  comm::World& world() const { return world_; }
  const std::string& host(int rank) const { return hosts_[static_cast<std::size_t>(rank)]; }
  std::string on_host(int rank) const { return comm::format_rank(rank, host(rank)); }
  std::string on_hosts(const std::vector<int>& ranks) const;

  const std::vector<PreflightCheck>& checks() const { return checks_; }

 private:
  void add(const char* name, Verdict verdict, std::string text);

  comm::World& world_;
  std::function<void(const PreflightCheck&)> tell_;
  const ConfigError::Naming& name_of_;
  std::vector<std::string> hosts_;
  std::vector<PreflightCheck> checks_;
};

/// "1.20 GB/s", as data sheets and machine files have it.
std::string format_rate(double bytes_per_second);

}  // namespace llampi::train
