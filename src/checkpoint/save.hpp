// SPDX-License-Identifier: Apache-2.0
// save_checkpoint() with what tests vary.
#pragma once

#include "checkpoint/save_options.hpp"
#include "checkpoint/schema.hpp"

namespace llampi::checkpoint {

void save_checkpoint(comm::World& world, device::Runtime& device, const std::filesystem::path& file,
                     const CheckpointData& content, const SaveOptions& options);

}  // namespace llampi::checkpoint
