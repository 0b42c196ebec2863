// SPDX-License-Identifier: Apache-2.0
// Memory, streams and events.
#include "device/cuda/cuda_device.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "device/cuda/events.hpp"
#include "device/cuda/gemm_sizes.hpp"
#include "llampi/core/text.hpp"

namespace llampi::device::cuda {
namespace {

constexpr std::int64_t kAlignment = 4096;  // promised by Memory; CUDA promises 256
constexpr int kShortPauses = 1000;
constexpr auto kLongPause = std::chrono::microseconds(50);

std::string name_of(const cudaDeviceProp& properties, int gpu) {
  return fmt::format("GPU {} ({})", gpu, properties.name);
}

std::string bus_id(int gpu) {
  char text[32] = {};
  check(cudaDeviceGetPCIBusId(text, sizeof text, gpu), "cudaDeviceGetPCIBusId");
  return text;
}

cudaEvent_t native(const Event& event) { return static_cast<const PooledEvent*>(event.get())->get(); }

/// Memory that starts at a page. @param allocate of CUDA, named `call`
/// @param shortage "of what cannot be allocated; what to do"
template <class Allocate, class Shortage>
Memory aligned_memory(std::int64_t bytes, const char* call, const Allocate& allocate,
                      cudaError_t (*free)(void*), const Shortage& shortage) {
  void* base = nullptr;
  const cudaError_t status = allocate(&base, static_cast<std::size_t>(bytes + kAlignment));
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // or the next check would report it again
    throw OutOfMemory(fmt::format("out of memory: {} {}", format_bytes(bytes), shortage()));
  }
  check(status, call);
  const auto address = reinterpret_cast<std::uintptr_t>(base);
  auto* const begin = static_cast<std::byte*>(base) + (kAlignment - address % kAlignment) % kAlignment;
  return Memory(begin, bytes, [base, free](void*) { free(base); });
}

}  // namespace

