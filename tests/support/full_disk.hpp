// SPDX-License-Identifier: Apache-2.0
// A disk without room, for as long as this lives: nothing can be written to a file of this process, neither behind its end nor
// in place. Reserving room (fallocate) and cutting a file off still work.
#pragma once

#include <sys/resource.h>

#include <csignal>

#include "llampi/core/error.hpp"

namespace llampi::test {

class FullDisk {
 public:
  FullDisk() : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    if (::getrlimit(RLIMIT_FSIZE, &before_) != 0) throw Error("getrlimit failed");
    limit(0);
  }
  ~FullDisk() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;

 private:
  void limit(rlim_t bytes) const {
    const rlimit narrow{bytes, before_.rlim_max};
    if (::setrlimit(RLIMIT_FSIZE, &narrow) != 0) throw Error("setrlimit failed");
  }

  void (*handler_)(int);
  rlimit before_{};
};

}  // namespace llampi::test
