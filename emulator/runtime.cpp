// SPDX-License-Identifier: Apache-2.0
// The part of the CUDA runtime that src/device/cuda uses, on host memory and queues: linked instead of
// cudart.
//
// Copies are always as late as a copy from and to page-locked memory may be. What is wrong in a test's own
// way of using CUDA (a copy beyond an allocation, memory that is no device's) is thrown as Error rather than
// returned.
#include <cuda_runtime.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>

#include "emulator/capture.hpp"
#include "emulator/control.hpp"
#include "emulator/memory.hpp"
#include "emulator/streams.hpp"
#include "llampi/core/error.hpp"

struct CUevent_st {
  const bool has_time;
  std::shared_ptr<llampi::emulator::Point> point = {};  ///< null: not recorded yet
  bool polled = false;                                  ///< and not reached then
};

namespace llampi::emulator {
namespace {

constexpr std::size_t kTotalBytes = std::size_t{8} << 30;

cudaError_t& last_error() {
  static cudaError_t error = cudaSuccess;
  return error;
}

cudaError_t result(cudaError_t status) {
  if (status != cudaSuccess) last_error() = status;
  return status;
}

int host_waits = 0;

/// The host waits here, if there is something to wait for.
void count_wait(bool unfinished) { host_waits += unfinished ? 1 : 0; }

void wait_for_all_of(cudaStream_t stream) {
  count_wait(!is_empty(stream));
  run_stream(stream);
}

/// The end of a poll, if this is one.
cudaError_t end_poll(bool& polled) {
  count_wait(std::exchange(polled, false));
  return cudaSuccess;
}
cudaError_t poll_again(bool& polled) {
  polled = true;
  return cudaErrorNotReady;
}

/// For what is not allowed while a stream is captured.
bool is_captured() { return result(Capture::forbid()) != cudaSuccess; }

cudaError_t release(Allocations& allocations, void* data) {
  if (data == nullptr) return cudaSuccess;
  if (is_captured()) return cudaErrorStreamCaptureUnsupported;
  count_wait(is_any_busy());
  run_all();  // freeing waits for the device
  return result(allocations.release(data) ? cudaSuccess : cudaErrorInvalidValue);
}

/// A copy that is captured takes place later: memory that is neither a device's nor page-locked may be gone.
bool stays_in_place(cudaStream_t stream, const void* memory) {
  return stream == nullptr || !stream->capture || device_memory().contains(memory) ||
         host_memory().contains(memory);
}

/// Both ends are where `kind` says, and inside of their allocations.
bool ends_fit(void* destination, const void* source, std::size_t bytes, cudaMemcpyKind kind) {
  for (const Allocations* allocations : {&device_memory(), &host_memory()}) {
    allocations->check(destination, bytes, "destination of a copy");
    allocations->check(source, bytes, "source of a copy");
  }
  if (kind == cudaMemcpyDefault || bytes == 0) return true;
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  return device_memory().contains(destination) == to_device &&
         device_memory().contains(source) == from_device;
}

}  // namespace

int take_host_waits() { return std::exchange(host_waits, 0); }

}  // namespace llampi::emulator

using namespace llampi::emulator;  // the definitions below are all that follows

