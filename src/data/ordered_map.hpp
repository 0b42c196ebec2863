// SPDX-License-Identifier: Apache-2.0
// Work in parallel whose results are taken in order. Private to the library.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <future>
#include <optional>
#include <semaphore>
#include <utility>

namespace llampi::data {

/// Calls take(work(item)) for every item that next() gives, until it gives nothing. next() and take() are
/// called by this thread, take() in the order of the items; work() by at most `threads` others at once. At
/// most 2 * threads items are under way. What any of them throws is thrown here, work()'s in the order of the
/// items.
template <class Item, class Result>
void map_in_order(int threads, const std::function<std::optional<Item>()>& next,
                  const std::function<Result(Item)>& work, const std::function<void(Result)>& take) {
  std::counting_semaphore<> idle(threads);
  // A thread per item costs some 0.05 ms, futures carry exceptions, and their destructors wait for the
  // threads.
  std::deque<std::future<Result>> under_way;
  const auto take_first = [&] {
    Result result = under_way.front().get();
    under_way.pop_front();
    take(std::move(result));
  };
  const auto run = [&idle, &work](Item item) {
    idle.acquire();
    struct Release {
      std::counting_semaphore<>& idle;
      ~Release() { idle.release(); }
    } release{idle};
    return work(std::move(item));
  };
  while (auto item = next()) {
    if (under_way.size() == 2 * static_cast<std::size_t>(threads)) take_first();
    under_way.push_back(std::async(std::launch::async, run, *std::move(item)));
  }
  while (!under_way.empty()) take_first();
}

}  // namespace llampi::data
