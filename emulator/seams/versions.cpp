// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/versions.hpp"

namespace llampi::device::cuda {

std::string library_versions() { return "emulated GPU"; }

}  // namespace llampi::device::cuda
