// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/mpi_channel.hpp"

#include <algorithm>
#include <set>

#include "comm/mpi/check.hpp"
#include "llampi/core/error.hpp"
#include "llampi/core/leak.hpp"

namespace llampi::comm {
namespace {

constexpr int kTag = 0;
constexpr std::ptrdiff_t kMostOnTheWay = 4;  // to one rank

}  // namespace

MpiChannel::~MpiChannel() {
  if (sending_.empty() && receiving_.empty()) return;
  // MPI still reads and writes the texts of these messages, on this communicator.
  communicator_.release();
  leak(std::move(sending_));
  leak(std::move(receiving_));
}

bool MpiChannel::Transfer::done() {
  int flag = 0;
  check_mpi(MPI_Test(&request, &flag, MPI_STATUS_IGNORE), "MPI_Test");
  return flag != 0;
}

bool MpiChannel::sent() {
  std::erase_if(sending_, [](Transfer& transfer) {
    try {
      return transfer.done();
    } catch (const Error&) {
      return true;  // its receiver is lost, which is no reason not to write to others
    }
  });
  return sending_.empty();
}

bool MpiChannel::send(int rank, const std::string& text) {
  sent();
  const auto to_rank = [&](const Transfer& transfer) { return transfer.rank == rank; };
  if (std::count_if(sending_.begin(), sending_.end(), to_rank) >= kMostOnTheWay) return false;
  auto& transfer = sending_.emplace_back(Transfer{rank, text});
  check_mpi(MPI_Isend(transfer.text.data(), static_cast<int>(text.size()), MPI_BYTE, rank, kTag,
                      communicator_.get(), &transfer.request),
            "MPI_Isend");
  return true;
}

void MpiChannel::start_to_receive() {
  while (true) {
    int flag = 0, bytes = 0;
    MPI_Message matched = MPI_MESSAGE_NULL;
    MPI_Status status;
    check_mpi(MPI_Improbe(MPI_ANY_SOURCE, kTag, communicator_.get(), &flag, &matched, &status),
              "MPI_Improbe");
    if (flag == 0) return;
    check_mpi(MPI_Get_count(&status, MPI_BYTE, &bytes), "MPI_Get_count");
    auto& transfer = receiving_.emplace_back(
        Transfer{status.MPI_SOURCE, std::string(static_cast<std::size_t>(bytes), '\0')});
    check_mpi(MPI_Imrecv(transfer.text.data(), bytes, MPI_BYTE, &matched, &transfer.request), "MPI_Imrecv");
  }
}

/// A rank that has stopped in the middle of a long message holds up none of the others.
std::optional<Channel::Message> MpiChannel::receive() {
  start_to_receive();
  std::set<int> held_up;
  for (auto transfer = receiving_.begin(); transfer != receiving_.end(); ++transfer) {
    if (held_up.contains(transfer->rank)) continue;
    bool arrived = false;
    try {
      arrived = transfer->done();
    } catch (const Error&) {
      receiving_.erase(transfer);  // it is lost; those after it may not be
      throw;
    }
    if (!arrived) {
      held_up.insert(transfer->rank);
      continue;
    }
    Message message{transfer->rank, std::move(transfer->text)};
    receiving_.erase(transfer);
    return message;
  }
  return std::nullopt;
}

}  // namespace llampi::comm
