// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/checksums.hpp"

#include <hdf5.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "checkpoint/state_fields.hpp"
#include "checkpoint/tensor_list.hpp"

namespace llampi::checkpoint {
namespace {

constexpr const char* kBlockElements = "checksum_block_elements";  // of the file; without it, no checksums
constexpr const char* kMetadata = "metadata_crc32";                // of the file
constexpr const char* kBlocks = "crc32";                           // of each dataset

/// The checksum of numbers and texts, one after another.
class Digest {
 public:
  void add(const std::string& text) { add_bytes(text.c_str(), std::strlen(text.c_str()) + 1); }
  void add(std::int64_t number) { add_bytes(&number, sizeof number); }
  void add(double number) { add_bytes(&number, sizeof number); }
  void add(bool flag) { add(std::int64_t{flag}); }
  void add(const std::vector<std::int64_t>& numbers) {
    add_bytes(numbers.data(), numbers.size() * sizeof numbers[0]);
  }
  void add(const std::vector<std::uint32_t>& numbers) {
    add_bytes(numbers.data(), numbers.size() * sizeof numbers[0]);
  }
  std::uint32_t value() const { return value_; }

 private:
  void add_bytes(const void* bytes, std::size_t count) {
    value_ = io::crc32_of({static_cast<const std::byte*>(bytes), count}, value_);
  }
  std::uint32_t value_ = 0;
};

std::int64_t read_block_elements(hid_t file) {
  if (!has_checksums(file)) return 0;
  const auto elements = io::hdf5::read_int64(file, kBlockElements);
  if (elements < 1) throw_user_error("{}: {} = {}", io::hdf5::file_name(file), kBlockElements, elements);
  return elements;
}

std::vector<std::uint32_t> read_blocks(hid_t dataset, const std::vector<std::int64_t>& shape,
                                       std::int64_t block_elements) {
  const auto blocks = io::blocks_of(elements_of(shape), block_elements);
  return io::hdf5::read_uint32s(dataset, kBlocks, static_cast<std::size_t>(blocks));
}

std::string path_of(std::size_t role, const std::string& name) {
  return fmt::format("/{}/{}", kRoles[role].group, name);
}

/// Calls visit(role, tensor, dataset's index) for all that are open.
template <class Visitor>
void for_each_open(const Datasets& datasets, Visitor&& visit) {
  for (std::size_t role = 0; role < datasets.size(); ++role) {
    const std::size_t tensors = datasets[role].size();
    for (std::size_t t = 0; t < tensors; ++t) {
      if (datasets[role][t]) visit(role, t, dataset_index(role, static_cast<int>(t), tensors));
    }
  }
}

}  // namespace

std::vector<std::int64_t> Checksums::elements() const {
  std::vector<std::int64_t> elements;
  for (const auto& dataset : datasets)
    elements.push_back(dataset.path.empty() ? 0 : elements_of(dataset.shape));
  return elements;
}

std::vector<std::int64_t> Checksums::element_bytes() const {
  std::vector<std::int64_t> bytes;
  for (const auto& dataset : datasets) bytes.push_back(dataset.element_bytes);
  return bytes;
}

Checksums checksums_for(const std::vector<TensorInfo>& tensors, std::int64_t block_elements, DType moments) {
  Checksums checksums{block_elements, std::vector<DatasetSums>(kRoles.size() * tensors.size())};
  for (std::size_t role = 0; role < kRoles.size(); ++role) {
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      if (role >= roles_of(tensors[t])) continue;
      auto& dataset = checksums.datasets[dataset_index(role, static_cast<int>(t), tensors.size())];
      dataset = {path_of(role, tensors[t].name), tensors[t].shape, {}, element_bytes_of(role, moments)};
      dataset.blocks.resize(
          static_cast<std::size_t>(io::blocks_of(elements_of(tensors[t].shape), block_elements)));
    }
  }
  return checksums;
}

void set_blocks(Checksums& checksums, const std::vector<io::RangeSum>& whole) {
  std::size_t expected = 0;
  for (const auto& dataset : checksums.datasets) expected += dataset.blocks.size();
  for (std::size_t i = 0; i < whole.size(); ++i) {
    require(i == 0 || whole[i].dataset != whole[i - 1].dataset || whole[i].begin != whole[i - 1].begin,
            "a block that has two checksums");
    const auto block = static_cast<std::size_t>(whole[i].begin / checksums.block_elements);
    checksums.datasets[whole[i].dataset].blocks.at(block) = whole[i].crc;
  }
  require(whole.size() == expected, "a block that has no checksum");
}

