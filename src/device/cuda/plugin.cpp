// SPDX-License-Identifier: Apache-2.0
// What the program sees of the plugin: llampi_gpu_library(), the one way in (see device/gpu_factory.hpp).
#include <dlfcn.h>

#include "device/cuda/cuda_device.hpp"
#include "device/cuda/product_library.hpp"
#include "device/cuda/versions.hpp"
#include "device/gpu_factory.hpp"

namespace llampi::device::cuda {
namespace {

std::string hexadecimal(const cudaUUID_t& uuid) {
  std::string text;
  for (const char byte : uuid.bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return text.find_first_not_of('0') == std::string::npos ? "" : text;
}

class CudaLibrary final : public GpuLibrary {
 public:
  explicit CudaLibrary(void* handle) : handle_(handle) {}

  std::string describe() const override { return library_versions(); }

  std::vector<GpuProperties> gpus() const override {
    int count = 0;
    check(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
    std::vector<GpuProperties> gpus;
    for (int i = 0; i < count; ++i) {
      cudaDeviceProp properties{};
      check(cudaGetDeviceProperties(&properties, i), "cudaGetDeviceProperties");
      char bus_id[32] = {};
      check(cudaDeviceGetPCIBusId(bus_id, sizeof bus_id, i), "cudaDeviceGetPCIBusId");
      gpus.push_back(
          {properties.name, bus_id, properties.major, properties.minor,
           static_cast<std::int64_t>(properties.totalGlobalMem), hexadecimal(properties.uuid),
           has_fp8_block_products(properties.major, properties.minor) && product_library_has_blocks()});
    }
    return gpus;
  }

  std::unique_ptr<Device> make_device(const GpuOptions& options) const override {
    return std::make_unique<CudaDevice>(options);
  }

  void* symbol(const char* name) const override {
    void* const address = dlsym(handle_, name);
    if (address == nullptr) throw Error(fmt::format("the GPU plugin has no {}", name));
    return address;
  }

 private:
  void* handle_;
};

}  // namespace
}  // namespace llampi::device::cuda

extern "C" __attribute__((visibility("default"))) const llampi::device::GpuLibrary* llampi_gpu_library(
    void* handle, const char* interface) {
  if (std::string(interface) != LLAMPI_INTERFACE) return nullptr;
  static const llampi::device::cuda::CudaLibrary library(handle);
  return &library;
}
