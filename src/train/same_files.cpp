// SPDX-License-Identifier: Apache-2.0
#include "train/same_files.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>

#include <algorithm>
#include <map>
#include <span>
#include <utility>

#include "llampi/comm/comm.hpp"
#include "llampi/comm/exchange.hpp"
#include "llampi/comm/failure.hpp"
#include "llampi/comm/format_ranks.hpp"
#include "llampi/core/error.hpp"
#include "llampi/core/integers.hpp"
#include "llampi/core/text.hpp"
#include "llampi/io/block_sums.hpp"
#include "llampi/io/posix_file.hpp"
#include "llampi/selfcheck/outliers.hpp"

namespace llampi::train {
namespace {

namespace fs = std::filesystem;

/// A file as one rank sees it.
struct SeenFile {
  fs::path path;
  std::int64_t bytes = 0;
  std::uint64_t device = 0, inode = 0;

  auto members() { return std::tie(path, bytes, device, inode); }
};

SeenFile look_at(const fs::path& path) {
  struct stat about = {};
  if (::stat(path.c_str(), &about) != 0)
    throw_user_error("{}: {}", path.string(), std::generic_category().message(errno));
  return {path, about.st_size, about.st_dev, about.st_ino};
}

std::uint32_t crc_of_text(const std::string& text) { return io::crc32_of(std::as_bytes(std::span(text))); }

/// What all ranks tell all others before anything is read: little, whatever the number of files.
struct Glance {
  std::uint32_t identity = 0;  ///< of the files that this rank sees
  std::uint32_t sizes = 0;     ///< of their names and sizes
  comm::Failure failure;

  auto members() { return std::tie(identity, sizes, failure); }
};

class FilesOfNodes {
 public:
  FilesOfNodes(comm::World& world, const CompareLimits& limits) : world_(world), limits_(limits) {}

  FileComparison run(const std::function<std::vector<fs::path>()>& list);

 private:
  bool look(const std::function<std::vector<fs::path>()>& list);
  bool find_failure(const std::vector<comm::Failure>& failures);
  std::string other_size(int rank, int usual);
  void divide(const std::vector<Glance>& glances);
  void compare_contents();
  std::vector<std::uint64_t> own_sums(const std::vector<FileBlock>& blocks) const;
  std::vector<std::string> names_of(const std::vector<int>& ranks) const;
  std::string who_have(const std::vector<int>& ranks) const;

