// SPDX-License-Identifier: Apache-2.0
// NCCL, call by call. When and in which order they are made is decided above (session.hpp).
#include "comm/nccl/library.hpp"

#include <nccl.h>

#include <atomic>
#include <cstddef>
#include <cstring>
#include <map>

#include "llampi/core/error.hpp"

namespace llampi::comm::nccl {
namespace {

Result result_of(ncclResult_t result) {
  if (result == ncclSuccess) return {};
  if (result == ncclInProgress) return {Result::State::in_progress, ""};
  return {Result::State::failed, ncclGetErrorString(result)};
}

ncclDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::float64:
      return ncclFloat64;
    case DType::float32:
      return ncclFloat32;
    case DType::bfloat16:
      return ncclBfloat16;
    case DType::float16:
      return ncclFloat16;
    case DType::int64:
      return ncclInt64;
    case DType::int32:
      return ncclInt32;
    case DType::float8_e4m3fn:
    case DType::float8_e5m2:
      return ncclUint8;  // they are gathered, and never reduced
    case DType::int8_blocks:
      break;
  }
  throw Error("internal error: a dtype that NCCL does not have");
}

class NcclCommunicator final : public LibraryCommunicator {
 public:
  ncclResult_t connect(const Membership& membership) {
    configure(membership);
    ncclUniqueId id{};
    static_assert(sizeof(id) == sizeof(membership.id));
    std::memcpy(&id, &membership.id, sizeof(id));
    return ncclCommInitRankConfig(&handle_, membership.ranks, id, membership.rank, &config_);
  }
  /// NCCL writes the handle from a thread of its own before the parent is no longer in progress, which alone says when that is: the
  /// call itself may say ncclSuccess before (NCCL's user guide, "Creating more communicators" and the example of an abort;
  /// ncclCommInitChildComm() in its init.cc).
  Result split_from(const NcclCommunicator& parent, const Membership& membership) {
    configure(membership);
    parent_ = parent.handle();
    const Result result = result_of(ncclCommSplit(parent_, kOneColor, membership.rank, &handle_, &config_));
    return result.has_failed() ? result : Result{Result::State::in_progress, ""};
  }
  /// Null while it is being split from another one.
  ncclComm_t handle() const { return std::atomic_ref(handle_).load(std::memory_order_acquire); }

  Result issue(const Collective& c) override {
    const auto elements = static_cast<std::size_t>(c.elements);
    const ncclDataType_t type = type_of(c.dtype);
    const ncclRedOp_t op = c.op == ReduceOp::sum ? ncclSum : ncclMax;
    switch (c.kind) {
      case Collective::Kind::all_gather:
        return result_of(ncclAllGather(c.send, c.receive, elements, type, handle_, c.stream));
      case Collective::Kind::reduce_scatter:
        return result_of(ncclReduceScatter(c.send, c.receive, elements, type, op, handle_, c.stream));
      case Collective::Kind::all_reduce:
        return result_of(ncclAllReduce(c.send, c.receive, elements, type, op, handle_, c.stream));
      case Collective::Kind::exchange:
        return result_of(exchange(c, type));
    }
    throw Error("internal error: a collective that NCCL does not have");
  }
  Result state() override {
    if (parent_ != nullptr) {
      const Result splitting = state_of(parent_);
      if (!splitting.is_done()) return splitting;
      parent_ = nullptr;
    }
    return handle() == nullptr ? Result{Result::State::failed, "ncclCommSplit left no communicator"}
                               : state_of(handle());
  }
  // NCCL 2.28 and newer say ncclSuccess while a thread of theirs still makes the window (ncclCommWindowRegister() in dev_runtime.cc);
  // the communicator's state alone says when it is there.
  Result open_window(void* data, std::size_t bytes) override {
    const Result result =
        result_of(ncclCommWindowRegister(handle_, data, bytes, &windows_[data], NCCL_WIN_COLL_SYMMETRIC));
    return result.has_failed() ? result : Result{Result::State::in_progress, ""};
  }
  bool has_window(void* data) const override {
    const auto window = windows_.find(data);
    return window != windows_.end() && window->second != nullptr;
  }
  Result close_window(void* data) override {
    const auto window = windows_.find(data);
    if (window == windows_.end()) return {};
    const ncclWindow_t handle = window->second;
    windows_.erase(window);
    return handle == nullptr ? Result() : result_of(ncclCommWindowDeregister(handle_, handle));
  }
  Result finalize() override { return result_of(ncclCommFinalize(handle_)); }
  Result destroy() override { return result_of(ncclCommDestroy(handle_)); }

 private:
  static constexpr int kOneColor = 0;  ///< of all ranks

