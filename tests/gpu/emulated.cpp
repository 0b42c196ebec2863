// SPDX-License-Identifier: Apache-2.0
// The same device class on the emulated runtime.
#include "device/cuda/cuda_device.hpp"
#include "emulator/control.hpp"
#include "gpu/gpu_fixture.hpp"

namespace llampi::test {

std::unique_ptr<device::Device> make_gpu(const device::GpuOptions& options, std::string&) {
  return std::make_unique<device::cuda::CudaDevice>(options);
}

std::vector<WorkOrder> work_orders() {
  using emulator::StreamOrder;
  using emulator::ThreadOrder;
  const auto order = [](std::string name, StreamOrder streams, ThreadOrder threads, std::uint64_t seed) {
    return WorkOrder{std::move(name), [=] {
                       emulator::set_stream_order(streams, seed);
                       emulator::set_thread_order(threads, seed);
                       emulator::guard_device_memory(streams == StreamOrder::lazy);  // where that is cheap
                     }};
  };
  return {order("eager streams, threads in order", StreamOrder::eager, ThreadOrder::forward, 0),
          order("lazy streams, threads backward", StreamOrder::lazy, ThreadOrder::backward, 0),
          order("random streams and threads, seed 1", StreamOrder::random, ThreadOrder::random, 1)};
}

bool sums_are_float32() { return true; }

bool has_block_products() { return true; }

}  // namespace llampi::test
