// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "device/gpu_factory.hpp"

namespace llampi::device {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFile = "libllampi_cuda.so";
constexpr const char* kDriver = "libcuda.so.1";  ///< comes with NVIDIA's driver, never with the CUDA toolkit

struct Plugin {
  const GpuLibrary* library = nullptr;
  std::string why;  ///< there is none
};

/// Where the plugin may lie: only where the user says so, or beside the program and in the lib of its prefix.
std::vector<fs::path> folders() {
  if (const char* folder = std::getenv("LLAMPI_PLUGIN_DIR"); folder != nullptr && *folder != '\0')
    return {folder};
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error).parent_path();
  if (error) return {};
  return {program, program.parent_path() / "lib"};
}

Plugin load(const fs::path& file) {
  // Local: its names and those of the CUDA libraries do not meet the program's. It stays until the process
  // ends.
  void* const handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return {nullptr, fmt::format("{} cannot be loaded: {}", kFile, dlerror())};
  auto* const factory = reinterpret_cast<GpuFactory*>(dlsym(handle, kGpuFactory));
  if (factory == nullptr)
    return {nullptr, fmt::format("{} is not of this program: it has no {}", file.string(), kGpuFactory)};
  const GpuLibrary* const library = factory(handle, LLAMPI_INTERFACE);
  if (library == nullptr)
    return {nullptr, fmt::format("{} is of another version or build than the program", file.string())};
  return {library, ""};
}

Plugin find_and_load() {
  std::string searched;
  for (const fs::path& folder : folders()) {
    std::error_code ignored;
    if (fs::exists(folder / kFile, ignored)) return load(folder / kFile);
    searched += (searched.empty() ? "" : " or ") + folder.string();
  }
  return {nullptr,
          fmt::format("there is no {} in {} (not installed, or not built: make program)", kFile, searched)};
}

}  // namespace

bool gpu_driver_installed() {
  void* const handle = dlopen(kDriver, RTLD_LAZY | RTLD_LOCAL);
  if (handle == nullptr) return false;
  dlclose(handle);
  return true;
}

const GpuLibrary* gpu_library(std::string& why) {
  static const Plugin plugin = find_and_load();
  why = plugin.why;
  return plugin.library;
}

}  // namespace llampi::device
