// SPDX-License-Identifier: Apache-2.0
#include "emulator/streams.hpp"

#include <algorithm>
#include <map>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "emulator/block.hpp"
#include "emulator/capture.hpp"
#include "emulator/memory.hpp"
#include "llampi/core/error.hpp"

namespace llampi::emulator {
namespace {

constexpr std::size_t kUsualShared = std::size_t{48} << 10, kMostShared = std::size_t{227} << 10;

class Streams {
 public:
  void set_order(StreamOrder order, std::uint64_t seed);
  void add(cudaStream_t stream) { streams_.push_back(stream); }
  void remove(cudaStream_t stream) { std::erase(streams_, stream); }
  CUstream_st& of(cudaStream_t stream);

  void push(cudaStream_t stream, Task task);
  void run_until(const Point& point);
  void run_one(CUstream_st& stream);
  void run_stream(CUstream_st& stream);
  void run_all();
  void run_some();
  bool is_any_busy() const {
    return std::ranges::any_of(streams_, [](cudaStream_t stream) { return !stream->tasks.empty(); });
  }
  bool is_working_thread() const { return std::this_thread::get_id() == thread_; }

 private:
  static bool is_allowed(const CUstream_st& stream) {
    if (stream.tasks.empty()) return false;
    const auto after = stream.tasks.front().awaited();
    return !after || after->reached;
  }
  /// Does one task that the events allow, of any stream. False if there is none.
  bool run_any();
  void run_allowed(CUstream_st& stream);
  void drop_all();

