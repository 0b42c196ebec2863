// What rank 0 finds out for all ranks: files and variables may look different from other nodes.
#pragma once

#include <functional>
#include <string>

#include "llampi/comm/comm.hpp"

namespace llampi::comm {

/// The text that `work` returns on rank 0; on the others it does not run. Collective.
/// @throws on every rank alike, UserError or CommonError, what `work` throws
std::string from_rank_0(World& world, const std::function<std::string()>& work);

}  // namespace llampi::comm
