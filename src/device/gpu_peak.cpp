// Peaks of matrix products as NVIDIA's data sheets state them, without sparsity (half of the figures marked
// so).
#include <string_view>

#include "llampi/device/gpu.hpp"

namespace llampi {
namespace {

struct Peak {
  std::string_view name;  ///< part of what the driver calls the GPU
  double half_teraflops;  ///< bfloat16 and float16 on tensor cores, accumulated in float32
  double float32_teraflops;
};

// The first that fits counts: names that contain another one stand before it.
constexpr Peak kPeaks[] = {
    {"GB200", 2500, 80},         // GB200 NVL72 data sheet: 360 PFLOPS sparse, 5,760 TFLOPS, over 72 GPUs
    {"B200", 2250, 75},          // HGX B200 data sheet: 36 PFLOPS sparse, 600 TFLOPS, over 8 GPUs
    {"GH200", 989.4, 67},        // GH200 Grace Hopper data sheet: 1,979 sparse
    {"H200 NVL", 835.5, 60},     // H200 data sheet: 1,671 sparse
    {"H200", 989.4, 67},         // H200 data sheet, SXM: 1,979 sparse
    {"H100 NVL", 835.5, 60},     // H100 data sheet: 1,671 sparse
    {"H100 PCIe", 756.5, 51},    // H100 data sheet of 2022, PCIe: 1,513 sparse
    {"H100", 989.4, 67},         // H100 data sheet, SXM: 1,979 sparse
    {"A100", 312, 19.5},         // A100 data sheet, PCIe and SXM alike
    {"L40S", 362.05, 91.6},      // L40S data sheet: 362.05 without sparsity
    {"RTX A6000", 154.8, 38.7},  // Ampere GA102 white paper, appendix on the RTX A6000
    {"RTX 4090", 165.2, 82.6},   // Ada white paper: with accumulation in float32, without sparsity
};

}  // namespace

double peak_flops(const std::string& gpu_name, DType dtype) {
  for (const Peak& peak : kPeaks) {
    if (gpu_name.find(peak.name) == std::string::npos) continue;
    if (dtype == DType::bfloat16 || dtype == DType::float16) return peak.half_teraflops * 1e12;
    if (dtype == DType::float32) return peak.float32_teraflops * 1e12;
  }
  return 0;
}

}  // namespace llampi