  CUstream_st default_;
  std::vector<cudaStream_t> streams_{&default_};
  const std::thread::id thread_ = std::this_thread::get_id();  ///< the first to ask for a stream
  StreamOrder order_ = StreamOrder::eager;
  bool working_ = false;  ///< at a task
  std::mt19937_64 random_;
};

void Streams::set_order(StreamOrder order, std::uint64_t seed) {
  run_all();
  order_ = order;
  random_.seed(seed);
}

CUstream_st& Streams::of(cudaStream_t stream) {
  if (stream == nullptr) return default_;
  require(std::find(streams_.begin(), streams_.end(), stream) != streams_.end(),
          "a stream that does not exist");
  return *stream;
}

void Streams::push(cudaStream_t stream, Task task) {
  require(is_working_thread(), "work for a stream from another thread, which is not emulated");
  require(!in_kernel(), "a CUDA call in a kernel");
  CUstream_st& queue = of(stream);
  queue.tasks.push_back(std::move(task));
  if (order_ == StreamOrder::eager) run_stream(queue);
  // Not in the middle of other work, behind which its stream and those that wait for it would overtake it.
  if (order_ == StreamOrder::random && !working_) {
    const DeviceWork work;
    while (random_() % 3 == 0 && run_any()) {
    }
  }
}

void Streams::run_allowed(CUstream_st& stream) {
  require(is_allowed(stream), "a stream that goes on before the event that it waits for");
  const Task task = std::move(stream.tasks.front());
  stream.tasks.pop_front();
  const bool nested = std::exchange(working_, true);  // with eager streams
  try {
    if (task.work) task.work();
  } catch (...) {
    working_ = nested;
    drop_all();
    throw;
  }
  working_ = nested;
  if (task.reaches) task.reaches->reach();
}

/// After a fault nothing that follows means anything; points count as reached so that nobody waits for them.
void Streams::drop_all() {
  for (const cudaStream_t stream : streams_) {
    for (const Task& task : stream->tasks) {
      if (task.reaches) task.reaches->reach();
    }
    stream->tasks.clear();
  }
}

bool Streams::run_any() {
  std::vector<cudaStream_t> allowed;
  std::copy_if(streams_.begin(), streams_.end(), std::back_inserter(allowed),
               [](cudaStream_t stream) { return is_allowed(*stream); });
  if (allowed.empty()) return false;
  run_allowed(*allowed[random_() % allowed.size()]);
  return true;
}

void Streams::run_one(CUstream_st& stream) {
  if (stream.tasks.empty()) return;
  const DeviceWork work;
  if (const auto after = stream.tasks.front().awaited()) run_until(*after);
  if (!stream.tasks.empty()) run_allowed(stream);
}

// A stream waits only for points that were marked before, so this ends.
void Streams::run_until(const Point& point) {
  const DeviceWork work;
  while (!point.reached) {
    if (order_ == StreamOrder::random) {
      require(run_any(), "streams that wait for each other");
    } else {
      run_one(*point.stream);
    }
  }
}

void Streams::run_stream(CUstream_st& stream) {
  const DeviceWork work;
  while (!stream.tasks.empty()) {
    if (order_ == StreamOrder::random) {
      run_any();
    } else {
      run_one(stream);
    }
  }
}

void Streams::run_all() {
  const DeviceWork work;
  for (const cudaStream_t stream : streams_) run_stream(*stream);
}

void Streams::run_some() {
  const DeviceWork work;
  run_any();
}

Streams& streams() {
  static Streams all;
  return all;
}

std::map<const void*, std::size_t>& allowed_shared() {
  static std::map<const void*, std::size_t> bytes;
  return bytes;
}

}  // namespace

void enqueue(cudaStream_t stream, std::function<void()> work) {
  CUstream_st& queue = streams().of(stream);
  if (queue.capture) return queue.capture->record(queue, {std::move(work), {}, {}});
  streams().push(stream, {std::move(work), {}, {}});
}

std::shared_ptr<Point> mark(cudaStream_t stream) {
  CUstream_st& queue = streams().of(stream);
  if (queue.capture) return queue.capture->mark(queue);
  const auto point = std::make_shared<Point>(&queue);
  streams().push(stream, {{}, {}, point});
  return point;
}

cudaError_t wait_for(cudaStream_t stream, const std::shared_ptr<Point>& point) {
  CUstream_st& queue = streams().of(stream);
  if (queue.capture || point->capture) return Capture::wait(queue, point);
  if (point->stream != &queue) streams().push(stream, {{}, point, {}});
  return cudaSuccess;
}

void wait_for_what(cudaStream_t stream, std::function<std::shared_ptr<Point>()> point) {
  CUstream_st& queue = streams().of(stream);
  Task task{{}, {}, {}, std::move(point)};
  if (queue.capture) return queue.capture->record(queue, std::move(task));
  streams().push(stream, std::move(task));
}

void push(cudaStream_t stream, Task task) { streams().push(stream, std::move(task)); }

void run_until(const Point& point) { streams().run_until(point); }
void run_stream(cudaStream_t stream) { streams().run_stream(streams().of(stream)); }
void run_all() { streams().run_all(); }
void run_one(cudaStream_t stream) { streams().run_one(streams().of(stream)); }
void run_some() { streams().run_some(); }
bool is_working_thread() { return streams().is_working_thread(); }
bool is_empty(cudaStream_t stream) { return streams().of(stream).tasks.empty(); }
bool is_any_busy() { return streams().is_any_busy(); }
CUstream_st& queue_of(cudaStream_t stream) { return streams().of(stream); }
void add_stream(cudaStream_t stream) { streams().add(stream); }
void remove_stream(cudaStream_t stream) { streams().remove(&streams().of(stream)); }

void set_stream_order(StreamOrder order, std::uint64_t seed) { streams().set_order(order, seed); }

void check_launch_shape(const void* kernel, dim3 grid, dim3 block, std::size_t shared_bytes) {
  const std::size_t threads = std::size_t{block.x} * block.y * block.z;
  const bool grid_fits = grid.x >= 1 && grid.x < (1U << 31) && grid.y >= 1 && grid.y < (1U << 16) &&
                         grid.z >= 1 && grid.z < (1U << 16);
  const auto allowed = allowed_shared().find(kernel);
  const std::size_t most_shared = allowed == allowed_shared().end() ? kUsualShared : allowed->second;
  if (grid_fits && threads >= 1 && threads <= 1024 && block.z <= 64 && shared_bytes <= most_shared) return;
  throw Error(
      fmt::format("a GPU refuses this launch: grid ({}, {}, {}), block ({}, {}, {}) and {} bytes of dynamic "
                  "shared memory, of which the kernel may have {}",
                  grid.x, grid.y, grid.z, block.x, block.y, block.z, shared_bytes, most_shared));
}

bool allow_shared(const void* kernel, std::size_t bytes) {
  if (bytes > kMostShared) return false;
  std::size_t& allowed = allowed_shared()[kernel];
  allowed = std::max(bytes, kUsualShared);
  return true;
}

}  // namespace llampi::emulator
