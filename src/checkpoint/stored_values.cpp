// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/stored_values.hpp"

#include <fmt/format.h>

#include "llampi/core/error.hpp"

namespace llampi::checkpoint {

Places places_of(const Datasets& datasets) {
  Places places;
  for (std::size_t role = 0; role < places.size(); ++role) {
    for (const auto& dataset : datasets[role]) {
      if (!dataset) {
        places[role].push_back(-1);
        continue;
      }
      const auto offset = io::hdf5::contiguous_offset(dataset.id());
      if (!offset || !io::hdf5::element_type(dataset.id()).is_native) {
        throw_user_error(
            "{}: {} is not one run of little-endian float32 values; use a checkpoint as llampi "
            "wrote it, or undo that with h5repack -l CONTI -f NONE",
            io::hdf5::file_name(dataset.id()), io::hdf5::object_name(dataset.id()));
      }
      places[role].push_back(static_cast<std::int64_t>(*offset));
    }
  }
  return places;
}

StoredValues::StoredValues(const std::filesystem::path& file, Places places)
    : path_(file), file_(io::PosixFile::open_for_reading(file)), places_(std::move(places)) {}

void StoredValues::read_ahead(std::size_t role, int tensor, std::int64_t begin, std::int64_t elements) const {
  if (!has(role, tensor)) return;
  file_.read_ahead(place_of(role, tensor, begin), elements * static_cast<std::int64_t>(sizeof(float)));
}

void StoredValues::read(std::size_t role, int tensor, std::int64_t begin, std::int64_t elements,
                        float* values) const {
  const auto bytes = std::as_writable_bytes(std::span(values, static_cast<std::size_t>(elements)));
  if (file_.read_at(place_of(role, tensor, begin), bytes) == bytes.size()) return;
  throw DamagedCheckpoint(
      fmt::format("{} is damaged: it ends before its values do; use another checkpoint", path_.string()));
}

}  // namespace llampi::checkpoint
