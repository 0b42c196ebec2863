// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/start_again.hpp"

#include <unistd.h>

#include <filesystem>
#include <system_error>

namespace llampi::device {

void start_again(char** argv) {
  constexpr const char* kSelf = "/proc/self/exe";
  // By its path: the kernel names a process after the last part of it, and that would be "exe".
  std::error_code error;
  const auto program = std::filesystem::read_symlink(kSelf, error);
  if (!error) execv(program.c_str(), argv);
  execv(kSelf, argv);  // the file has been moved or replaced
}

}  // namespace llampi::device
