// The GPU of this machine, through the plugin as the program loads it.
#include <cstdlib>

#include "gpu/gpu_test.hpp"

namespace llampi::test {

std::unique_ptr<Device> make_gpu(const GpuOptions& options, std::string& why) {
  setenv("LLAMPI_PLUGIN_DIR", LLAMPI_PLUGIN_FOLDER, 0);  // tests do not lie beside it
  const GpuLibrary* library = gpu_library(why);
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

}  // namespace llampi::test
