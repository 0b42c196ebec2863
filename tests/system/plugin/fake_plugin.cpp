// SPDX-License-Identifier: Apache-2.0
// A plugin that needs no CUDA, in place of libllampi_cuda.so: what the tests of its loading load. Built as
// the real one is, with its own hidden copies of what it shares with the program.
#include <dlfcn.h>

#include <new>

#include "device/gpu_factory.hpp"
#include "llampi/device/device.hpp"

#ifndef FAKE_WITHOUT_FACTORY
namespace llampi {
namespace {

class FakeLibrary final : public device::GpuLibrary {
 public:
  explicit FakeLibrary(void* handle) : handle_(handle) {}
  std::string describe() const override { return "a fake"; }
  std::vector<device::GpuProperties> gpus() const override {
    return {{"Fake GPU", "0000:01:00.0", 9, 0, 1024}};
  }

  /// Throws, by the number of the GPU, what a device may throw.
  std::unique_ptr<device::Device> make_device(const device::GpuOptions& options) const override {
    switch (options.gpu) {
      case 0:
        throw_user_error("GPU {} is not for you; take another", options.gpu);
      case 1:
        throw CallError("fakeCall", "no reason");
      case 2:
        require(false, "a fake");
        break;
      case 3:
        throw std::bad_alloc();
      default:
        break;
    }
    return nullptr;
  }

  void* symbol(const char* name) const override { return dlsym(handle_, name); }

 private:
  void* handle_;
};

}  // namespace
}  // namespace llampi

extern "C" __attribute__((visibility("default"))) const llampi::device::GpuLibrary* llampi_gpu_library(
    void* handle, const char* interface) {
  if (std::string(interface) != LLAMPI_INTERFACE) return nullptr;
  static const llampi::FakeLibrary library(handle);
  return &library;
}
#endif

#ifdef FAKE_NEEDS
extern "C" int llampi_absent();
extern "C" __attribute__((visibility("default"))) int fake_needs() { return llampi_absent(); }
#endif
