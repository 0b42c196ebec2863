// SPDX-License-Identifier: Apache-2.0
#include "llampi/fsdp/fit.hpp"

namespace llampi::fsdp {

std::int64_t needed_bytes(comm::Backend backend, const ArenaBytes& arena_bytes, const DeviceMesh& groups,
                          comm::Reduction reduction, bool one_memory) {
  const auto [on_device, on_host] = arena_bytes;
  return on_device + (one_memory ? on_host : 0) + communicator_bytes(backend, groups, reduction) +
         loaded_later_bytes(backend);
}

CompiledModel FitQuestion::compile(const EngineOptions& with) const {
  return compile_model(model, with, groups, sizes, backend);
}

bool FitQuestion::fits_with(const EngineOptions& with) const {
  return fits(compile(with).arena_bytes, groups);
}

}  // namespace llampi::fsdp
