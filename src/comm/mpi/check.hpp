// SPDX-License-Identifier: Apache-2.0
// The one place where return codes of MPI are looked at.
#pragma once

#include "llampi/core/source_location.hpp"

namespace llampi::comm {

/// @param code what an MPI function returned
/// @param call its name
/// @throws CallError with the call, MPI's own words and this process's rank, unless `code` is MPI_SUCCESS
void check_mpi(int code, const char* call, SourceLocation where = SourceLocation::current());

}  // namespace llampi::comm
