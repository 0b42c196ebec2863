// SPDX-License-Identifier: Apache-2.0
#include "emulator/block.hpp"

#include <algorithm>
#include <array>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "emulator/faults.hpp"
#include "emulator/fiber.hpp"
#include "emulator/guarded_memory.hpp"
#include "emulator/static_shared.hpp"
#include "llampi/core/error.hpp"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace llampi::emulator {

int current_thread = -1;

namespace {

constexpr std::size_t kStackBytes = std::size_t{256} << 10;
constexpr std::size_t kMostShared = std::size_t{227} << 10;

std::string text_of(llampi::SourceLocation where) {
  const std::string path = where.file_name();
  return fmt::format("{}:{}", path.substr(path.rfind('/') + 1), where.line());
}
std::string text_of(uint3 index) { return fmt::format("({}, {}, {})", index.x, index.y, index.z); }

/// Where some threads wait for the others.
struct Meeting {
  std::optional<llampi::SourceLocation> where;  ///< of those that have come
  std::vector<int> waiting;

  /// @throws Error if this thread comes to another place than those that are there
  void come(llampi::SourceLocation here, uint3 thread) {
    if (where && !same(*where, here)) {
      throw Error(fmt::format("thread {} meets at {} the threads that wait at {}", text_of(thread),
                              text_of(here), text_of(*where)));
    }
    where = here;
  }
  static bool same(const llampi::SourceLocation& a, const llampi::SourceLocation& b) {
    return a.line() == b.line() &&
           (a.file_name() == b.file_name() || std::strcmp(a.file_name(), b.file_name()) == 0);
  }
};

struct Warp {
  Meeting meeting;
  int phase = 0;
  /// Two sets of values, in turn: one is written while the last is still read.
  alignas(16) std::byte values[2][kWarp * kLaneBytes];
};

/// Threads that may run, in order: a ring.
class ReadyThreads {
 public:
  bool empty() const { return count_ == 0; }
  void clear() { count_ = 0; }
  int take_first() {
    const int thread = places_[first_];
    first_ = (first_ + 1) % kMostThreads;
    --count_;
    return thread;
  }
  int take_last() { return places_[(first_ + --count_) % kMostThreads]; }
  void add_at_end(const std::vector<int>& threads) {
    for (const int thread : threads) places_[(first_ + count_++) % kMostThreads] = thread;
  }
  void add_at_start(const std::vector<int>& threads) {
    first_ = (first_ + kMostThreads - threads.size()) % kMostThreads;
    count_ += threads.size();
    for (std::size_t i = 0; i < threads.size(); ++i) places_[(first_ + i) % kMostThreads] = threads[i];
  }

 private:
  static constexpr std::size_t kMostThreads = 1024;  // of a block; a power of two
  std::array<int, kMostThreads> places_;
  std::size_t first_ = 0, count_ = 0;
};

struct Thread {
  uint3 index{};
  bool done = false;
  std::unique_ptr<Fiber> fiber;
};

class Block {
 public:
  Block() { explain_faults(); }  // before a kernel touches shared variables
  void run(dim3 shape, std::size_t shared_bytes, const std::function<void()>& body);
  void set_order(ThreadOrder order, std::uint64_t seed) {
    order_ = order;
    random_.seed(static_cast<std::minstd_rand::result_type>(seed));
  }

  std::byte* shared() const { return shared_; }
  bool is_shared(const void* address) const {
    const auto lies_in = [address](const void* begin, const void* end) {
      return !std::less<>()(address, begin) && std::less<>()(address, end);
    };
    return lies_in(shared_, shared_memory_.end()) ||
           lies_in(static_shared_.memory().data(),
                   static_shared_.memory().data() + static_shared_.memory().size());
  }
  StaticShared& static_shared() { return static_shared_; }
  void meet_all(llampi::SourceLocation where);
  int count(bool predicate, llampi::SourceLocation where);
  void meet_warp(llampi::SourceLocation where) { meet(whole_warp(where), where); }
  const std::byte* show_to_warp(const void* value, std::size_t bytes, llampi::SourceLocation where);

 private:
  void prepare(dim3 shape);
  void prepare_shared(std::size_t bytes);
  /// Of the current thread. @throws Error if it is not whole
  Warp& whole_warp(llampi::SourceLocation where);
  void meet(Warp& warp, llampi::SourceLocation where);
  Fiber* thread_main(int thread);
  /// The current thread gives way until it is made ready again.
  void pause();
  /// The fiber to run next, whose thread becomes the current one; null after an error or if none is ready.
  Fiber* next_fiber();
  /// Which of the ready threads runs next. Forward and backward: of the warp that has run last, so that it gets far ahead of the
  /// others, on few stacks, which the processor's caches keep.
  int next();
  void make_ready(std::vector<int>& threads);
  void shuffle(std::vector<int>& threads);
  [[noreturn]] void report_stuck();
  void discard();

