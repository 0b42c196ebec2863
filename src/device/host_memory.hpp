// Memory of the devices that compute on the host.
#pragma once

#include <cstdint>

#include "llampi/device/device.hpp"

namespace llampi {

/// Zero-filled pages, huge ones where the system has them: 2 MiB aligned from 2 MiB on. Page faults cost more
/// than the arithmetic that they interrupt, so the memory is given back only when it is destroyed.
/// @throws Error if the system has not enough
Memory allocate_host_memory(std::int64_t bytes);

}  // namespace llampi
