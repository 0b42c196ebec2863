// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/write_values.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "checkpoint/checksums.hpp"
#include "checkpoint/tensor_parts.hpp"
#include "llampi/comm/exchange.hpp"
#include "llampi/comm/first_failure.hpp"
#include "llampi/core/error.hpp"
#include "llampi/core/integers.hpp"

namespace llampi::checkpoint {

void ValueFile::write_at(std::int64_t offset, std::span<const std::byte> bytes) {
  file_.write_at(offset, bytes);
  tell_progress();
  unsynced_ += std::ssize(bytes);
  if (unsynced_ >= kSyncBytes) sync();
}

void ValueFile::sync() {
  file_.sync();
  tell_progress();
  unsynced_ = 0;
}

void ValueFile::tell_progress() const {
  if (settings_.progress) settings_.progress();
}

void ValueWriter::write(std::size_t role, int tensor, std::int64_t begin, std::span<const float> elements) {
  const Place& place = values_.places[role][static_cast<std::size_t>(tensor)];
  const auto bytes = encoding_.encode(elements, place.element_bytes);
  file_.write_at(place.byte_of(begin), bytes);
  io::add_sums(sums_, dataset_index(role, tensor, values_.tensors.size()), begin, bytes, place.element_bytes,
               values_.options.block_elements);
}

std::vector<io::RangeSum> ValueWriter::finish() {
  file_.sync();  // some file systems notice only now that the space is short
  return std::move(sums_);
}

namespace {

/// The bytes of a piece in the file.
struct Run {
  std::int64_t begin, end;
  std::int64_t element_bytes;

  /// The beginning of the first element at or after `boundary`; `end` if there is none.
  std::int64_t cut(std::int64_t boundary) const {
    if (boundary <= begin) return begin;
    const std::int64_t elements = ceil_div(boundary - begin, element_bytes);
    return std::min(end, begin + elements * element_bytes);
  }
};

/// This rank's.
struct OwnRun {
  Run run;
  std::size_t role;
  const TensorPiece* piece;
};

std::vector<OwnRun> runs_of(const ValuesToWrite& values) {
  std::vector<OwnRun> runs;
  for (const auto& piece : values.pieces) {
    const auto tensor = static_cast<std::size_t>(piece.tensor);
    for (std::size_t role = 0; piece.elements() > 0 && role < roles_of(values.tensors[tensor]); ++role) {
      const Place& place = values.places[role][tensor];
      runs.push_back(
          {{place.byte_of(piece.begin), place.byte_of(piece.begin + piece.elements()), place.element_bytes},
           role,
           &piece});
    }
  }
  std::sort(runs.begin(), runs.end(),
            [](const OwnRun& a, const OwnRun& b) { return a.run.begin < b.run.begin; });
  return runs;
}

/// The bytes [begin, end) of the file that run `run` has in one window.
struct WindowPart {
  std::size_t run;
  std::int64_t begin, end;
};

/// The parts of runs, in order of the file, in one window after another.
class Windows {
 public:
  Windows(std::vector<Run> runs, std::int64_t bytes) : runs_(std::move(runs)), bytes_(bytes) {}

  /// Those in which something begins.
  std::set<std::int64_t> numbers() const {
    std::set<std::int64_t> numbers;
    for (const auto& run : runs_) {
      for (std::int64_t w = run.begin / bytes_; w <= (run.end - run.element_bytes) / bytes_; ++w)
        numbers.insert(w);
    }
    return numbers;
  }
  /// Of later and later windows.
  std::vector<WindowPart> parts_in(std::int64_t window) {
    const std::int64_t begin = window * bytes_, end = begin + bytes_;
    while (next_ < runs_.size() && runs_[next_].cut(begin) == runs_[next_].end) ++next_;
    std::vector<WindowPart> parts;
    for (std::size_t i = next_; i < runs_.size() && runs_[i].begin < end; ++i) {
      const WindowPart part{i, runs_[i].cut(begin), runs_[i].cut(end)};
      if (part.begin < part.end) parts.push_back(part);
    }
    return parts;
  }

 private:
  std::vector<Run> runs_;
  std::int64_t bytes_;
  std::size_t next_ = 0;
};

std::vector<Run> plain(const std::vector<OwnRun>& own) {
  std::vector<Run> runs;
  for (const auto& run : own) runs.push_back(run.run);
  return runs;
}

/// Takes this rank's values, as the file is to have them.
class RunSource {
 public:
  RunSource(device::Runtime& device, const ValuesToWrite& values, const std::vector<OwnRun>& runs)
      : values_(values), runs_(runs), staging_(device, values.options.file.transfer_elements) {}

  void take(const WindowPart& part, std::byte* to) {
    const OwnRun& own = runs_[part.run];
    const Run& run = own.run;
    const std::int64_t from = (part.begin - run.begin) / run.element_bytes;
    const Tensor values =
        (own.piece->*kRoles[own.role].values).slice(from, (part.end - run.begin) / run.element_bytes);
    staging_.in_parts(values, [&](const Tensor& some, std::int64_t begin) {
      const auto bytes = encoding_.encode({staging_.fetch(some), static_cast<std::size_t>(some.elements())},
                                          run.element_bytes);
      std::memcpy(to + begin * run.element_bytes, bytes.data(), bytes.size());
      io::add_sums(sums_, dataset_index(own.role, own.piece->tensor, values_.tensors.size()),
                   own.piece->begin + from + begin, bytes, run.element_bytes, values_.options.block_elements);
    });
  }
  std::vector<io::RangeSum> sums() { return std::move(sums_); }