  comm::World& world_;
  const CompareLimits& limits_;
  std::vector<std::string> hosts_;
  std::vector<SeenFile> files_;
  std::vector<int> reader_of_rank_;
  int smallest_reader_ = 0;     ///< its ranks
  int place_ = 0, places_ = 0;  ///< of this rank in its reader
  FileComparison result_;
};

/// Nodes of which all ranks are among `ranks`, and the other ranks.
std::vector<std::string> FilesOfNodes::names_of(const std::vector<int>& ranks) const {
  const auto& node_of_rank = world_.topology().node_of_rank;
  std::map<int, int> of_node;
  for (const int rank : ranks) ++of_node[node_of_rank[static_cast<std::size_t>(rank)]];
  std::vector<std::string> names;
  for (const int rank : ranks) {
    const int node = node_of_rank[static_cast<std::size_t>(rank)];
    const auto& host = hosts_[static_cast<std::size_t>(rank)];
    if (of_node[node] < std::count(node_of_rank.begin(), node_of_rank.end(), node)) {
      names.push_back(comm::format_rank(rank, host));
    } else if (std::ranges::find(node_of_rank, node) - node_of_rank.begin() == rank) {  // once
      names.push_back("node " + host);
    }
  }
  return names;
}

/// "node a has", "node a, node b have".
std::string FilesOfNodes::who_have(const std::vector<int>& ranks) const {
  constexpr std::size_t kNamed = 8;
  auto names = names_of(ranks);
  const std::size_t all = names.size();
  names.resize(std::min(all, kNamed));
  return fmt::format("{}{} {}", fmt::join(names, ", "),
                     all > kNamed ? fmt::format(" and {} more", all - kNamed) : std::string(),
                     all == 1 ? "has" : "have");
}

/// True if some rank failed; if all did, it is the user's mistake.
bool FilesOfNodes::find_failure(const std::vector<comm::Failure>& failures) {
  const auto failed = [](const comm::Failure& f) { return f.kind != comm::Failure::Kind::none; };
  const auto first = std::find_if(failures.begin(), failures.end(), failed);
  if (first == failures.end()) return false;
  if (std::all_of(failures.begin(), failures.end(), failed)) first->rethrow("");
  std::vector<int> ranks;
  for (int rank = 0; rank < world_.size(); ++rank) {
    if (failed(failures[static_cast<std::size_t>(rank)])) ranks.push_back(rank);
  }
  result_.difference = fmt::format("{} files that cannot be read there: {}", who_have(ranks), first->message);
  return true;
}

/// @param rank, usual of which the first sees other names or sizes than the second
std::string FilesOfNodes::other_size(int rank, int usual) {
  const auto seen_by = [&](int root) {
    return comm::unpacked<std::vector<SeenFile>>(world_.broadcast(comm::packed(files_), root));
  };
  const auto others = seen_by(rank), usuals = seen_by(usual);
  for (const auto& file : usuals) {
    const auto same = std::find_if(others.begin(), others.end(),
                                   [&](const auto& other) { return other.path == file.path; });
    if (same == others.end()) return fmt::format("other files, without {}", file.path.string());
    if (same->bytes != file.bytes)
      return fmt::format("{} bytes in {} instead of {}", with_separators(same->bytes), file.path.string(),
                         with_separators(file.bytes));
  }
  return fmt::format("{} instead of {}", count(std::ssize(others), "file"),
                     count(std::ssize(usuals), "file"));
}

/// False if names or sizes differ already.
bool FilesOfNodes::look(const std::function<std::vector<fs::path>()>& list) {
  Glance own;
  own.failure = comm::failure_of(world_, [&] {
    std::string sizes;
    for (const auto& path : list()) {
      files_.push_back(look_at(path));
      sizes += fmt::format("{}\n{}\n", path.string(), files_.back().bytes);
      result_.bytes += files_.back().bytes;
    }
    own.identity = crc_of_text(comm::packed(files_));
    own.sizes = crc_of_text(sizes);
  });
  const auto glances = comm::all_gather_value(world_, own);
  std::vector<comm::Failure> failures;
  for (const auto& glance : glances) failures.push_back(glance.failure);
  if (find_failure(failures)) return false;
  std::vector<std::string> sizes;
  for (const auto& glance : glances) sizes.push_back(std::to_string(glance.sizes));
  if (const auto others = selfcheck::deviating(sizes); !others.empty()) {
    int usual = 0;
    while (std::count(others.begin(), others.end(), usual) > 0) ++usual;
    result_.difference = fmt::format("{} {}", who_have(others), other_size(others.front(), usual));
    return false;
  }
  divide(glances);
  return true;
}

void FilesOfNodes::divide(const std::vector<Glance>& glances) {
  const auto& node_of_rank = world_.topology().node_of_rank;
  std::map<std::pair<int, std::uint32_t>, int> readers;
  std::vector<int> sizes;
  for (std::size_t rank = 0; rank < glances.size(); ++rank) {
    const auto [reader, is_new] = readers.emplace(std::pair(node_of_rank[rank], glances[rank].identity),
                                                  static_cast<int>(sizes.size()));
    if (is_new) sizes.push_back(0);
    auto& size = sizes[static_cast<std::size_t>(reader->second)];
    if (static_cast<int>(rank) == world_.rank()) place_ = size;
    ++size;
    reader_of_rank_.push_back(reader->second);
  }
  places_ = sizes[static_cast<std::size_t>(reader_of_rank_[static_cast<std::size_t>(world_.rank())])];
  smallest_reader_ = *std::min_element(sizes.begin(), sizes.end());
  result_.readers = static_cast<int>(sizes.size());
}

/// One sum for each file: of the checksums of this rank's blocks, each times an odd number of its own, modulo 2^64. So a sum does
/// not depend on how blocks are divided among ranks; a block with another checksum always changes it, and blocks that have changed places too.
std::vector<std::uint64_t> FilesOfNodes::own_sums(const std::vector<FileBlock>& blocks) const {
  std::vector<std::uint64_t> sums(files_.size(), 0);
  const std::size_t begin =
      blocks.size() * static_cast<std::size_t>(place_) / static_cast<std::size_t>(places_);
  const std::size_t end =
      blocks.size() * (static_cast<std::size_t>(place_) + 1) / static_cast<std::size_t>(places_);
  std::vector<std::byte> bytes(static_cast<std::size_t>(kCompareBlockBytes));
  io::PosixFile file;
  for (std::size_t i = begin; i < end; ++i) {
    const auto& block = blocks[i];
    const auto index = static_cast<std::size_t>(block.file);
    if (i == begin || block.file != blocks[i - 1].file)
      file = io::PosixFile::open_for_reading(files_[index].path);
    const auto part = std::span(bytes).first(static_cast<std::size_t>(block.bytes));
    if (file.read_at(block.begin, part) < part.size())
      throw_user_error("{} has become shorter", file.path().string());
    const auto number = static_cast<std::uint64_t>(block.begin / kCompareBlockBytes);
    sums[index] += (2 * number + 1) * io::crc32_of(part);
  }
  return sums;
}

void FilesOfNodes::compare_contents() {
  std::vector<std::int64_t> sizes;
  for (const auto& file : files_) sizes.push_back(file.bytes);
  const std::int64_t rank_bytes = std::min(limits_.rank_bytes, limits_.job_bytes / world_.size());
  const auto blocks = blocks_to_compare(sizes, smallest_reader_ * rank_bytes / kCompareBlockBytes);
  for (const auto& block : blocks) result_.compared_bytes += block.bytes;

  struct Read {
    std::vector<std::uint64_t> sums;
    comm::Failure failure;
    auto members() { return std::tie(sums, failure); }
  };
  Read own;
  own.failure = comm::failure_of(world_, [&] { own.sums = own_sums(blocks); });
  const auto of_ranks = comm::all_gather_value(world_, own);
  std::vector<comm::Failure> failures;
  for (const auto& read : of_ranks) failures.push_back(read.failure);
  if (find_failure(failures)) return;

  int differing = 0;
  for (std::size_t file = 0; file < files_.size(); ++file) {
    std::vector<std::uint64_t> of_readers(static_cast<std::size_t>(result_.readers), 0);
    for (std::size_t rank = 0; rank < of_ranks.size(); ++rank)
      of_readers[static_cast<std::size_t>(reader_of_rank_[rank])] += of_ranks[rank].sums[file];
    std::vector<std::string> values;
    for (const int reader : reader_of_rank_)
      values.push_back(std::to_string(of_readers[static_cast<std::size_t>(reader)]));
    const auto others = selfcheck::deviating(values);
    if (others.empty() || ++differing > 1) continue;
    result_.difference = fmt::format("{} other bytes in {}", who_have(others), files_[file].path.string());
  }
  if (differing > 1) result_.difference += fmt::format(" and in {}", count(differing - 1, "more file"));
}

FileComparison FilesOfNodes::run(const std::function<std::vector<fs::path>()>& list) {
  hosts_ = world_.all_gather(world_.topology().host);
  if (look(list) && result_.readers > 1) compare_contents();
  result_.files = static_cast<int>(files_.size());
  return std::move(result_);
}

}  // namespace

std::vector<FileBlock> blocks_to_compare(const std::vector<std::int64_t>& sizes, std::int64_t most) {
  std::int64_t total = 0;
  for (const auto size : sizes) total += io::blocks_of(size, kCompareBlockBytes);
  most = std::max<std::int64_t>(most, 1);
  const std::int64_t stride = std::max<std::int64_t>(ceil_div(total, most), 1);
  std::vector<FileBlock> blocks;
  std::int64_t number = 0;  // over all files
  for (std::size_t file = 0; file < sizes.size(); ++file) {
    for (std::int64_t begin = 0; begin < sizes[file]; begin += kCompareBlockBytes, ++number) {
      const std::int64_t bytes = std::min(kCompareBlockBytes, sizes[file] - begin);
      const bool is_end = begin == 0 || begin + bytes == sizes[file];
      if (is_end || number % stride == 0) blocks.push_back({static_cast<int>(file), begin, bytes});
    }
  }
  return blocks;
}

FileComparison compare_files(comm::World& world, const std::function<std::vector<fs::path>()>& list,
                             const CompareLimits& limits) {
  return FilesOfNodes(world, limits).run(list);
}

}  // namespace llampi::train
