// SPDX-License-Identifier: Apache-2.0
// Memory of the devices that compute on the host.
#pragma once

#include <cstdint>
#include <filesystem>

#include "llampi/device/runtime.hpp"

namespace llampi::device {

/// Zero-filled pages, huge ones where the system has them: 2 MiB aligned from 2 MiB on. Page faults cost more
/// than the arithmetic that they interrupt, so the memory is given back only when it is destroyed.
/// @throws UserError if the system has not enough
Memory allocate_host_memory(std::int64_t bytes);

/// Bytes that could be taken without swapping: the minimum of the kernel's MemAvailable and the remaining
/// limit of each control group (version 1 or 2) that contains this process, directly or through a parent.
/// The largest representable number where nothing is known.
/// @param root of the file system with /proc and the control groups, for tests
std::int64_t available_host_memory(const std::filesystem::path& root = "/");

}  // namespace llampi::device
