// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/combine_integers.hpp"

#include <algorithm>
#include <exception>
#include <utility>
#include <vector>

#include "comm/mpi/check.hpp"
#include "llampi/core/leak.hpp"

namespace llampi::comm {
namespace {

/// MPI's function for the operation below. A message is one element of MPI's, so that MPI does not divide it: how many
/// integers are summed, those, and those of which the largest is taken.
void combine(void* in, void* in_out, int* messages, MPI_Datatype* type) {
  int bytes = 0;
  MPI_Type_size(*type, &bytes);
  const auto count = static_cast<std::ptrdiff_t>(bytes) / static_cast<std::ptrdiff_t>(sizeof(std::int64_t));
  const auto* from = static_cast<const std::int64_t*>(in);
  auto* to = static_cast<std::int64_t*>(in_out);
  for (int m = 0; m < *messages; ++m, from += count, to += count) {
    const std::int64_t sums = *from;  // the same on all ranks
    for (std::ptrdiff_t i = 1; i <= sums; ++i) to[i] += from[i];
    for (std::ptrdiff_t i = sums + 1; i < count; ++i) to[i] = std::max(to[i], from[i]);
  }
}

/// What MPI works on. It must stay where it is until MPI is done.
struct Message {
  std::vector<std::int64_t> integers;
  MPI_Op op = MPI_OP_NULL;
  MPI_Datatype type = MPI_DATATYPE_NULL;
  Requests requests;

  Message(std::span<const std::int64_t> values, std::size_t sums)
      : integers{static_cast<std::int64_t>(sums)} {
    require(sums <= values.size(), "more integers to be summed than there are");
    integers.insert(integers.end(), values.begin(), values.end());
    check_mpi(MPI_Op_create(combine, 1, &op), "MPI_Op_create");
    check_mpi(MPI_Type_contiguous(static_cast<int>(integers.size()), MPI_INT64_T, &type),
              "MPI_Type_contiguous");
    check_mpi(MPI_Type_commit(&type), "MPI_Type_commit");
  }
  ~Message() {
    if (type != MPI_DATATYPE_NULL) MPI_Type_free(&type);
    if (op != MPI_OP_NULL) MPI_Op_free(&op);
  }
  Message(const Message&) = delete;
  Message& operator=(const Message&) = delete;
};

class Combination final : public Work {
 public:
  Combination(std::shared_ptr<Progress> progress, MPI_Comm communicator, std::span<std::int64_t> values,
              std::size_t sums)
      : progress_(std::move(progress)), values_(values), message_(std::make_unique<Message>(values, sums)) {
    check_mpi(MPI_Iallreduce(MPI_IN_PLACE, message_->integers.data(), 1, message_->type, message_->op,
                             communicator, message_->requests.add()),
              "MPI_Iallreduce");
  }

  ~Combination() override {
    if (message_ == nullptr) return;
    try {
      if (std::uncaught_exceptions() > exceptions_) {
        if (progress_->wait_a_little(message_->requests)) return;
      } else {
        progress_->wait(message_->requests);
        return;
      }
    } catch (...) {  // whoever needs the result calls wait(), which throws
    }
    leak(std::move(message_));  // MPI may still write there
  }

  bool progress() override { return message_ == nullptr || (message_->requests.test() && take()); }

  void wait(device::Stream /*stream*/) override {
    if (message_ == nullptr) return;
    progress_->wait(message_->requests);
    take();
  }

 private:
  bool take() {
    std::copy(message_->integers.begin() + 1, message_->integers.end(), values_.begin());
    message_.reset();
    return true;
  }

  std::shared_ptr<Progress> progress_;
  std::span<std::int64_t> values_;
  std::unique_ptr<Message> message_;  ///< null: done
  int exceptions_ = std::uncaught_exceptions();
};

}  // namespace

std::unique_ptr<Work> combine_integers(std::shared_ptr<Progress> progress, MPI_Comm communicator,
                                       std::span<std::int64_t> values, std::size_t sums) {
  return std::make_unique<Combination>(std::move(progress), communicator, values, sums);
}

}  // namespace llampi::comm
