// SPDX-License-Identifier: Apache-2.0
// Work in parallel whose results are taken in order. Private to the library.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace llampi::data {

/// Threads that do tasks in the order in which these are added. Not with C++20's semaphores and atomic waits: those of libstdc++
/// lose wake-ups (GCC bug 98033).
class WorkerThreads {
 public:
  /// @throws std::system_error if there may not be so many
  explicit WorkerThreads(int threads) {
    try {
      for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
    } catch (...) {
      end();  // those that there are, which are joined
      throw;
    }
  }
  /// Tasks that no thread has begun are dropped.
  ~WorkerThreads() { end(); }
  WorkerThreads(const WorkerThreads&) = delete;
  WorkerThreads& operator=(const WorkerThreads&) = delete;

  void add(std::packaged_task<void()> task) {
    {
      const std::lock_guard lock(mutex_);
      tasks_.push_back(std::move(task));
    }
    changed_.notify_one();
  }

 private:
  void end() {
    {
      const std::lock_guard lock(mutex_);
      is_ending_ = true;
      tasks_.clear();
    }
    changed_.notify_all();
  }

  void work() {
    for (;;) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return is_ending_ || !tasks_.empty(); });
      if (is_ending_) return;
      auto task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_ending_ = false;
  std::deque<std::packaged_task<void()>> tasks_;
  std::vector<std::jthread> threads_;  // joined first
};

/// Calls take(work(item)) for every item that next() gives, until it gives nothing. next() and take() are
/// called by this thread, take() in the order of the items; work() by at most `threads` others at once. At
/// most 2 * threads items are under way. What any of them throws is thrown here, work()'s in the order of the
/// items.
template <class Item, class Result>
void map_in_order(int threads, const std::function<std::optional<Item>()>& next,
                  const std::function<Result(Item)>& work, const std::function<void(Result)>& take) {
  struct UnderWay {
    std::optional<Result> result;
    std::future<void> done;  ///< or what work() threw
  };
  std::deque<UnderWay> under_way;  // keeps the places of its elements
  WorkerThreads workers(threads);
  const auto take_first = [&] {
    under_way.front().done.get();
    Result result = *std::move(under_way.front().result);
    under_way.pop_front();
    take(std::move(result));
  };
  while (auto item = next()) {
    if (under_way.size() == 2 * static_cast<std::size_t>(threads)) take_first();
    UnderWay& place = under_way.emplace_back();
    std::packaged_task<void()> task(
        [&work, &place, item = *std::move(item)]() mutable { place.result = work(std::move(item)); });
    place.done = task.get_future();
    workers.add(std::move(task));
  }
  while (!under_way.empty()) take_first();
}

}  // namespace llampi::data
