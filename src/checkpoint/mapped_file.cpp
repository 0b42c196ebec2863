#include "checkpoint/mapped_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "llampi/core/error.hpp"

namespace llampi {

MappedFile::MappedFile(const std::filesystem::path& path) {
  const auto fail = [&] {
    throw_user_error("{} cannot be read: {}", path.string(), std::generic_category().message(errno));
  };
  const struct Descriptor {  // a mapping outlives the descriptor
    int value;
    ~Descriptor() { ::close(value); }
  } descriptor{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (descriptor.value < 0) fail();
  struct stat status {};
  if (::fstat(descriptor.value, &status) != 0) fail();
  if (!S_ISREG(status.st_mode)) throw_user_error("{} cannot be read: it is not a file", path.string());
  size_ = static_cast<std::size_t>(status.st_size);
  if (size_ == 0) return;  // which cannot be mapped
  void* mapping = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, descriptor.value, 0);
  if (mapping == MAP_FAILED) fail();
  data_ = static_cast<const std::byte*>(mapping);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

}  // namespace llampi
