// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace llampi::device::cuda {

/// Of what the plugin links: "CUDA 13.0, cuBLASLt 13.1.0, cuDNN 9.19.0, NCCL 2.28.9".
std::string library_versions();

}  // namespace llampi::device::cuda