  std::vector<Thread> threads_;  ///< with the fibers of former blocks; the first size_ are of this block
  std::vector<std::unique_ptr<Warp>> warps_;
  Meeting barrier_;
  ReadyThreads ready_;
  int size_ = 0;
  int counted_ = 0;  ///< threads whose predicate holds, of the count that is under way
  const std::function<void()>* body_ = nullptr;
  std::exception_ptr error_;
  GuardedMemory shared_memory_{kMostShared};
  std::byte* shared_ = nullptr;
  std::size_t shared_bytes_ = 0;
  StaticShared static_shared_;
  ThreadOrder order_ = ThreadOrder::forward;
  std::minstd_rand random_;  // fast: it is asked at each operation of a warp
};

void Block::prepare(dim3 shape) {
  size_ = static_cast<int>(shape.x * shape.y * shape.z);
  while (static_cast<int>(threads_.size()) < size_) {
    const int thread = static_cast<int>(threads_.size());
    threads_.push_back({{}, false, std::make_unique<Fiber>(thread, kStackBytes, [this, thread] {
                          return thread_main(thread);
                        })});
    if (thread % kWarp == 0) warps_.push_back(std::make_unique<Warp>());
  }
  std::vector<int> all;
  for (int i = 0; i < size_; ++i) {
    const unsigned thread = static_cast<unsigned>(i);
    threads_[thread].index = {thread % shape.x, thread / shape.x % shape.y, thread / (shape.x * shape.y)};
    threads_[thread].done = false;
    all.push_back(i);
  }
  if (order_ == ThreadOrder::backward) std::reverse(all.begin(), all.end());  // as if the last had come first
  make_ready(all);
}

/// At the end of the memory, so that the guard behind it starts where the block's part ends (but for the
/// alignment).
void Block::prepare_shared(std::size_t bytes) {
  const std::size_t whole = (bytes + 127) / 128 * 128;
  shared_ = shared_memory_.end() - whole;
  shared_bytes_ = bytes;
  std::memset(shared_, 0xFF, bytes);
  std::memset(shared_ + bytes, 0xA5, whole - bytes);
  static_shared_.fill();
}

void Block::run(dim3 shape, std::size_t shared_bytes, const std::function<void()>& body) {
  body_ = &body;
  prepare(shape);
  prepare_shared(shared_bytes);
  if (Fiber* first = next_fiber()) first->start();
  const std::exception_ptr error = std::exchange(error_, nullptr);
  if (error) {
    discard();
    std::rethrow_exception(error);
  }
  if (!std::all_of(threads_.begin(), threads_.begin() + size_, [](const Thread& t) { return t.done; }))
    report_stuck();
  for (const std::byte* behind = shared_ + shared_bytes_; behind < shared_memory_.end(); ++behind) {
    if (*behind != std::byte{0xA5})
      throw Error(
          fmt::format("the kernel writes behind its {} bytes of dynamic shared memory", shared_bytes_));
  }
}

Fiber* Block::thread_main(int thread) {
  try {
    (*body_)();
  } catch (...) {
    error_ = std::current_exception();
  }
  threads_[static_cast<std::size_t>(thread)].done = true;
  return next_fiber();
}

void Block::pause() {
  Fiber& own = *threads_[static_cast<std::size_t>(current_thread)].fiber;
  own.continue_with(next_fiber());
}

Fiber* Block::next_fiber() {
  if (error_ || ready_.empty()) {
    current_thread = -1;
    return nullptr;
  }
  current_thread = next();
  const Thread& thread = threads_[static_cast<std::size_t>(current_thread)];
  threadIdx = thread.index;
  return thread.fiber.get();
}

int Block::next() { return order_ == ThreadOrder::forward ? ready_.take_first() : ready_.take_last(); }

/// By Fisher and Yates, without the divisions of std::shuffle: threads are shuffled at each operation of a warp.
void Block::shuffle(std::vector<int>& threads) {
  static_assert(decltype(random_)::max() < std::uint64_t{1} << 31);
  for (std::size_t i = threads.size(); i > 1; --i)
    std::swap(threads[i - 1], threads[std::uint64_t{random_()} * i >> 31]);
}

void Block::make_ready(std::vector<int>& threads) {
  if (order_ == ThreadOrder::backward) std::reverse(threads.begin(), threads.end());
  if (order_ == ThreadOrder::random) shuffle(threads);
  const bool first = order_ == ThreadOrder::forward || (order_ == ThreadOrder::random && random_() % 2 == 0);
  if (first) {
    ready_.add_at_start(threads);
  } else {
    ready_.add_at_end(threads);
  }
  threads.clear();
}

void Block::meet_all(llampi::SourceLocation where) {
  barrier_.come(where, threadIdx);
  barrier_.waiting.push_back(current_thread);
  if (static_cast<int>(barrier_.waiting.size()) == size_) {
    barrier_.where.reset();
    make_ready(barrier_.waiting);
  }
  pause();
}

/// The last to come leaves the sum; the next count starts at zero, and only after all have read this one.
int Block::count(bool predicate, llampi::SourceLocation where) {
  if (barrier_.waiting.empty()) counted_ = 0;
  counted_ += predicate ? 1 : 0;
  meet_all(where);
  const int result = counted_;
  meet_all(where);
  return result;
}

Warp& Block::whole_warp(llampi::SourceLocation where) {
  const int warp = current_thread / kWarp;
  if (warp * kWarp + kWarp > size_) {
    throw Error(fmt::format("{}: an operation of all lanes in a warp that has only {}", text_of(where),
                            size_ % kWarp));
  }
  return *warps_[static_cast<std::size_t>(warp)];
}

const std::byte* Block::show_to_warp(const void* value, std::size_t bytes, llampi::SourceLocation where) {
  Warp& warp = whole_warp(where);
  std::byte* const values = warp.values[warp.phase];
  std::memcpy(values + static_cast<std::size_t>(current_thread % kWarp) * bytes, value, bytes);
  meet(warp, where);
  return values;
}

void Block::meet(Warp& warp, llampi::SourceLocation where) {
  warp.meeting.come(where, threadIdx);
  warp.meeting.waiting.push_back(current_thread);
  if (static_cast<int>(warp.meeting.waiting.size()) == kWarp) {
    warp.phase = 1 - warp.phase;
    warp.meeting.where.reset();
    make_ready(warp.meeting.waiting);
  }
  pause();
}

void Block::report_stuck() {
  std::string text = "the threads of a block wait for each other in vain:";
  const auto add = [&](const Meeting& meeting, const char* whom) {
    if (meeting.waiting.empty()) return;
    const int first = *std::min_element(meeting.waiting.begin(), meeting.waiting.end());
    text +=
        fmt::format(" {} (first {}) wait at {} for {};", meeting.waiting.size(),
                    text_of(threads_[static_cast<std::size_t>(first)].index), text_of(*meeting.where), whom);
  };
  add(barrier_, "the block");
  for (const auto& warp : warps_) add(warp->meeting, "their warp");
  const auto returned =
      std::count_if(threads_.begin(), threads_.begin() + size_, [](const Thread& t) { return t.done; });
  text += fmt::format(" {} of {} have returned", returned, size_);
  discard();
  throw Error(text);
}

/// Fibers that were left in the middle cannot be used again.
void Block::discard() {
  threads_.clear();
  warps_.clear();
  ready_.clear();
  barrier_ = {};
}

Block& the_block() {
  static Block block;
  return block;
}

Block* running = nullptr;  ///< the_block(), once a kernel has run

Block& running_block(const char* what) {
  require(in_kernel(), what);
  return *running;
}

}  // namespace