 private:
  const ValuesToWrite& values_;
  const std::vector<OwnRun>& runs_;
  Staging staging_;
  Encoding encoding_;
  std::vector<io::RangeSum> sums_;
};

/// What the ranks of a group have in a window, as the first of them writes it.
class Assembly {
 public:
  void add(std::int64_t offset, std::span<const std::byte> bytes) { pieces_.push_back({offset, bytes}); }
  /// Neighbours in one go.
  void write_to(ValueFile& file) {
    std::sort(pieces_.begin(), pieces_.end(),
              [](const Piece& a, const Piece& b) { return a.offset < b.offset; });
    for (std::size_t first = 0, last = 0; first < pieces_.size(); first = last) {
      std::int64_t end = pieces_[first].offset;
      for (; last < pieces_.size() && pieces_[last].offset == end; ++last)
        end += std::ssize(pieces_[last].bytes);
      write_run(file, std::span(pieces_).subspan(first, last - first));
    }
    pieces_.clear();
  }

 private:
  struct Piece {
    std::int64_t offset;
    std::span<const std::byte> bytes;
  };

  void write_run(ValueFile& file, std::span<const Piece> run) {
    if (run.size() == 1) return file.write_at(run[0].offset, run[0].bytes);
    joined_.clear();
    for (const auto& piece : run) joined_.insert(joined_.end(), piece.bytes.begin(), piece.bytes.end());
    file.write_at(run[0].offset, joined_);
  }

  std::vector<Piece> pieces_;
  std::vector<std::byte> joined_;
};

/// On the first of a group: the windows of each of its ranks.
std::vector<Windows> windows_of_group(comm::World& group, const std::vector<OwnRun>& own,
                                      std::int64_t bytes) {
  std::vector<Windows> windows;
  for (const auto& runs : group.gather(comm::packed(plain(own)), 0))
    windows.emplace_back(comm::unpacked<std::vector<Run>>(runs), bytes);
  return windows;
}

std::vector<std::int64_t> numbers_of(const std::vector<Windows>& windows) {
  std::set<std::int64_t> numbers;
  for (const auto& of_rank : windows) numbers.merge(of_rank.numbers());
  return {numbers.begin(), numbers.end()};
}

std::vector<io::RangeSum> write_for_group(device::Runtime& device, const NodeRanks& ranks,
                                          const ValuesToWrite& values) {
  comm::World& group = ranks.group();
  comm::FirstFailure failure;
  const auto own = runs_of(values);
  std::int64_t bytes = 0;
  std::optional<ValueFile> file;
  std::optional<RunSource> source;
  failure.of([&] { source.emplace(device, values, own); });
  if (ranks.is_first()) {
    failure.of([&] { file.emplace(values.file, values.options.file); });
    bytes = window_bytes(values.file, values.options.file.stripe_bytes, values.options.window_bytes);
  }
  bytes = comm::broadcast_value(group, bytes);
  auto of_group = windows_of_group(group, own, bytes);
  Windows mine(plain(own), bytes);
  Assembly assembly;
  std::string message;
  for (const auto window : comm::broadcast_value(group, numbers_of(of_group))) {
    const auto parts = mine.parts_in(window);
    std::int64_t size = 0;
    for (const auto& part : parts) size += part.end - part.begin;
    // The receiver expects this size, even if reading the values fails.
    message.resize(static_cast<std::size_t>(size));
    auto* to = reinterpret_cast<std::byte*>(message.data());
    failure.of([&] {
      for (const auto& part : parts) {
        source->take(part, to);
        to += part.end - part.begin;
      }
    });
    const auto messages = group.gather(message, 0);
    if (values.options.file.progress) values.options.file.progress();
    if (!ranks.is_first()) continue;
    for (std::size_t rank = 0; rank < messages.size(); ++rank) {
      auto rest = std::as_bytes(std::span(messages[rank]));
      for (const auto& part : of_group[rank].parts_in(window)) {
        const auto length = static_cast<std::size_t>(part.end - part.begin);
        assembly.add(part.begin, rest.first(length));
        rest = rest.subspan(length);
      }
    }
    failure.of([&] { assembly.write_to(*file); });
  }
  if (ranks.is_first())
    failure.of([&] { file->sync(); });  // some file systems notice only now that the space is short
  group.barrier();                      // where waiting takes no core from the first
  failure.rethrow();
  return source->sums();
}

std::vector<io::RangeSum> write_alone(device::Runtime& device, const ValuesToWrite& values) {
  ValueWriter writer(values);
  Staging staging(device, values.options.file.transfer_elements);
  for (const auto& [role, tensor, begin, part] : parts_of(values.pieces, staging)) {
    if (role >= roles_of(values.tensors[static_cast<std::size_t>(tensor)])) continue;
    writer.write(role, tensor, begin, {staging.fetch(part), static_cast<std::size_t>(part.elements())});
  }
  return writer.finish();
}

}  // namespace

std::vector<io::RangeSum> write_pieces(device::Runtime& device, const NodeRanks& ranks,
                                       const ValuesToWrite& values) {
  return ranks.group().size() == 1 ? write_alone(device, values) : write_for_group(device, ranks, values);
}

std::int64_t window_bytes(const std::filesystem::path& file, std::int64_t stripe_bytes, std::int64_t least) {
  constexpr std::int64_t kMostOfAStripe = std::int64_t{64} << 20;
  std::int64_t stripe = stripe_bytes;
  struct stat status {};
  if (stripe == 0 && ::stat(file.c_str(), &status) == 0) stripe = status.st_blksize;
  stripe = std::clamp(stripe, std::int64_t{1}, kMostOfAStripe);
  return round_up(least, stripe);
}

}  // namespace llampi::checkpoint
