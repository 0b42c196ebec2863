// SPDX-License-Identifier: Apache-2.0
// What the plugin exports for gpu_library(): the one name by which the program enters it.
#pragma once

#include "llampi/device/gpu.hpp"

namespace llampi::device {

/// Program and plugin call each other's virtual functions, so they must be of one build: `interface` is the
/// program's LLAMPI_INTERFACE, which the build sets from the headers that both share; null if the plugin's
/// own is another. `handle` is what dlopen gave for the plugin. What is returned lives as long as the
/// process.
using GpuFactory = const GpuLibrary*(void* handle, const char* interface);
inline constexpr const char* kGpuFactory = "llampi_gpu_library";

}  // namespace llampi::device