std::uint32_t metadata_checksum(const CheckpointSummary& about, const Checksums& checksums) {
  Digest digest;
  for (const auto& text : {about.program_version, about.git_sha, about.created, about.texts.model_config,
                           about.texts.run_config}) {
    digest.add(text);
  }
  if (!about.texts.chat_template.empty()) digest.add(about.texts.chat_template);
  if (!about.texts.adapter.empty()) digest.add(about.texts.adapter);
  const auto add_field = [&](const char*, const auto& field) { digest.add(field); };
  for_each_field(about.state, add_field);
  for_each_later_field(about.state, add_field);
  digest.add(checksums.block_elements);

  std::vector<const DatasetSums*> by_path;
  for (const auto& dataset : checksums.datasets) {
    if (!dataset.path.empty()) by_path.push_back(&dataset);
  }
  std::sort(by_path.begin(), by_path.end(),
            [](const DatasetSums* a, const DatasetSums* b) { return a->path < b->path; });
  for (const auto* dataset : by_path) {
    digest.add(dataset->path);
    digest.add(dataset->shape);
    digest.add(dataset->blocks);
  }
  return digest.value();
}

void create_checksums(hid_t file, const Datasets& datasets, const Checksums& checksums) {
  const io::Hdf5Lock lock;
  io::hdf5::write_int64(file, kBlockElements, checksums.block_elements);
  io::hdf5::create_uint32s(file, kMetadata, 1);
  for_each_open(datasets, [&](std::size_t role, std::size_t tensor, int index) {
    io::hdf5::create_uint32s(datasets[role][tensor].id(), kBlocks, checksums.datasets[index].blocks.size());
  });
}

void write_checksums(hid_t file, const Datasets& datasets, const Checksums& checksums,
                     std::uint32_t metadata) {
  const io::Hdf5Lock lock;
  io::hdf5::write_uint32s(file, kMetadata, {metadata});
  for_each_open(datasets, [&](std::size_t role, std::size_t tensor, int index) {
    io::hdf5::write_uint32s(datasets[role][tensor].id(), kBlocks, checksums.datasets[index].blocks);
  });
}

bool has_checksums(hid_t file) { return io::hdf5::has_attribute(file, kBlockElements); }

std::uint32_t read_metadata_checksum(hid_t file) { return io::hdf5::read_uint32s(file, kMetadata, 1)[0]; }

Checksums checksums_of(const Metadata& metadata, const std::vector<TensorInfo>& tensors) {
  const auto& all = metadata.checksums;
  if (!all) return {};
  std::map<std::string, const DatasetSums*> by_path;
  for (const auto& dataset : all.datasets) by_path[dataset.path] = &dataset;
  Checksums checksums = checksums_for(tensors, all.block_elements, DType::float32);
  for (auto& dataset : checksums.datasets) {
    if (!dataset.path.empty()) dataset = *by_path.at(dataset.path);
  }
  return checksums;
}

Checksums read_all_checksums(hid_t file) {
  const io::Hdf5Lock lock;
  Checksums checksums{read_block_elements(file), {}};
  if (!checksums) return checksums;
  for (std::size_t role = 0; role < kRoles.size(); ++role) {
    if (role >= kRolesWithoutOptimizer && !io::hdf5::has_link(file, "optimizer")) break;
    for_each_stored(file, kRoles[role], [&](const std::string& name, hid_t dataset) {
      const auto shape = io::hdf5::shape(dataset);
      checksums.datasets.push_back({path_of(role, name), shape,
                                    read_blocks(dataset, shape, checksums.block_elements),
                                    size_of(stored_dtype(kRoles[role], dataset))});
    });
  }
  return checksums;
}

void require_right(const std::filesystem::path& file, const Checksums& checksums,
                   const std::vector<io::RangeSum>& whole) {
  for (const auto& sum : whole) {
    const auto& dataset = checksums.datasets[static_cast<std::size_t>(sum.dataset)];
    const auto block = static_cast<std::size_t>(sum.begin / checksums.block_elements);
    if (dataset.blocks.at(block) == sum.crc) continue;
    throw DamagedCheckpoint(fmt::format("{} is damaged: elements {} to {} of {} do not fit their checksum",
                                        file.string(), sum.begin, sum.begin + sum.elements - 1,
                                        dataset.path));
  }
}

}  // namespace llampi::checkpoint
