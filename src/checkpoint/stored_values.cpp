// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/stored_values.hpp"

#include <fmt/format.h>
#include <hdf5.h>

#include <algorithm>

#include "llampi/core/error.hpp"
#include "llampi/core/half.hpp"

namespace llampi::checkpoint {

Places places_of(hid_t file, const Datasets& datasets) {
  Places places;
  for (std::size_t role = 0; role < places.size(); ++role) {
    for (const auto& dataset : datasets[role]) {
      Place place;
      if (dataset) {
        const auto type = io::hdf5::element_type(dataset.id());
        const auto offset = io::hdf5::contiguous_offset(file, dataset.id());
        const bool is_plain = offset && (type.is_native || type.is_bfloat16);
        place = {is_plain ? static_cast<std::int64_t>(*offset) : Place::kThroughHdf5,
                 size_of(stored_dtype(kRoles[role], dataset.id()))};
      }
      places[role].push_back(place);
    }
  }
  return places;
}

bool need_hdf5(const Places& places) {
  return std::any_of(places.begin(), places.end(), [](const auto& role) {
    return std::any_of(role.begin(), role.end(),
                       [](const Place& p) { return p.is_there() && !p.is_plain(); });
  });
}

io::hdf5::Type memory_type(std::int64_t element_bytes) {
  const io::Hdf5Lock lock;
  if (element_bytes != sizeof(float)) return io::hdf5::bfloat16_type();
  return io::hdf5::Type(io::hdf5::check(H5Tcopy(H5T_NATIVE_FLOAT), "H5Tcopy"));
}

std::span<const std::byte> Encoding::encode(std::span<const float> values, std::int64_t element_bytes) {
  if (element_bytes == sizeof(float)) return std::as_bytes(values);
  bits_.resize(values.size());
  narrow(DType::bfloat16, values.data(), std::ssize(values), bits_.data());
  return std::as_bytes(std::span(bits_));
}

std::span<std::byte> Encoding::room_for(std::span<float> values, std::int64_t element_bytes) {
  if (element_bytes == sizeof(float)) return std::as_writable_bytes(values);
  bits_.resize(values.size());
  return std::as_writable_bytes(std::span(bits_));
}

std::span<const std::byte> Encoding::decode(std::span<float> values, std::int64_t element_bytes) const {
  if (element_bytes == sizeof(float)) return std::as_bytes(values);
  widen(DType::bfloat16, bits_.data(), std::ssize(values), values.data());
  return std::as_bytes(std::span(bits_));
}

StoredValues::StoredValues(const std::filesystem::path& file, Places places,
                           const std::vector<TensorInfo>& tensors)
    : path_(file), file_(io::PosixFile::open_for_reading(file)), places_(std::move(places)) {
  if (!need_hdf5(places_)) return;
  hdf5_ = io::hdf5::open_file(file);
  for (const auto& tensor : tensors) names_.push_back(tensor.name);
}

void StoredValues::read_ahead(std::size_t role, int tensor, std::int64_t begin, std::int64_t elements) const {
  const Place& at = place(role, tensor);
  if (at.is_plain()) file_.read_ahead(at.byte_of(begin), elements * at.element_bytes);
}

std::span<const std::byte> StoredValues::read(std::size_t role, int tensor, std::int64_t begin,
                                              std::span<float> values, Encoding& encoding) const {
  const Place& at = place(role, tensor);
  const auto room = encoding.room_for(values, at.element_bytes);
  if (!at.is_plain()) {
    read_through_hdf5(role, tensor, begin, std::ssize(values), room);
  } else if (file_.read_at(at.byte_of(begin), room) != room.size()) {
    throw DamagedCheckpoint(fmt::format("{} is damaged: it ends before its values do", path_.string()));
  }
  return encoding.decode(values, at.element_bytes);
}

void StoredValues::read_through_hdf5(std::size_t role, int tensor, std::int64_t begin, std::int64_t elements,
                                     std::span<std::byte> room) const {
  reading(path_, [&] {
    const io::Hdf5Lock lock;
    const auto dataset = io::hdf5::open_dataset(
        hdf5_.id(), fmt::format("{}/{}", kRoles[role].group, names_[static_cast<std::size_t>(tensor)]));
    const io::hdf5::ElementRange range{begin, elements};
    io::hdf5::read_elements(dataset.id(), {&range, 1}, room.data(),
                            memory_type(place(role, tensor).element_bytes).id());
  });
}

}  // namespace llampi::checkpoint
