// A file that all ranks write at once through MPI-IO, each its own bytes.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

#include "llampi/checkpoint/checkpoint.hpp"

namespace llampi {

/// Writing is each rank's own affair: a rank's pieces are long runs of bytes, which nobody needs to gather,
/// and in a collective write the others would wait for ever for a rank whose disk is full.
class SharedFile {
 public:
  /// By one rank: creates a file, or empties it, spread over servers as `settings` say. @throws UserError
  static void create(const std::filesystem::path& path, const FileSettings& settings);

  /// Collective; the file exists. @throws CallError
  SharedFile(World& world, const std::filesystem::path& path);
  ~SharedFile();  ///< collective
  SharedFile(const SharedFile&) = delete;
  SharedFile& operator=(const SharedFile&) = delete;

  /// By this rank alone, at most 2 GiB. @throws CallError
  void write_at(std::int64_t offset, std::span<const std::byte> bytes) const;

 private:
  MPI_File file_ = MPI_FILE_NULL;
};

}  // namespace llampi
