// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/schema.hpp"

#include <hdf5.h>

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "checkpoint/state_fields.hpp"
#include "checkpoint/tensor_list.hpp"
#include "llampi/core/error.hpp"
#include "llampi/io/block_sums.hpp"

namespace llampi::checkpoint {
namespace {

using io::hdf5::check;

struct FieldWriter {
  hid_t group;
  void operator()(const char* name, const std::int64_t& value) const {
    io::hdf5::write_int64(group, name, value);
  }
  void operator()(const char* name, const bool& value) const { io::hdf5::write_bool(group, name, value); }
  void operator()(const char* name, const double& value) const { io::hdf5::write_double(group, name, value); }
};

struct FieldReader {
  hid_t group;
  void operator()(const char* name, std::int64_t& value) const { value = io::hdf5::read_int64(group, name); }
  void operator()(const char* name, bool& value) const { value = io::hdf5::read_bool(group, name); }
  void operator()(const char* name, double& value) const { value = io::hdf5::read_double(group, name); }
};

/// All attributes in the object's header, where one checksum covers them, unless one is too long for that.
void keep_attributes_together(hid_t creation_properties) {
  constexpr unsigned kMost = 64;
  io::hdf5::check(H5Pset_attr_phase_change(creation_properties, kMost, 0), "H5Pset_attr_phase_change");
}

io::hdf5::Group create_group(hid_t file, const std::string& name) {
  const io::hdf5::PropertyList properties(io::hdf5::check(H5Pcreate(H5P_GROUP_CREATE), "H5Pcreate"));
  keep_attributes_together(properties.id());
  return io::hdf5::Group(io::hdf5::check(
      H5Gcreate2(file, name.c_str(), H5P_DEFAULT, properties.id(), H5P_DEFAULT), "H5Gcreate2"));
}

/// The datasets of all tensors in all their roles, from functions that give a role's group and a tensor's
/// dataset in a group.
template <class GroupOf, class DatasetOf>
Datasets for_each_dataset(const std::vector<TensorInfo>& tensors, GroupOf&& group_of,
                          DatasetOf&& dataset_of) {
  Datasets datasets;
  for (std::size_t role = 0; role < kRoles.size(); ++role) {
    const auto is_stored = [&](const TensorInfo& tensor) { return role < roles_of(tensor); };
    datasets[role].resize(tensors.size());
    if (role >= kRolesWithoutOptimizer && std::none_of(tensors.begin(), tensors.end(), is_stored)) continue;
    const io::hdf5::Group group = group_of(role);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (is_stored(tensors[i])) datasets[role][i] = dataset_of(role, group.id(), tensors[i]);
    }
  }
  return datasets;
}

}  // namespace

void reading(const std::filesystem::path& file, const std::function<void()>& work) {
  try {
    work();
  } catch (const io::hdf5::DamagedFile& error) {
    throw DamagedCheckpoint(ConfigError::Parts{.problem = error.what()});
  } catch (const io::hdf5::Failure& failure) {
    io::hdf5::throw_if_unreadable(failure, file);
    throw DamagedCheckpoint(
        fmt::format("{} is damaged and cannot be read ({})", file.string(), failure.reason()));
  }
}

namespace {

/// With the driver that leaves names alone: the usual one looks for a real path, which memory does not have.
io::hdf5::PropertyList access_of_memory() {
  auto access = io::hdf5::file_access();
  io::hdf5::check(H5Pset_fapl_stdio(access.id()), "H5Pset_fapl_stdio");
  return access;
}

}  // namespace

io::hdf5::File open_checkpoint(const std::filesystem::path& path) {
  const io::Hdf5Lock lock;
  const auto access = access_of_memory();
  return io::hdf5::File(io::hdf5::check(H5Fopen(path.c_str(), H5F_ACC_RDWR, access.id()), "H5Fopen"));
}

