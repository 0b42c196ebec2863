// SPDX-License-Identifier: Apache-2.0
// From (model, units, options) to a Program: the only place that decides which actions there are, in which
// order, and with which operands.
#pragma once

#include "fsdp/program/program_spec.hpp"
#include "llampi/fsdp/program.hpp"

namespace llampi::fsdp {

/// The program, not yet placed.
/// A unit of one shard needs no gather: its parameters are read where they are kept, if that is the device
/// and the dtype is that of compute. The backward pass ends with the first layer that has a trained
/// parameter.
Program build(const ProgramSpec& spec);

}  // namespace llampi::fsdp