void run_grid(dim3 grid, dim3 block, std::size_t shared_bytes, const std::function<void()>& body) {
  gridDim = grid;
  blockDim = block;
  running = &the_block();
  running->static_shared().protect();
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; ++x) {
        blockIdx = {x, y, z};
        try {
          running->run(block, shared_bytes, body);
        } catch (const std::exception& error) {
          throw Error(fmt::format("emulated kernel <<<({}, {}, {}), ({}, {}, {}), {}>>>, block {}: {}",
                                  grid.x, grid.y, grid.z, block.x, block.y, block.z, shared_bytes,
                                  text_of(blockIdx), error.what()));
        }
      }
    }
  }
}

bool allow_write_to_shared(const void* address) { return the_block().static_shared().allow_write(address); }

std::byte* dynamic_shared_memory() { return running_block("dynamic_shared() outside of a kernel").shared(); }

bool is_shared(const void* address) {
  return running_block("shared memory outside of a kernel").is_shared(address);
}

void meet_block(llampi::SourceLocation where) {
  running_block("a barrier outside of a kernel").meet_all(where);
}

void meet_warp(llampi::SourceLocation where) {
  running_block("an operation of a warp outside of a kernel").meet_warp(where);
}

const std::byte* show_to_warp(const void* value, std::size_t bytes, llampi::SourceLocation where) {
  return running_block("an operation of a warp outside of a kernel").show_to_warp(value, bytes, where);
}

int count_in_block(bool predicate, llampi::SourceLocation where) {
  return running_block("a barrier outside of a kernel").count(predicate, where);
}

void set_thread_order(ThreadOrder order, std::uint64_t seed) { the_block().set_order(order, seed); }

}  // namespace llampi::emulator
