// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/transfer_together.hpp"

#include <fmt/format.h>
#include <hdf5.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>

#include "checkpoint/checksums.hpp"
#include "checkpoint/tensor_parts.hpp"
#include "checkpoint/write_values.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/comm/exchange.hpp"
#include "llampi/comm/first_failure.hpp"
#include "llampi/io/posix_file.hpp"

namespace llampi::checkpoint {
namespace {

/// A file that is open on several ranks, dataset by dataset.
class OpenTogether {
 public:
  OpenTogether(const std::filesystem::path& path, const comm::World& world, io::hdf5::OpenFor purpose)
      : file_(io::hdf5::open_together(path, world.communicator_number(), purpose)),
        transfer_(io::hdf5::collective_transfer()) {}

  void open(std::size_t role, const std::string& tensor, std::int64_t element_bytes) {
    const io::Hdf5Lock lock;
    dataset_ = {};
    dataset_ = io::hdf5::open_dataset(file_.id(), fmt::format("{}/{}", kRoles[role].group, tensor));
    type_ = memory_type(element_bytes);
  }
  void write(std::span<const io::hdf5::ElementRange> ranges, const void* values) const {
    io::hdf5::write_elements(dataset_.id(), ranges, values, type_.id(), transfer_.id());
  }
  void read(std::span<const io::hdf5::ElementRange> ranges, void* values) const {
    io::hdf5::read_elements(dataset_.id(), ranges, values, type_.id(), transfer_.id());
  }
  void close() {
    dataset_ = {};
    type_ = {};
    transfer_ = {};
    file_.close();
  }

 private:
  io::hdf5::File file_;
  io::hdf5::PropertyList transfer_;
  io::hdf5::Dataset dataset_;
  io::hdf5::Type type_;
};

/// What reading and writing have in common: this rank's parts of each dataset.
class Rounds {
 public:
  Rounds(const TransferTogether& about, std::int64_t elements)
      : about_(about), parts_(kRoles.size() * about.tensors.size()), rounds_(parts_.size()) {
    failure_.of([&] {
      staging_.emplace(about.device, elements);
      for (const Part& part : parts_of(about.pieces, *staging_))
        parts_[index(part.role, part.tensor)].push_back(part);
    });
    for (std::size_t i = 0; i < parts_.size(); ++i) rounds_[i] = std::ssize(parts_[i]);
    about.world.max(rounds_);
  }

 protected:
  std::size_t index(std::size_t role, int tensor) const {
    return static_cast<std::size_t>(dataset_index(role, tensor, about_.tensors.size()));
  }
  const std::string& name(int tensor) const { return about_.tensors[static_cast<std::size_t>(tensor)].name; }
  const Place& place(std::size_t role, int tensor) const {
    return about_.places[role][static_cast<std::size_t>(tensor)];
  }
  /// Calls visit(role, tensor, this rank's parts, rounds of all) for each dataset of which a rank has something.
  template <class Visitor>
  void for_each_dataset(Visitor&& visit) {
    for (std::size_t role = 0; role < kRoles.size(); ++role) {
      for (int t = 0; t < static_cast<int>(about_.tensors.size()); ++t) {
        const auto i = index(role, t);
        if (rounds_[i] > 0) visit(role, t, parts_[i], static_cast<std::size_t>(rounds_[i]));
      }
    }
  }
  /// Collective work, which this rank must do even after a failure of its own: the other ranks would wait for it.
  template <class Work>
  void take_part(const Work& work) {
    comm::FirstFailure failure;
    failure.of(work);
    failure_.of([&] { failure.rethrow(); });
  }
  /// Whether one of the ranks has failed.
  bool failed_anywhere(comm::World& ranks) const {
    return comm::on_any_rank(ranks, static_cast<bool>(failure_));
  }
  void add_sums(std::size_t role, int tensor, std::int64_t begin, std::span<const std::byte> bytes) {
    if (about_.block_elements == 0) return;
    io::add_sums(sums_, dataset_index(role, tensor, about_.tensors.size()), begin, bytes,
                 place(role, tensor).element_bytes, about_.block_elements);
  }
  void tell_progress() const {
    if (about_.progress) about_.progress();
  }

