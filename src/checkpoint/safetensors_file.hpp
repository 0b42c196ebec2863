// SPDX-License-Identifier: Apache-2.0
// The safetensors format: 8 bytes little-endian length of the header, the header as JSON, then the data.
//   {"name": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [begin, end]}, ...,
//    "__metadata__": {"key": "text"}}
// Offsets count bytes from the end of the header. Specification: github.com/huggingface/safetensors, README.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "llampi/checkpoint/checkpoint.hpp"
#include "llampi/io/posix_file.hpp"

namespace llampi::checkpoint {

struct SafetensorsEntry {
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::int64_t begin = 0;  ///< byte, from the end of the header
};
using SafetensorsHeader = std::map<std::string, SafetensorsEntry>;

/// What is wrong with a file, as a clause; whoever knows the file's name adds it.
struct MalformedSafetensors {
  std::string what;
};

/// @param data_bytes behind the header, which the tensors must fill without gaps and overlaps
/// @throws MalformedSafetensors
SafetensorsHeader parse_safetensors_header(std::string_view text, std::int64_t data_bytes);

/// The beginning of a file, length and header, for these tensors one after another. `dtype` is F32 or BF16.
/// The data begin at a multiple of 8.
std::string safetensors_beginning(const std::vector<TensorInfo>& tensors, DType dtype);

class SafetensorsFile {
 public:
  /// Checks the header: every tensor lies inside the file and has the size of its shape.
  /// @throws UserError if it is missing, truncated or malformed
  explicit SafetensorsFile(std::filesystem::path path);

  const std::filesystem::path& path() const { return path_; }
  const SafetensorsHeader& tensors() const { return header_; }

  /// Elements [begin, begin + elements) of a tensor, as float32; reads only their part of the file. May be
  /// called from several threads.
  /// @throws UserError if the tensor is not F32, BF16 or F16, or the file has become shorter
  void read(const std::string& name, std::int64_t begin, std::int64_t elements, float* destination) const;

 private:
  void parse();

  std::filesystem::path path_;
  io::PosixFile file_;
  std::int64_t data_ = 0;  ///< where the data begin in the file
  SafetensorsHeader header_;
};

}  // namespace llampi::checkpoint
