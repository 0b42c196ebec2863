// SPDX-License-Identifier: Apache-2.0
// Peaks of matrix products as NVIDIA's data sheets state them, without sparsity (half of the figures marked
// so), and the memory of these GPUs: for the A100, H100 and H200 what a process can have, the least "total capacity" in published
// out-of-memory messages of PyTorch (39.39, 79.14, 79.10, NVL 93.00, and 139.72 GiB); of the GB200 and GH200 the data sheet's; of the others
// what nvidia-smi shows, which may be up to a GiB more.
#include "llampi/core/elements.hpp"
#include "llampi/device/gpu.hpp"

namespace llampi::device {
namespace {

constexpr std::int64_t mib(std::int64_t count) { return count << 20; }
constexpr std::int64_t gb(std::int64_t count) { return count * 1'000'000'000; }

// The first that fits counts: names that contain another one stand before it.
constexpr KnownGpu kGpus[] = {
    {"gb200", "GB200", gb(186), 2500, 80, 10, 0},    // GB200 NVL72: 360 PFLOPS sparse, 5,760 TFLOPS, over 72
    {"b200", "B200", mib(183359), 2250, 75, 10, 0},  // HGX B200: 36 PFLOPS sparse, 600 TFLOPS, over 8
    {"gh200", "GH200", gb(96), 989.4, 67, 9, 0},     // GH200 Grace Hopper, HBM3: 1,979 sparse
    {"h200-nvl", "H200 NVL", mib(143073), 835.5, 60, 9, 0},   // 1,671 sparse
    {"h200", "H200", mib(143073), 989.4, 67, 9, 0},           // SXM: 1,979 sparse
    {"h100-nvl", "H100 NVL", mib(95232), 835.5, 60, 9, 0},    // 1,671 sparse
    {"h100-pcie", "H100 PCIe", mib(80998), 756.5, 51, 9, 0},  // data sheet of 2022: 1,513 sparse
    {"h100", "H100", mib(80998), 989.4, 67, 9, 0},            // SXM: 1,979 sparse
    {"a100-40gb", "A100-SXM4-40GB", mib(40335), 312, 19.5, 8, 0},
    {"a100-40gb", "A100-PCIE-40GB", mib(40335), 312, 19.5, 8, 0},
    {"a100", "A100", mib(81039), 312, 19.5, 8, 0},           // PCIe and SXM alike
    {"l40s", "L40S", mib(46068), 362.05, 91.6, 8, 9},        // without sparsity
    {"a6000", "RTX A6000", mib(49140), 154.8, 38.7, 8, 6},   // Ampere GA102 white paper, appendix
    {"rtx4090", "RTX 4090", mib(24564), 165.2, 82.6, 8, 9},  // Ada white paper: accumulation in float32
};

}  // namespace

std::span<const KnownGpu> known_gpus() { return kGpus; }

double peak_flops(const std::string& gpu_name, DType dtype) {
  for (const KnownGpu& gpu : kGpus) {
    if (gpu_name.find(gpu.driver_name) == std::string::npos) continue;
    if (is_half(dtype)) return gpu.half_teraflops * 1e12;
    if (dtype == DType::float32) return gpu.float32_teraflops * 1e12;
  }
  return 0;
}

}  // namespace llampi::device
