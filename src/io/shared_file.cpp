// SPDX-License-Identifier: Apache-2.0
#include "llampi/io/shared_file.hpp"

#include <mpi.h>

#include <algorithm>
#include <string>

#include "llampi/core/error.hpp"
#include "llampi/io/posix_file.hpp"

namespace llampi::io {
namespace {

/// @throws CallError with the call and MPI's own words, unless `code` is MPI_SUCCESS
void check_mpi(int code, const char* call, SourceLocation where = SourceLocation::current()) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  int rank = -1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  const std::string reason = length > 0 ? std::string(text) : fmt::format("error {}", code);
  throw CallError(call, fmt::format("{}, on rank {}", reason, rank), where);
}

/// MPI-IO's hints; file systems that know nothing of stripes do not look at them.
class Hints {
 public:
  explicit Hints(const Striping& striping) {
    check_mpi(MPI_Info_create(&info_), "MPI_Info_create");
    if (striping.count != 0) set("striping_factor", striping.count);
    if (striping.bytes != 0) set("striping_unit", striping.bytes);
  }
  ~Hints() { MPI_Info_free(&info_); }
  Hints(const Hints&) = delete;
  Hints& operator=(const Hints&) = delete;

  MPI_Info get() const { return info_; }

 private:
  void set(const char* key, std::int64_t value) {
    check_mpi(MPI_Info_set(info_, key, std::to_string(value).c_str()), "MPI_Info_set");
  }
  MPI_Info info_ = MPI_INFO_NULL;
};

}  // namespace

struct SharedFile::Handle {
  MPI_File file = MPI_FILE_NULL;

  ~Handle() {
    if (file != MPI_FILE_NULL) MPI_File_close(&file);
  }
};

void SharedFile::create(const std::filesystem::path& path, const Striping& striping) {
  PosixFile::create(path);  // says what is wrong where it cannot be
  if (striping.count == 0 && striping.bytes == 0) return;
  std::filesystem::remove(path);  // stripes are those of a file's creation
  const Hints hints(striping);
  MPI_File file = MPI_FILE_NULL;
  check_mpi(MPI_File_open(MPI_COMM_SELF, path.c_str(), MPI_MODE_CREATE | MPI_MODE_WRONLY, hints.get(), &file),
            "MPI_File_open");
  check_mpi(MPI_File_close(&file), "MPI_File_close");
}

SharedFile::SharedFile(const std::filesystem::path& path) : file_(std::make_unique<Handle>()) {
  check_mpi(MPI_File_open(MPI_COMM_SELF, path.c_str(), MPI_MODE_WRONLY, MPI_INFO_NULL, &file_->file),
            "MPI_File_open");
}

SharedFile::~SharedFile() = default;

void SharedFile::write_at(std::int64_t offset, std::span<const std::byte> bytes) const {
  constexpr std::size_t kMost = std::size_t{1} << 30;  // MPI counts with int
  while (!bytes.empty()) {
    const auto part = bytes.first(std::min(bytes.size(), kMost));
    MPI_Status status;
    int written = 0;
    check_mpi(
        MPI_File_write_at(file_->file, offset, part.data(), static_cast<int>(part.size()), MPI_BYTE, &status),
        "MPI_File_write_at");
    check_mpi(MPI_Get_count(&status, MPI_BYTE, &written), "MPI_Get_count");
    if (written <= 0) throw CallError("MPI_File_write_at", "it wrote nothing");
    offset += written;
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

void SharedFile::sync() const { check_mpi(MPI_File_sync(file_->file), "MPI_File_sync"); }

}  // namespace llampi::io