  const TransferTogether& about_;
  std::optional<Staging> staging_;
  Encoding encoding_;
  std::vector<io::RangeSum> sums_;
  comm::FirstFailure failure_;

 private:
  std::vector<std::vector<Part>> parts_;  ///< by dataset
  std::vector<std::int64_t> rounds_;      ///< by dataset, of the rank that has most
};

class Reader : Rounds {
 public:
  explicit Reader(const TransferTogether& about) : Rounds(about, about.transfer_elements) {}

  std::vector<io::RangeSum> run() {
    std::optional<OpenTogether> file;
    bool goes_on = !failed_anywhere(about_.world);  // else some would wait at the open for those that failed
    if (goes_on) {
      failure_.of([&] { file.emplace(about_.file, about_.world, io::hdf5::OpenFor::reading); });
      goes_on = !failed_anywhere(about_.world);
    }
    for_each_dataset([&](std::size_t role, int tensor, const auto& parts, std::size_t rounds) {
      if (!goes_on) return;
      if (!place(role, tensor).is_there()) {
        fill_with_zeros(parts);
        goes_on = !failed_anywhere(about_.world);
        return;
      }
      failure_.of([&] { file->open(role, name(tensor), place(role, tensor).element_bytes); });
      goes_on =
          !failed_anywhere(about_.world);  // else some would wait in the first round for those that failed
      if (!goes_on) return;
      for (std::size_t round = 0; round < rounds; ++round) {
        const bool reads = round < parts.size() && !failure_;
        read(*file, role, tensor, reads ? parts[round] : Part{});
        tell_progress();
      }
      goes_on = !failed_anywhere(about_.world);
    });
    if (file) take_part([&] { file->close(); });
    failure_.rethrow();
    return std::move(sums_);
  }

 private:
  void fill_with_zeros(const std::vector<Part>& parts) {
    failure_.of([&] {
      for (const auto& part : parts) {
        std::fill_n(staging_->room_for(part.values), part.values.elements(), 0.0F);
        staging_->store(part.values);
      }
    });
  }

  void read(const OpenTogether& file, std::size_t role, int tensor, const Part& part) {
    const std::int64_t bytes = place(role, tensor).element_bytes;
    if (!part.values) return take_part([&] { file.read({}, encoding_.room_for({}, bytes).data()); });
    const std::span values(staging_->room_for(part.values), static_cast<std::size_t>(part.values.elements()));
    const io::hdf5::ElementRange range{part.begin, std::ssize(values)};
    take_part([&] { file.read({&range, 1}, encoding_.room_for(values, bytes).data()); });
    failure_.of([&] {
      add_sums(role, tensor, part.begin, encoding_.decode(values, bytes));
      staging_->store(part.values);
    });
  }
};

/// A part on its way to the first of its group: its range, then its values.
std::string message_of(std::int64_t begin, std::int64_t elements, std::span<const std::byte> bytes) {
  const io::hdf5::ElementRange range{begin, elements};
  std::string message(sizeof range + bytes.size(), '\0');
  std::memcpy(message.data(), &range, sizeof range);
  if (!bytes.empty()) std::memcpy(message.data() + sizeof range, bytes.data(), bytes.size());
  return message;
}

class Writer : Rounds {
 public:
  explicit Writer(const TransferTogether& about) : Rounds(about, elements_of_a_rank(about)) {}

