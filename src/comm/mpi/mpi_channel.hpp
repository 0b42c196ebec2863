// SPDX-License-Identifier: Apache-2.0
// Messages between ranks on a communicator of their own.
#pragma once

#include <list>

#include "comm/mpi/handles.hpp"
#include "llampi/comm/comm.hpp"

namespace llampi::comm {

class MpiChannel final : public Channel {
 public:
  explicit MpiChannel(Communicator communicator) : communicator_(std::move(communicator)) {}
  /// If a message is still on its way, it and the communicator are left to MPI.
  ~MpiChannel() override;

  bool send(int rank, const std::string& text) override;
  std::optional<Message> receive() override;
  bool sent() override;

 private:
  /// A message and the request that moves it.
  struct Transfer {
    int rank = 0;  ///< the other
    std::string text;
    MPI_Request request = MPI_REQUEST_NULL;
    bool done();
  };
  void start_to_receive();

  Communicator communicator_;
  std::list<Transfer> sending_, receiving_;
};

}  // namespace llampi::comm
