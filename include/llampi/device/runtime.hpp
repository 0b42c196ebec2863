// SPDX-License-Identifier: Apache-2.0
// The runtime of a device: memory, copies, streams, events, captured work, ranges for profilers. What is
// computed is in operations.hpp.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "llampi/core/tensor.hpp"

namespace llampi::device {

inline constexpr int kUrgentStreams = 3;
inline constexpr int kOtherStreams = 3;
inline constexpr int kStreams = kUrgentStreams + kOtherStreams + 2;

/// A queue of work: work issued on one stream is done in order, and different streams run concurrently. This is
/// a handle: every device and every communicator has the same kStreams, told apart by number. The code that issues
/// on a stream decides what it is for (fsdp/streams.hpp); its name is for messages.
class Stream {
 public:
  /// Operations run here.
  static const Stream compute;
  /// The calling thread: what waits there blocks it, and what it has done is complete.
  static const Stream host;
  /// Of those whose work goes first where a device can choose: for communication, which kernels that fill the
  /// device must not hold up. i < kUrgentStreams.
  static constexpr Stream urgent(int i, const char* name) { return {1 + i, name}; }
  /// Low priority: uses what Stream::compute leaves free, where the device can choose. i < kOtherStreams
  static constexpr Stream other(int i, const char* name) { return {1 + kUrgentStreams + i, name}; }

  constexpr int number() const { return number_; }
  constexpr std::size_t index() const { return static_cast<std::size_t>(number_); }
  constexpr bool is_urgent() const { return number_ >= 1 && number_ <= kUrgentStreams; }
  constexpr const char* name() const { return name_; }
  friend constexpr bool operator==(Stream a, Stream b) { return a.number_ == b.number_; }

 private:
  constexpr Stream(int number, const char* name) : number_(number), name_(name) {}
  int number_;
  const char* name_;
};
inline constexpr Stream Stream::compute{0, "compute"};
inline constexpr Stream Stream::host{kStreams - 1, "host"};

/// Those that a device has: all but the host's.
inline constexpr std::array kDeviceStreams = {Stream::compute,
                                              Stream::urgent(0, "urgent"),
                                              Stream::urgent(1, "urgent"),
                                              Stream::urgent(2, "urgent"),
                                              Stream::other(0, "other"),
                                              Stream::other(1, "other"),
                                              Stream::other(2, "other")};
static_assert(kUrgentStreams == 3 && kOtherStreams == 3 && kDeviceStreams.size() == kStreams - 1);

/// A completed point of a stream. Move-only; a device that runs in the caller's thread has nothing to store
/// in it.
class Event {
 public:
  class Impl {
   public:
    virtual ~Impl() = default;
  };
  Event() = default;
  explicit Event(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
  Impl* get() const { return impl_.get(); }

 private:
  std::unique_ptr<Impl> impl_;
};

/// What was captured of a device's work, to be done again and again at one call. Move-only.
class Graph {
 public:
  class Impl {
   public:
    virtual ~Impl() = default;
    virtual std::int64_t nodes() const = 0;
  };
  Graph() = default;
  explicit Graph(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
  Impl* get() const { return impl_.get(); }
  /// Kernels and copies, which take memory of the device once it is instantiated.
  std::int64_t nodes() const { return impl_->nodes(); }

 private:
  std::unique_ptr<Impl> impl_;
};

/// Device memory, freed when destroyed. Aligned to at least 4096 bytes, filled with zeros. Move-only.
class Memory {
 public:
  Memory() = default;
  Memory(void* data, std::int64_t bytes, std::function<void(void*)> release)
      : data_(data, std::move(release)), bytes_(bytes) {}
  std::byte* data() const { return static_cast<std::byte*>(data_.get()); }
  std::int64_t bytes() const { return bytes_; }

 private:
  std::unique_ptr<void, std::function<void(void*)>> data_{nullptr, [](void*) {}};
  std::int64_t bytes_ = 0;
};

class Runtime {
 public:
  virtual ~Runtime() = default;

  // ---- memory and copies ----
  virtual Memory allocate(std::int64_t bytes) = 0;
  /// Host memory that copies to and from the device quickly and asynchronously (page-locked where that matters).
  virtual Memory allocate_host(std::int64_t bytes) = 0;
  /// Bytes that a rank could still allocate if `local_ranks` ranks of this node, of a GPU those that have it,
  /// shared what there is; a host's control group counts too. The largest number there is where unknown.
  virtual std::int64_t available_bytes(int local_ranks) const = 0;
  /// Whether the calling thread may read and write this memory itself, once streams are synchronized.
  virtual bool is_host_memory(const void* memory) const = 0;
  /// Host to device and back on `stream`; the host memory must stay valid until the stream is synchronized.
  /// A tensor that lies in host memory is copied likewise.
  virtual void upload(Tensor destination, const void* source, Stream stream) = 0;
  virtual void download(void* destination, Tensor source, Stream stream) = 0;

  // ---- order ----
  /// A point after all that was issued on `stream` so far.
  virtual Event record(Stream stream) = 0;
  /// Likewise, and the time is noted when the point is reached. Not of Stream::host, whose time is
  /// steady_seconds(), and not during capture.
  virtual Event record_timed(Stream stream) = 0;
  /// Seconds from one record_timed() to another of this device, whatever their streams. Both must be reached.
  /// A GPU is exact to about a microsecond.
  virtual double seconds_between(const Event& begin, const Event& end) const = 0;
  /// Whether what is issued is done later, while the host goes on: then only events say when.
  virtual bool runs_beside_host() const { return false; }
  /// What is issued on `stream` from now on starts after `event`; with Stream::host the caller waits for it.
  virtual void wait(Stream stream, const Event& event) = 0;
  /// The calling thread waits for `event`: it may be another than the one that uses the device, which must
  /// keep the event until then, and may wait for it too. Does not call what set_progress() was given.
  virtual void wait_in_any_thread(const Event& event) const = 0;
  /// The host waits for everything issued on `stream`.
  virtual void synchronize(Stream stream) = 0;
  /// On all streams.
  void synchronize_all();
  /// Called between operations, and again and again while the host waits for the device: communication
  /// advances, and what it throws ends the wait.
  virtual void set_progress(std::function<void()> progress) = 0;

  // ---- capture ----
  /// Whether work can be captured. If not, what follows throws Error.
  virtual bool can_capture() const { return false; }
  /// What is issued from now on, on any stream, is not done but recorded; it comes after all that is on
  /// Stream::compute. The host may neither wait for the device nor ask whether an event is reached nor
  /// allocate, and memory of the host must be allocate_host()'s. Operations and collectives must have run
  /// with the same shapes before: what is made or chosen at their first use cannot be captured.
  virtual void begin_capture();
  /// Joins all streams.
  virtual Graph end_capture();
  /// To be called once before replay(). False: the device has no memory for it.
  virtual bool instantiate(Graph& graph);
  /// Instead of end_capture() after an exception.
  virtual void drop_capture() noexcept {}
  /// Does what was captured, in the same memory, on Stream::compute: after what is there now and before what
  /// comes.
  virtual void replay(const Graph& graph);

  // ---- profilers ----
  /// Names what the host does until end_range(), for a profiler of the device; ranges may lie in each other.
  virtual void begin_range(const char* /*name*/) {}
  virtual void end_range() {}
};

/// A range of a device's profiler, from here to the end of the scope. `name` is not copied.
class Range {
 public:
  Range(Runtime& runtime, const char* name) : runtime_(runtime) { runtime.begin_range(name); }
  ~Range() { runtime_.end_range(); }
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;

 private:
  Runtime& runtime_;
};

}  // namespace llampi::device