io::hdf5::File create_checkpoint(const std::filesystem::path& path, const FileSettings& settings,
                                 std::int64_t metadata_block_bytes) {
  const io::Hdf5Lock lock;
  const auto access = access_of_memory();
  const auto alignment = static_cast<hsize_t>(settings.alignment_bytes);
  io::hdf5::check(H5Pset_alignment(access.id(), alignment, alignment), "H5Pset_alignment");
  io::hdf5::check(H5Pset_meta_block_size(access.id(), static_cast<hsize_t>(metadata_block_bytes)),
                  "H5Pset_meta_block_size");
  const io::hdf5::PropertyList creation(io::hdf5::check(H5Pcreate(H5P_FILE_CREATE), "H5Pcreate"));
  keep_attributes_together(creation.id());
  return io::hdf5::create_file(path, access.id(), creation.id());
}

void write_attributes(hid_t file, const CheckpointSummary& about) {
  const io::Hdf5Lock lock;
  io::hdf5::write_string(file, "format", kCheckpointFormat);
  io::hdf5::write_int64(file, "format_version", kCheckpointVersion);
  io::hdf5::write_string(file, "program_version", about.program_version);
  io::hdf5::write_string(file, "git_sha", about.git_sha);
  io::hdf5::write_string(file, "created", about.created);
  io::hdf5::write_string(file, "model_config", about.texts.model_config);
  io::hdf5::write_string(file, "run_config", about.texts.run_config);
  if (!about.texts.chat_template.empty())
    io::hdf5::write_string(file, "chat_template", about.texts.chat_template);
  if (!about.texts.adapter.empty()) io::hdf5::write_string(file, "adapter", about.texts.adapter);
  const auto group = create_group(file, "state");
  for_each_field(about.state, FieldWriter{group.id()});
  for_each_later_field(about.state, FieldWriter{group.id()});
}

TrainingState read_state(hid_t file) {
  const io::Hdf5Lock lock;
  TrainingState state;
  const auto group = io::hdf5::open_group(file, "state");
  const FieldReader read{group.id()};
  for_each_field(state, read);
  for_each_later_field(state, [&](const char* name, auto& field) {
    if (io::hdf5::has_attribute(group.id(), name)) read(name, field);
  });
  return state;
}

void require_checkpoint(hid_t file, const std::filesystem::path& path) {
  const io::Hdf5Lock lock;
  if (!io::hdf5::has_attribute(file, "format") ||
      io::hdf5::read_string(file, "format") != kCheckpointFormat) {
    throw_user_error("{} is not a llampi checkpoint; give a file from a run's folder checkpoints",
                     path.string());
  }
  const auto version = io::hdf5::read_int64(file, "format_version");
  if (version != kCheckpointVersion) {
    throw_user_error(
        "{} has checkpoint format {}, and this program reads format {}; use the llampi that wrote it",
        path.string(), version, kCheckpointVersion);
  }
}

Datasets create_datasets(hid_t file, const std::vector<TensorInfo>& tensors, DType moments) {
  const io::Hdf5Lock lock;
  const auto bfloat16 = io::hdf5::bfloat16_type();
  return for_each_dataset(
      tensors,
      [&](std::size_t role) {
        if (role == kRolesWithoutOptimizer) create_group(file, "optimizer");
        return create_group(file, kRoles[role].group);
      },
      [&](std::size_t role, hid_t group, const TensorInfo& tensor) {
        const bool is_narrow = role >= kRolesWithoutOptimizer && moments == DType::bfloat16;
        return io::hdf5::create_contiguous_dataset(group, tensor.name,
                                                   is_narrow ? bfloat16.id() : H5T_IEEE_F32LE, tensor.shape);
      });
}

Datasets open_datasets(hid_t file, const std::vector<TensorInfo>& tensors) {
  const io::Hdf5Lock lock;
  return for_each_dataset(
      tensors, [&](std::size_t role) { return io::hdf5::open_group(file, kRoles[role].group); },
      [](std::size_t, hid_t group, const TensorInfo& tensor) {
        return io::hdf5::open_dataset(group, tensor.name);
      });
}