  std::vector<io::RangeSum> run() {
    const bool is_first = about_.ranks.is_first();
    bool writes = is_first;
    if (is_first) writes = !failed_anywhere(about_.ranks.firsts());
    if (writes) {
      failure_.of([&] { file_.emplace(about_.file, about_.ranks.firsts(), io::hdf5::OpenFor::writing); });
      writes = !failed_anywhere(about_.ranks.firsts());
    }
    for_each_dataset([&](std::size_t role, int tensor, const auto& parts, std::size_t rounds) {
      if (writes) {
        failure_.of([&] { file_->open(role, name(tensor), place(role, tensor).element_bytes); });
        writes = !failed_anywhere(about_.ranks.firsts());
      }
      for (std::size_t round = 0; round < rounds; ++round) {
        const auto messages =
            about_.ranks.group().gather(take(role, tensor, round < parts.size() ? parts[round] : Part{}), 0);
        if (writes) take_part([&] { write(messages); });
        if (writes && unsynced_ >= kSyncBytes) sync();
        tell_progress();
      }
      if (writes) writes = !failed_anywhere(about_.ranks.firsts());
    });
    if (file_) take_part([&] { close(); });
    if (writes) sync();
    about_.ranks.group().barrier();
    failure_.rethrow();
    return std::move(sums_);
  }

 private:
  /// So that a group has no more in flight than one rank alone would.
  static std::int64_t elements_of_a_rank(const TransferTogether& about) {
    constexpr std::int64_t kLeast = std::int64_t{1} << 16;
    return std::max(about.transfer_elements / about.ranks.group().size(),
                    std::min(about.transfer_elements, kLeast));
  }

  /// HDF5 crashes in MPI_Finalize if a file is still open, so MPI is left open if the file cannot be closed.
  void close() {
    try {
      file_->close();
    } catch (...) {
      about_.world.leave_mpi_open();
      throw;
    }
  }

  /// What this rank has written. Not H5Fflush, which is collective: if the disk of one rank failed in it, the others would wait
  /// for that rank in H5Fclose.
  void sync() {
    failure_.of([&] { io::PosixFile::open_for_writing(about_.file).sync(); });
    unsynced_ = 0;
  }

  std::string take(std::size_t role, int tensor, const Part& part) {
    std::string message = message_of(0, 0, {});
    if (!part.values) return message;
    failure_.of([&] {
      const std::int64_t elements = part.values.elements();
      const auto bytes = encoding_.encode({staging_->fetch(part.values), static_cast<std::size_t>(elements)},
                                          place(role, tensor).element_bytes);
      add_sums(role, tensor, part.begin, bytes);
      message = message_of(part.begin, elements, bytes);
    });
    return message;
  }

  void write(const std::vector<std::string>& messages) {
    struct Item {
      io::hdf5::ElementRange range;
      std::span<const std::byte> bytes;
    };
    std::vector<Item> items;
    for (const auto& message : messages) {
      Item item;
      std::memcpy(&item.range, message.data(), sizeof item.range);
      item.bytes = std::as_bytes(std::span(message)).subspan(sizeof item.range);
      if (item.range.elements > 0) items.push_back(item);
    }
    std::sort(items.begin(), items.end(),
              [](const Item& a, const Item& b) { return a.range.begin < b.range.begin; });
    std::vector<io::hdf5::ElementRange> ranges;
    values_.clear();
    for (const auto& item : items) {
      const bool goes_on =
          !ranges.empty() && ranges.back().begin + ranges.back().elements == item.range.begin;
      if (goes_on) {
        ranges.back().elements += item.range.elements;
      } else {
        ranges.push_back(item.range);
      }
      values_.insert(values_.end(), item.bytes.begin(), item.bytes.end());
    }
    file_->write(ranges, values_.data());
    unsynced_ += std::ssize(values_);
  }

  std::optional<OpenTogether> file_;  ///< on the first of a group
  std::vector<std::byte> values_;
  std::int64_t unsynced_ = 0;  ///< bytes
};

}  // namespace

std::vector<io::RangeSum> write_together(const TransferTogether& transfer) { return Writer(transfer).run(); }

std::vector<io::RangeSum> read_together(const TransferTogether& transfer) { return Reader(transfer).run(); }

}  // namespace llampi::checkpoint
