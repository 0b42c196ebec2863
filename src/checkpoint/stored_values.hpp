// SPDX-License-Identifier: Apache-2.0
// Where the values of a checkpoint's tensors lie in the file, and reading them there: each dataset is one run
// of bytes, so that ranks and threads read at once, without HDF5 and its lock. What another program has rewritten in chunks
// or compressed, or put into another file, is read through HDF5.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/schema.hpp"
#include "llampi/io/posix_file.hpp"

namespace llampi::checkpoint {

/// Of a dataset.
struct Place {
  static constexpr std::int64_t kNowhere = -1;      ///< the file does not have it
  static constexpr std::int64_t kThroughHdf5 = -2;  ///< not one run of values as this machine has them

  std::int64_t offset = kNowhere;              ///< the byte at which its first value lies
  std::int64_t element_bytes = sizeof(float);  ///< of float32, or 2 of bfloat16

  bool is_there() const { return offset != kNowhere; }
  bool is_plain() const { return offset >= 0; }
  std::int64_t byte_of(std::int64_t element) const { return offset + element * element_bytes; }
};

/// [role][tensor]
using Places = std::array<std::vector<Place>, kRoles.size()>;

/// @param file in which they were opened
Places places_of(hid_t file, const Datasets& datasets);
/// Whether a dataset is there that only HDF5 can read.
bool need_hdf5(const Places& places);

/// Values on their way between memory, where they are float32, and a file.
class Encoding {
 public:
  /// As the file has them, until the next call.
  std::span<const std::byte> encode(std::span<const float> values, std::int64_t element_bytes);
  /// Where so many elements are read to, before decode().
  std::span<std::byte> room_for(std::span<float> values, std::int64_t element_bytes);
  /// What was read there, as the file has it; `values` are filled.
  std::span<const std::byte> decode(std::span<float> values, std::int64_t element_bytes) const;

 private:
  std::vector<std::uint16_t> bits_;
};

class StoredValues {
 public:
  StoredValues() = default;
  /// @param tensors whose places they are
  /// @throws UserError if the file cannot be read
  StoredValues(const std::filesystem::path& file, Places places, const std::vector<TensorInfo>& tensors);

  bool has(std::size_t role, int tensor) const { return place(role, tensor).is_there(); }
  std::int64_t element_bytes(std::size_t role, int tensor) const { return place(role, tensor).element_bytes; }
  /// Has the operating system read what is asked for next, in the background.
  void read_ahead(std::size_t role, int tensor, std::int64_t begin, std::int64_t elements) const;
  /// Elements from `begin` on of the flattened tensor. Threads may read at once, each with its own encoding.
  /// Returns them as they lie in the file, until the next use of the encoding.
  /// @throws DamagedCheckpoint if the file ends before them; CallError
  std::span<const std::byte> read(std::size_t role, int tensor, std::int64_t begin, std::span<float> values,
                                  Encoding& encoding) const;

 private:
  const Place& place(std::size_t role, int tensor) const {
    return places_[role][static_cast<std::size_t>(tensor)];
  }
  void read_through_hdf5(std::size_t role, int tensor, std::int64_t begin, std::int64_t elements,
                         std::span<std::byte> room) const;

  std::filesystem::path path_;
  io::PosixFile file_;
  Places places_;
  io::hdf5::File hdf5_;             ///< open if it is needed
  std::vector<std::string> names_;  ///< of the tensors, then
};

/// The type of a dataset's values in memory, before decode().
io::hdf5::Type memory_type(std::int64_t element_bytes);

}  // namespace llampi::checkpoint