DType stored_dtype(const Role& role, hid_t dataset) {
  const auto type = io::hdf5::element_type(dataset);
  if (type.is_float32()) return DType::float32;
  if (type.is_bfloat16 && role.group != kRoles[0].group) return DType::bfloat16;
  throw_user_error("{}: {} is {}, not float32; use a checkpoint as llampi wrote it",
                   io::hdf5::file_name(dataset), io::hdf5::object_name(dataset), type.name());
}

void for_each_stored(hid_t file, const Role& role,
                     const std::function<void(const std::string& name, hid_t dataset)>& use) {
  const io::Hdf5Lock lock;
  const auto group = io::hdf5::open_group(file, role.group);
  for (const auto& name : io::hdf5::links(group.id()))
    use(name, io::hdf5::open_dataset(group.id(), name).id());
}

std::vector<TensorInfo> list_datasets(hid_t file, const Role& role) {
  const io::Hdf5Lock lock;
  std::vector<TensorInfo> tensors;
  for_each_stored(file, role, [&](const std::string& name, hid_t dataset) {
    stored_dtype(role, dataset);
    tensors.push_back({name, io::hdf5::shape(dataset)});
  });
  return tensors;
}

void find_moments(hid_t file, std::vector<TensorInfo>& tensors) {
  const io::Hdf5Lock lock;
  std::set<std::string> names;
  if (io::hdf5::has_link(file, "optimizer")) {
    const auto found = io::hdf5::links(io::hdf5::open_group(file, kRoles[kRolesWithoutOptimizer].group).id());
    names.insert(found.begin(), found.end());
  }
  for (auto& tensor : tensors) tensor.optimizer = names.contains(tensor.name);
}

DType moments_of(hid_t file) {
  const io::Hdf5Lock lock;
  if (!io::hdf5::has_link(file, "optimizer")) return DType::float32;
  bool any_is_narrow = false;
  for (std::size_t role = kRolesWithoutOptimizer; role < kRoles.size(); ++role) {
    for_each_stored(file, kRoles[role], [&](const std::string&, hid_t dataset) {
      any_is_narrow = stored_dtype(kRoles[role], dataset) == DType::bfloat16 || any_is_narrow;
    });
  }
  return any_is_narrow ? DType::bfloat16 : DType::float32;
}

namespace {

std::int64_t bytes_of(const CheckpointTexts& texts) {
  return static_cast<std::int64_t>(texts.model_config.size() + texts.run_config.size() +
                                   texts.chat_template.size() + texts.adapter.size());
}

}  // namespace

std::int64_t metadata_block_bytes(const std::vector<TensorInfo>& tensors, const CheckpointTexts& texts,
                                  std::int64_t checksum_block_elements) {
  // Measured: 3 KiB for one tensor, and 390 bytes for each dataset with a name of 55 characters.
  constexpr std::int64_t kFile = 16 * 1024, kDataset = 1024, kChecksum = sizeof(std::uint32_t);
  std::int64_t bytes = kFile + bytes_of(texts);
  for (const auto& tensor : tensors) {
    const std::int64_t blocks = io::blocks_of(elements_of(tensor.shape), checksum_block_elements);
    bytes += static_cast<std::int64_t>(roles_of(tensor)) * (kDataset + kChecksum * blocks);
  }
  return bytes;
}

std::int64_t metadata_bytes(const std::vector<TensorInfo>& tensors, const CheckpointTexts& texts,
                            std::int64_t checksum_block_elements) {
  // Attributes beyond 64 KiB are written outside of the block.
  constexpr std::int64_t kPages = 16 * 1024;
  return metadata_block_bytes(tensors, texts, checksum_block_elements) + kPages + bytes_of(texts);
}

}  // namespace llampi::checkpoint
