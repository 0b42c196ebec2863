// SPDX-License-Identifier: Apache-2.0
// The GPU of this machine, through the plugin as the program loads it.
#include <cstdlib>

#include "gpu/gpu_fixture.hpp"
#include "support/find_above.hpp"

namespace llampi::test {
namespace {

/// Tests do not lie beside it, but below the folder that has it: the build folder, or a bundle.
void find_plugin() {
  std::string folder = LLAMPI_PLUGIN_FOLDER;
  for (const char* name : {"libllampi_cuda.so", "lib/libllampi_cuda.so"}) {
    if (const auto file = find_above(name); !file.empty()) folder = file.parent_path().string();
  }
  setenv("LLAMPI_PLUGIN_DIR", folder.c_str(), 0);
}

}  // namespace

std::unique_ptr<device::Device> make_gpu(const device::GpuOptions& options, std::string& why) {
  find_plugin();
  const device::GpuLibrary* library = device::gpu_library(why);
  if (library == nullptr) return nullptr;
  try {
    if (library->gpus().empty()) {
      why = "this machine has none";
      return nullptr;
    }
  } catch (const Error& error) {  // no driver
    why = error.what();
    return nullptr;
  }
  return library->make_device(options);
}

std::vector<WorkOrder> work_orders() {
  return {{"as it comes", [] {}}};
}

bool sums_are_float32() { return false; }

bool has_block_products() {
  std::string why;
  const device::GpuProperties gpu = device::gpu_library(why)->gpus().at(0);
  return device::has_fp8_block_products(gpu.major, gpu.minor);
}

}  // namespace llampi::test