  static Result state_of(ncclComm_t communicator) {
    ncclResult_t state = ncclSuccess;
    const ncclResult_t result = ncclCommGetAsyncError(communicator, &state);
    return result_of(result == ncclSuccess ? state : result);
  }

  void configure(const Membership& membership) {
    config_.blocking = 0;
    config_.commName = membership.label;
    if (membership.max_ctas > 0) config_.maxCTAs = membership.max_ctas;
    if (membership.shares) config_.splitShare = 1;
    if (membership.copy_engines) use_copy_engines();
  }

  /// One kernel. Non-blocking, so the end of the group says whether its members are in progress.
  ncclResult_t exchange(const Collective& c, ncclDataType_t type) {
    const auto elements = static_cast<std::size_t>(c.elements);
    ncclResult_t result = ncclGroupStart();
    if (result != ncclSuccess) return result;
    const auto keep_failure = [&](ncclResult_t next) {
      if (result == ncclSuccess && next != ncclInProgress) result = next;
    };
    for (const Transfer& transfer : c.transfers) {
      if (transfer.send != nullptr)
        keep_failure(ncclSend(transfer.send, elements, type, transfer.peer, handle_, c.stream));
      if (transfer.receive != nullptr)
        keep_failure(ncclRecv(transfer.receive, elements, type, transfer.peer, handle_, c.stream));
    }
    const ncclResult_t end = ncclGroupEnd();
    return result == ncclSuccess ? end : result;
  }

  void use_copy_engines() {
#ifdef NCCL_CTA_POLICY_ZERO
    config_.CTAPolicy = NCCL_CTA_POLICY_ZERO;
#else
    throw Error("internal error: gathers by copy engines without NCCL 2.28");
#endif
  }

  ncclConfig_t config_ = NCCL_CONFIG_INITIALIZER;  ///< which NCCL may read until it is connected
  mutable ncclComm_t handle_ = nullptr;
  ncclComm_t parent_ = nullptr;            ///< from which it is being split
  std::map<void*, ncclWindow_t> windows_;  ///< by what they are on; null: NCCL had no use for one
};

ncclComm_t handle_of(const LibraryCommunicator& communicator) {
  return static_cast<const NcclCommunicator&>(communicator).handle();
}

class Nccl final : public Library {
 public:
  std::string version() const override {
    int number = 0;
    if (ncclGetVersion(&number) != ncclSuccess) return "NCCL";
    return fmt::format("NCCL {}.{}.{}", number / 10000, number / 100 % 100, number % 100);
  }
  bool is_supported() const override { return is_at_least(22700); }
#ifdef NCCL_CTA_POLICY_ZERO
  bool has_copy_engines() const override { return is_at_least(22800); }
#else
  bool has_copy_engines() const override { return false; }
#endif
  Result make_id(UniqueId& id) override {
    ncclUniqueId made{};
    const ncclResult_t result = ncclGetUniqueId(&made);
    std::memcpy(id.words.data(), &made, sizeof(made));
    return result_of(result);
  }
  Result connect(const Membership& membership, std::unique_ptr<LibraryCommunicator>& made) override {
    auto communicator = std::make_unique<NcclCommunicator>();
    const ncclResult_t result = communicator->connect(membership);
    if (communicator->handle() != nullptr) made = std::move(communicator);
    return result_of(result);
  }
  Result split(LibraryCommunicator& parent, const Membership& membership,
               std::unique_ptr<LibraryCommunicator>& made) override {
    auto communicator = std::make_unique<NcclCommunicator>();
    const Result result = communicator->split_from(static_cast<NcclCommunicator&>(parent), membership);
    made = std::move(communicator);
    return result;
  }
  // The abort of a communicator ends a split that is under way, so that the new one has a handle then or never; those that share
  // resources count who still has them, so the order in which they are freed is free (commFree() in NCCL's init.cc).
  void abort(std::vector<std::unique_ptr<LibraryCommunicator>> communicators) override {
    ncclGroupStart();
    for (const auto& communicator : communicators) {
      if (const ncclComm_t handle = handle_of(*communicator); handle != nullptr) ncclCommAbort(handle);
    }
    ncclGroupEnd();
  }
  std::string last_error(const LibraryCommunicator* of) override {
    const char* const words = ncclGetLastError(of == nullptr ? nullptr : handle_of(*of));
    return words == nullptr ? "" : words;
  }
  void* allocate(std::size_t bytes) override {
    void* data = nullptr;
    return ncclMemAlloc(&data, bytes) == ncclSuccess ? data : nullptr;
  }
  void free(void* data) override { ncclMemFree(data); }

 private:
  static bool is_at_least(int version) {
    int number = 0;
    return ncclGetVersion(&number) == ncclSuccess && number >= version;
  }
};

}  // namespace

Library& library() {
  static Nccl nccl;
  return nccl;
}

}  // namespace llampi::comm::nccl
