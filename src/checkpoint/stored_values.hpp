// SPDX-License-Identifier: Apache-2.0
// Where the values of a checkpoint's tensors lie in the file, and reading them there: each dataset is one run
// of bytes, so that ranks and threads read at once, without HDF5 and its lock.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <vector>

#include "checkpoint/schema.hpp"
#include "llampi/io/posix_file.hpp"

namespace llampi::checkpoint {

/// [role][tensor]: the byte at which a dataset's first value lies; -1 where the file does not have it.
using Places = std::array<std::vector<std::int64_t>, kRoles.size()>;

/// @throws UserError naming a dataset that is no run of float32 values as this machine has them
Places places_of(const Datasets& datasets);

class StoredValues {
 public:
  StoredValues() = default;
  /// @throws UserError if the file cannot be read
  StoredValues(const std::filesystem::path& file, Places places);

  bool has(std::size_t role, int tensor) const { return places_[role][tensor] >= 0; }
  /// Has the operating system read what is asked for next, in the background.
  void read_ahead(std::size_t role, int tensor, std::int64_t begin, std::int64_t elements) const;
  /// Elements [begin, begin + elements) of the flattened tensor. Threads may read at once.
  /// @throws DamagedCheckpoint if the file ends before them; CallError
  void read(std::size_t role, int tensor, std::int64_t begin, std::int64_t elements, float* values) const;

 private:
  std::int64_t place_of(std::size_t role, int tensor, std::int64_t element) const {
    return places_[role][tensor] + element * static_cast<std::int64_t>(sizeof(float));
  }

  std::filesystem::path path_;
  io::PosixFile file_;
  Places places_;
};

}  // namespace llampi::checkpoint
