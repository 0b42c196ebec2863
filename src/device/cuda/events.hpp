// SPDX-License-Identifier: Apache-2.0
// Events, used again: a step records hundreds, and making one costs more than recording it.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "device/cuda/common.hpp"
#include "llampi/device/runtime.hpp"

namespace llampi::device::cuda {

/// For one thread, as the device itself.
class EventPool {
 public:
  enum class Kind : unsigned { order = cudaEventDisableTiming, time = cudaEventDefault };

  explicit EventPool(Kind kind) : kind_(kind) {}
  EventPool(const EventPool&) = delete;
  EventPool& operator=(const EventPool&) = delete;
  ~EventPool() {
    for (const cudaEvent_t event : free_) cudaEventDestroy(event);
  }

  cudaEvent_t take() {
    if (free_.empty()) {
      cudaEvent_t event = nullptr;
      check(cudaEventCreateWithFlags(&event, static_cast<unsigned>(kind_)), "cudaEventCreateWithFlags");
      free_.reserve(++made_);  // so that give() does not allocate
      return event;
    }
    const cudaEvent_t event = free_.back();
    free_.pop_back();
    return event;
  }
  void give(cudaEvent_t event) noexcept { free_.push_back(event); }

 private:
  Kind kind_;
  std::vector<cudaEvent_t> free_;
  std::size_t made_ = 0;
};

/// Goes back to the pool when it is destroyed. What waits for it goes on waiting for the point that was
/// recorded, also when it is recorded anew.
class PooledEvent final : public Event::Impl {
 public:
  explicit PooledEvent(std::shared_ptr<EventPool> pool) : pool_(std::move(pool)), event_(pool_->take()) {}
  PooledEvent(const PooledEvent&) = delete;
  PooledEvent& operator=(const PooledEvent&) = delete;
  ~PooledEvent() override { pool_->give(event_); }
  cudaEvent_t get() const { return event_; }

 private:
  std::shared_ptr<EventPool> pool_;
  cudaEvent_t event_;
};

}  // namespace llampi::device::cuda