extern "C" {

// ---- the device ----
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) { return result(device == 0 ? cudaSuccess : cudaErrorInvalidDevice); }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device != 0) return result(cudaErrorInvalidDevice);
  *properties = {};
  std::strncpy(properties->name, "emulated GPU", sizeof(properties->name) - 1);
  properties->totalGlobalMem = kTotalBytes;
  properties->major = 9;
  if (const char* const major = std::getenv("EMULATED_GPU_MAJOR")) properties->major = std::atoi(major);

  properties->multiProcessorCount = 3;  // odd and small: loops over a grid have more than one turn
  properties->warpSize = 32;
  properties->maxThreadsPerBlock = 1024;
  properties->maxThreadsPerMultiProcessor = 2048;
  properties->sharedMemPerBlock = std::size_t{48} << 10;
  properties->sharedMemPerBlockOptin = std::size_t{227} << 10;
  properties->sharedMemPerMultiprocessor = std::size_t{228} << 10;
  properties->regsPerBlock = 65536;
  properties->l2CacheSize = 50 << 20;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  cudaDeviceProp properties;
  if (const cudaError_t status = cudaGetDeviceProperties(&properties, device); status != cudaSuccess)
    return status;
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      *value = properties.multiProcessorCount;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(properties.sharedMemPerBlockOptin);
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
      *value = properties.major;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = properties.minor;
      return cudaSuccess;
    default:
      return result(cudaErrorNotSupported);
  }
}
cudaError_t cudaDeviceGetPCIBusId(char* text, int bytes, int device) {
  if (device != 0) return result(cudaErrorInvalidDevice);
  std::strncpy(text, "0000:00:00.0", static_cast<std::size_t>(bytes));
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(std::size_t* free_bytes, std::size_t* total_bytes) {
  *free_bytes = kTotalBytes - device_memory().used();
  *total_bytes = kTotalBytes;
  return cudaSuccess;
}

// ---- errors ----
cudaError_t cudaGetLastError() { return std::exchange(last_error(), cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return last_error(); }
const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaSuccess ? "cudaSuccess" : "an error of the emulated runtime";
}
const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    case cudaErrorNotReady:
      return "device not ready";
    case cudaErrorStreamCaptureUnsupported:
      return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureInvalidated:
      return "operation failed due to a previous error during capture";
    case cudaErrorStreamCaptureUnjoined:
      return "capturing stream has unjoined work";
    case cudaErrorStreamCaptureIsolation:
      return "dependency created on uncaptured work in another stream";
    case cudaErrorCapturedEvent:
      return "operation not permitted on an event last recorded in a capturing stream";
    default:
      return "an error of the emulated runtime";
  }
}

// ---- memory ----
cudaError_t cudaMalloc(void** data, std::size_t bytes) {
  *data = nullptr;
  if (is_captured()) return cudaErrorStreamCaptureUnsupported;
  if (bytes == 0) return cudaSuccess;
  if (device_memory().used() + bytes > kTotalBytes) return result(cudaErrorMemoryAllocation);
  *data = device_memory().allocate(bytes);
  return cudaSuccess;
}
cudaError_t cudaFree(void* data) { return release(device_memory(), data); }
cudaError_t cudaHostAlloc(void** data, std::size_t bytes, unsigned) {
  *data = nullptr;
  if (is_captured()) return cudaErrorStreamCaptureUnsupported;
  if (bytes > 0) *data = host_memory().allocate(bytes);
  return cudaSuccess;
}
cudaError_t cudaMallocHost(void** data, std::size_t bytes) { return cudaHostAlloc(data, bytes, 0); }
cudaError_t cudaFreeHost(void* data) { return release(host_memory(), data); }
cudaError_t cudaHostRegister(void*, std::size_t, unsigned) { return cudaSuccess; }
cudaError_t cudaHostUnregister(void*) { return cudaSuccess; }
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* data) {
  *attributes = {};
  attributes->type = cudaMemoryTypeUnregistered;
  if (device_memory().contains(data)) attributes->type = cudaMemoryTypeDevice;
  if (host_memory().contains(data)) attributes->type = cudaMemoryTypeHost;
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* destination, const void* source, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  if (!ends_fit(destination, source, bytes, kind)) return result(cudaErrorInvalidValue);
  if (!stays_in_place(stream, destination) || !stays_in_place(stream, source))
    return result(Capture::forbid());
  enqueue(stream, [=] { std::memmove(destination, source, bytes); });
  return cudaSuccess;
}
cudaError_t cudaMemcpy2DAsync(void* destination, std::size_t destination_row, const void* source,
                              std::size_t source_row, std::size_t width, std::size_t height,
                              cudaMemcpyKind kind, cudaStream_t stream) {
  if (width > destination_row || width > source_row) return result(cudaErrorInvalidPitchValue);
  if (height == 0 || width == 0) return cudaSuccess;
  auto* const to = static_cast<std::byte*>(destination);
  const auto* const from = static_cast<const std::byte*>(source);
  for (std::size_t row = 0; row < height; ++row) {
    if (!ends_fit(to + row * destination_row, from + row * source_row, width, kind))
      return result(cudaErrorInvalidValue);
  }
  if (!stays_in_place(stream, destination) || !stays_in_place(stream, source))
    return result(Capture::forbid());
  enqueue(stream, [=] {
    for (std::size_t row = 0; row < height; ++row)
      std::memmove(to + row * destination_row, from + row * source_row, width);
  });
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* destination, const void* source, std::size_t bytes, cudaMemcpyKind kind) {
  if (is_captured()) return cudaErrorStreamCaptureUnsupported;
  const cudaError_t status = cudaMemcpyAsync(destination, source, bytes, kind, nullptr);
  wait_for_all_of(nullptr);
  return status;
}
cudaError_t cudaMemsetAsync(void* destination, int value, std::size_t bytes, cudaStream_t stream) {
  if (bytes > 0 && !device_memory().contains(destination)) return result(cudaErrorInvalidValue);
  device_memory().check(destination, bytes, "cudaMemsetAsync");
  enqueue(stream, [=] { std::memset(destination, value, bytes); });
  return cudaSuccess;
}
cudaError_t cudaMemset(void* destination, int value, std::size_t bytes) {
  if (is_captured()) return cudaErrorStreamCaptureUnsupported;
  const cudaError_t status = cudaMemsetAsync(destination, value, bytes, nullptr);
  wait_for_all_of(nullptr);
  return status;
}

