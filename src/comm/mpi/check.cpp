// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/check.hpp"

#include <mpi.h>

#include <string>

#include "llampi/core/error.hpp"

namespace llampi::comm {

void check_mpi(int code, const char* call, SourceLocation where) {
  if (code == MPI_SUCCESS) return;
  std::string text(MPI_MAX_ERROR_STRING, '\0');
  int length = 0;
  if (MPI_Error_string(code, text.data(), &length) != MPI_SUCCESS) length = 0;
  text.resize(static_cast<std::size_t>(length));
  if (text.empty()) text = fmt::format("error {}", code);
  int rank = -1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  throw CallError(call, fmt::format("{}, on rank {}", text, rank), where);
}

}  // namespace llampi::comm
