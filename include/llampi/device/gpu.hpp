// SPDX-License-Identifier: Apache-2.0
// The GPUs of this machine, through a plugin library that is loaded when it is asked for.
//
// The program itself links neither CUDA nor NCCL, so that it starts on a login node. The plugin,
// libllampi_cuda.so, is in the program's folder or in ../lib of it; it links cuBLASLt, cuDNN and NCCL in
// the ordinary way, and is loaded at most once per process.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "llampi/core/tensor.hpp"
#include "llampi/core/words.hpp"
#include "llampi/device/forward.hpp"

namespace llampi::device {

/// The least compute capability, with which the kernels' asynchronous copies came.
inline constexpr int kOldestGpu = 8;

/// Whether cuDNN's deterministic gradients of attention keep dP: on GPUs of all compute capabilities but 10.x, Blackwell in
/// data centers, which has kernels that add up in a fixed order (cudnn-frontend, scaled_dot_product_flash_attention.h).
constexpr bool deterministic_attention_keeps_dp(int major) { return major != 10; }

/// Whether a GPU of this compute capability has op::Fp8Product: Ada, Hopper and newer.
constexpr bool has_fp8_products(int major, int minor) { return major > 8 || (major == 8 && minor >= 9); }

/// Whether it has those of matrices with scales of tiles and blocks: Hopper alone, in cuBLASLt.
constexpr bool has_fp8_block_products(int major, int minor) { return major == 9 && minor == 0; }

struct GpuProperties {
  std::string name;          ///< "NVIDIA H200"
  std::string bus_id;        ///< "0000:17:00.0"; the instances of a GPU that is divided (MIG) have the same
  int major = 0, minor = 0;  ///< compute capability
  std::int64_t memory_bytes = 0;
  std::string uuid = {};    ///< 32 hexadecimal digits, another one for each instance; empty: unknown
  bool fp8_blocks = false;  ///< has_fp8_block_products(), and its cuBLASLt has them too: 12.9 or newer

  /// What two ranks of a node compare to know whether they have one GPU.
  const std::string& identity() const { return uuid.empty() ? bus_id : uuid; }
};

/// What computes. automatic: GPUs where every rank can have one of its own, else CPUs.
enum class DeviceChoice : std::uint8_t { automatic, cpu, cuda };
constexpr auto word_table(DeviceChoice) {
  return std::to_array<Word<DeviceChoice>>(
      {{DeviceChoice::automatic, "auto"}, {DeviceChoice::cpu, "cpu"}, {DeviceChoice::cuda, "cuda"}});
}

/// Which attention kernels a GPU uses. automatic: cuDNN's where they can do it, else the program's native ones.
enum class GpuAttention : std::uint8_t { automatic, cudnn, native };
constexpr auto word_table(GpuAttention) {
  return std::to_array<Word<GpuAttention>>(
      {{GpuAttention::automatic, "auto"}, {GpuAttention::cudnn, "cudnn"}, {GpuAttention::native, "native"}});
}

struct GpuOptions {
  int gpu = 0;                ///< index among the visible ones
  bool deterministic = true;  ///< the same bits in repeated runs
  bool tf32 = false;          ///< float32 matrix products in TF32
  GpuAttention attention = GpuAttention::automatic;
  /// Number of multiprocessors to choose matrix product kernels for; fewer than the GPU has if other kernels run concurrently.
  /// 0: all.
  int product_sms = 0;
  int ranks = 1;  ///< that have this GPU and share its memory
};

class GpuLibrary {
 public:
  virtual ~GpuLibrary() = default;
  /// "CUDA 13.0, cuBLASLt 13.1.0, cuDNN 9.19.0, NCCL 2.28.9".
  virtual std::string describe() const = 0;
  /// The visible GPUs. @throws Error with the driver's words if there is no driver or no GPU
  virtual std::vector<GpuProperties> gpus() const = 0;
  virtual std::unique_ptr<Device> make_device(const GpuOptions& options) const = 0;
  /// Another exported symbol of the plugin, for `comm`. @throws Error if there is none
  virtual void* symbol(const char* name) const = 0;
};

/// The plugin. Null where it was not built, is not installed, or its libraries cannot be loaded: `why` then
/// holds the reason as a clause ("libcublasLt.so.13 cannot be loaded: ...").
const GpuLibrary* gpu_library(std::string& why);

/// Scratch memory as the GPU's operations need it: pure functions, without a GPU.
std::unique_ptr<OperationSizes> make_gpu_sizes();

/// False where no NVIDIA driver is installed. Does not load the plugin, whose libraries are large.
bool gpu_driver_installed();

/// A GPU model whose data sheet is known.
struct KnownGpu {
  std::string_view key;          ///< for command lines: "h100"
  std::string_view driver_name;  ///< part of what the driver calls it
  std::int64_t memory_bytes = 0;
  double half_teraflops = 0;  ///< bfloat16 and float16 on tensor cores, accumulated in float32
  double float32_teraflops = 0;
  int major = 0, minor = 0;  ///< compute capability
};
std::span<const KnownGpu> known_gpus();

/// Dense matrix products in `dtype` with float32 accumulation, operations per second as the data sheet of
/// this GPU says (without sparsity); 0 where it is not known.
double peak_flops(const std::string& gpu_name, DType dtype);

}  // namespace llampi::device