// ---- streams ----
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  auto created = std::make_unique<CUstream_st>();
  created->flags = flags;
  created->priority = priority;
  add_stream(created.get());
  *stream = created.release();
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithPriority(stream, 0, 0); }
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const std::unique_ptr<CUstream_st> owned(stream);
  run_stream(stream);
  remove_stream(stream);
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (is_captured()) return cudaErrorStreamCaptureUnsupported;
  wait_for_all_of(stream);
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  if (is_captured()) return cudaErrorStreamCaptureUnsupported;
  if (is_empty(stream)) return end_poll(queue_of(stream).polled);
  run_one(stream);
  return poll_again(queue_of(stream).polled);
}
cudaError_t cudaDeviceSynchronize() {
  if (is_captured()) return cudaErrorStreamCaptureUnsupported;
  count_wait(is_any_busy());
  run_all();
  return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  enqueue(stream, [=] { function(data); });
  return cudaSuccess;
}

// ---- events ----
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  *event = std::make_unique<CUevent_st>((flags & cudaEventDisableTiming) == 0).release();
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const std::unique_ptr<CUevent_st> owned(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  event->point = mark(stream);
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  return event->point ? result(wait_for(stream, event->point)) : cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (is_captured()) return cudaErrorStreamCaptureUnsupported;
  if (event->point && event->point->capture) return result(cudaErrorCapturedEvent);
  if (!event->point || event->point->reached) return end_poll(event->polled);
  run_one(event->point->stream);
  return poll_again(event->polled);
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (!is_working_thread()) {
    if (event->point) event->point->reached.wait(false);
    return cudaSuccess;
  }
  if (is_captured()) return cudaErrorStreamCaptureUnsupported;
  if (event->point && event->point->capture) return result(cudaErrorCapturedEvent);
  count_wait(event->point && !event->point->reached);
  if (event->point) run_until(*event->point);
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  for (const cudaEvent_t event : {begin, end}) {
    if (!event->has_time || !event->point) return result(cudaErrorInvalidResourceHandle);
    if (event->point->capture) return result(cudaErrorCapturedEvent);
    if (!event->point->reached) return result(cudaErrorNotReady);
  }
  *milliseconds = static_cast<float>((end->point->seconds - begin->point->seconds) * 1e3);
  return cudaSuccess;
}

// ---- kernels ----
cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
  return result(value >= 0 && allow_shared(kernel, static_cast<std::size_t>(value)) ? cudaSuccess
                                                                                    : cudaErrorInvalidValue);
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int, std::size_t) {
  *blocks = 2;
  return cudaSuccess;
}

}  // extern "C"