CudaDevice::CudaDevice(const GpuOptions& options)
    : options_(options),
      events_(std::make_shared<EventPool>(EventPool::Kind::order)),
      timed_events_(std::make_shared<EventPool>(EventPool::Kind::time)) {
  check(cudaSetDevice(options.gpu), "cudaSetDevice");
  check(cudaGetDeviceProperties(&properties_, options.gpu), "cudaGetDeviceProperties");
  if (properties_.major < kOldestGpu) {
    throw_user_error("{} has compute capability {}.{}, but the kernels need {}.0 or newer; compute on CPUs",
                     name_of(properties_, options.gpu), properties_.major, properties_.minor, kOldestGpu);
  }
  int driver = 0;
  check(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
  if (options.product_sms > properties_.multiProcessorCount)
    throw_user_error("fsdp.product_sms = {}: {} has {} multiprocessors", options.product_sms,
                     name_of(properties_, options.gpu), properties_.multiProcessorCount);
  gemm_ = std::make_unique<Gemm>(
      options.deterministic, options.tf32,
      fmt::format("{}, driver {}.{}", properties_.name, driver / 1000, driver % 1000 / 10),
      options.product_sms);
  if (options.attention != GpuAttention::native) cudnn_ = make_cudnn_attention(options.deterministic);
  if (options.attention == GpuAttention::cudnn && !cudnn_)
    throw_user_error(
        "attention by cuDNN is asked for, but this program was built without cuDNN's C++ frontend");

  // Communication goes first, so that it is not held up by kernels that fill the GPU.
  int lowest = 0, highest = 0;
  check(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "cudaDeviceGetStreamPriorityRange");
  for (const Stream stream : kDeviceStreams) {
    const int usual = std::max(highest, lowest - 1);  // lower numbers go first
    const int priority = stream.is_urgent() ? highest : stream == Stream::compute ? usual : lowest;
    check(cudaStreamCreateWithPriority(&streams_[stream.index()], cudaStreamNonBlocking, priority),
          "cudaStreamCreateWithPriority");
  }
}

CudaDevice::~CudaDevice() {
  for (const cudaStream_t stream : streams_) {
    if (stream != nullptr) cudaStreamDestroy(stream);
  }
}

cudaStream_t CudaDevice::stream(Stream stream) const {
  require(stream != Stream::host, "the host has no stream");
  return streams_[stream.index()];
}

std::string CudaDevice::describe() const {
  return fmt::format("{} ({}), {}, attention {}", properties_.name, bus_id(options_.gpu),
                     product_library_version(), cudnn_ ? cudnn_->describe() : "native");
}

// ---- memory
// ------------------------------------------------------------------------------------------------------

Memory CudaDevice::allocate(std::int64_t bytes) {
  require(bytes >= 0, "memory of negative size");
  if (bytes == 0) return {};
  Memory memory = aligned_memory(
      bytes, "cudaMalloc", [](void** base, std::size_t size) { return cudaMalloc(base, size); }, cudaFree,
      [&] {
        return fmt::format(
            "of {}, which has {} left, cannot be allocated; look for other processes on the GPU (nvidia-smi), or lower "
            "train.micro_batch, recompute more (activation.checkpointing) or use more ranks",
            name_of(properties_, options_.gpu), format_bytes(available_bytes(1)));
      });
  check(cudaMemsetAsync(memory.data(), 0, static_cast<std::size_t>(bytes), compute()), "cudaMemsetAsync");
  synchronize(Stream::compute);  // any stream may use it
  return memory;
}

Memory CudaDevice::allocate_host(std::int64_t bytes) {
  require(bytes >= 0, "memory of negative size");
  if (bytes == 0) return {};
  Memory memory = aligned_memory(
      bytes, "cudaHostAlloc",
      [](void** base, std::size_t size) { return cudaHostAlloc(base, size, cudaHostAllocPortable); },
      cudaFreeHost,
      [] {
        return "of page-locked host memory cannot be allocated; request more (--mem), offload less or use more ranks";
      });
  std::memset(memory.data(), 0, static_cast<std::size_t>(bytes));
  return memory;
}

void CudaDevice::set_workspace(Tensor workspace) {
  require(workspace.bytes() >= sizes_->shared_workspace(), "the shared workspace is too small");
  workspace_ = workspace;
}

std::int64_t CudaDevice::available_bytes(int local_ranks) const {
  std::size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return static_cast<std::int64_t>(free) / std::clamp(local_ranks, 1, std::max(1, options_.ranks));
}

void CudaDevice::upload(Tensor destination, const void* source, Stream stream) {
  if (destination.bytes() == 0) return;
  check(cudaMemcpyAsync(destination.data, source, static_cast<std::size_t>(destination.bytes()),
                        cudaMemcpyDefault, this->stream(stream)),
        "cudaMemcpyAsync to the device");
}

void CudaDevice::download(void* destination, Tensor source, Stream stream) {
  if (source.bytes() == 0) return;
  check(cudaMemcpyAsync(destination, source.data, static_cast<std::size_t>(source.bytes()), cudaMemcpyDefault,
                        this->stream(stream)),
        "cudaMemcpyAsync from the device");
}

bool CudaDevice::is_host_memory(const void* memory) const {
  cudaPointerAttributes attributes{};
  check(cudaPointerGetAttributes(&attributes, memory), "cudaPointerGetAttributes");
  return attributes.type == cudaMemoryTypeHost || attributes.type == cudaMemoryTypeUnregistered;
}

// ---- order
// -------------------------------------------------------------------------------------------------------

bool CudaDevice::is_reached(const Event& event) const {
  const cudaError_t status = cudaEventQuery(native(event));
  if (status == cudaErrorNotReady) {
    cudaGetLastError();  // no error, and not to be taken for one of the next launch
    return false;
  }
  check(status, "cudaEventQuery");
  return true;
}

Event CudaDevice::record(Stream stream) { return stream == Stream::host ? Event() : record(stream, events_); }

Event CudaDevice::record_timed(Stream stream) { return record(stream, timed_events_); }

Event CudaDevice::record(Stream stream, const std::shared_ptr<EventPool>& pool) {
  auto event = std::make_unique<PooledEvent>(pool);
  check(cudaEventRecord(event->get(), this->stream(stream)), "cudaEventRecord");
  return Event(std::move(event));
}

double CudaDevice::seconds_between(const Event& begin, const Event& end) const {
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, native(begin), native(end)), "cudaEventElapsedTime");
  return static_cast<double>(milliseconds) / 1e3;
}

void CudaDevice::wait(Stream stream, const Event& event) {
  if (event.get() == nullptr) return;
  const cudaEvent_t point = native(event);
  if (stream == Stream::host) {
    if (progress_) return poll([point] { return cudaEventQuery(point); }, "cudaEventQuery");
    check(cudaEventSynchronize(point), "cudaEventSynchronize");
  } else {
    check(cudaStreamWaitEvent(this->stream(stream), point, 0), "cudaStreamWaitEvent");
  }
}

/// A thread that has not said which GPU is its own would get a context on the first one.
void CudaDevice::wait_in_any_thread(const Event& event) const {
  if (event.get() == nullptr) return;
  check(cudaSetDevice(options_.gpu), "cudaSetDevice");
  check(cudaEventSynchronize(native(event)), "cudaEventSynchronize");
}

void CudaDevice::synchronize(Stream stream) {
  if (stream == Stream::host) return;
  const cudaStream_t queue = this->stream(stream);
  if (progress_) return poll([queue] { return cudaStreamQuery(queue); }, stream.name());
  check(cudaStreamSynchronize(queue), stream.name());
}

void CudaDevice::poll(const std::function<cudaError_t()>& query, const char* what) const {
  for (int pauses = 0;; ++pauses) {
    const cudaError_t status = query();
    if (status != cudaErrorNotReady) return check(status, what);
    cudaGetLastError();  // no error, and not to be taken for one of the next launch
    progress_();
    if (pauses < kShortPauses) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kLongPause);
    }
  }
}

void CudaDevice::set_progress(std::function<void()> progress) { progress_ = std::move(progress); }

}  // namespace llampi::device::cuda
