// SPDX-License-Identifier: Apache-2.0
// Writing a Hugging Face folder's weights.
#include <nlohmann/json.hpp>
#include <numeric>
#include <regex>

#include "checkpoint/safetensors_file.hpp"
#include "checkpoint/stored_values.hpp"
#include "checkpoint/tensor_list.hpp"
#include "checkpoint/tensor_parts.hpp"
#include "checkpoint/weights_folder.hpp"
#include "llampi/checkpoint/staging.hpp"
#include "llampi/checkpoint/weights.hpp"
#include "llampi/comm/agree.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/comm/on_rank_0.hpp"
#include "llampi/core/error.hpp"
#include "llampi/io/output_file.hpp"
#include "llampi/io/posix_file.hpp"
#include "llampi/io/removed_on_signal.hpp"
#include "llampi/io/temporary_file.hpp"

namespace llampi::checkpoint {
namespace {

namespace fs = std::filesystem;

/// Whether transformers, or an export, gives a file of weights this name: "model-00001-of-00004.safetensors".
bool is_weights_name(const std::string& name) {
  static const std::regex kShard(R"(model-\d{5,}-of-\d{5,}\.safetensors)");
  return name == kWholeWeights || name == kWeightsIndex || std::regex_match(name, kShard);
}

/// One file to write.
struct ShardFile {
  std::string name;
  std::vector<int> tensors;  ///< of the source
  std::int64_t data_bytes = 0;
};

/// As many tensors in a file as the limit allows, in the source's order.
std::vector<ShardFile> divide(const std::vector<TensorInfo>& tensors, const ExportOptions& options) {
  std::vector<ShardFile> files(1);
  for (int t = 0; t < static_cast<int>(tensors.size()); ++t) {
    const std::int64_t bytes = elements_of(tensors[t].shape) * size_of(options.dtype);
    if (!files.back().tensors.empty() && files.back().data_bytes + bytes > options.max_shard_bytes)
      files.emplace_back();
    files.back().tensors.push_back(t);
    files.back().data_bytes += bytes;
  }
  for (std::size_t i = 0; i < files.size(); ++i) {
    files[i].name = files.size() == 1 ? kWholeWeights
                                      : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, files.size());
  }
  return files;
}

std::string index_text(const std::vector<TensorInfo>& tensors, const std::vector<ShardFile>& files) {
  nlohmann::ordered_json index;
  index["metadata"]["total_size"] =
      std::accumulate(files.begin(), files.end(), std::int64_t{0},
                      [](std::int64_t sum, const ShardFile& file) { return sum + file.data_bytes; });
  for (const auto& file : files) {
    for (const int tensor : file.tensors) index["weight_map"][tensors[tensor].name] = file.name;
  }
  return index.dump(2) + "\n";
}

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

class Exporter {
 public:
  Exporter(comm::World& world, const WeightsSource& source, fs::path folder, const ExportOptions& options)
      : world_(world),
        source_(source),
        folder_(std::move(folder)),
        options_(options),
        files_(divide(source.tensors(), options)),
        ending_(world.broadcast(io::temporary_beside("").string(), 0)) {
    require(options.dtype == DType::float32 || options.dtype == DType::bfloat16, "dtype of an export");
  }

  void run() {
    comm::on_rank_0(world_, [&] { refuse_other_weights(); });
    const io::RemovedOnSignal removed(temporaries());
    try {
      comm::on_rank_0(world_, [&] { create(); });
      comm::agree(world_, [&] { write_values(); });
      comm::on_rank_0(world_, [&] { rename(); });
    } catch (...) {
      remove_temporaries();
      throw;
    }
  }

 private:
  fs::path temporary(const ShardFile& file) const { return folder_ / (file.name + ending_); }
  fs::path temporary_index() const { return folder_ / (kWeightsIndex + ending_); }

  std::string beginning(const ShardFile& file) const {
    std::vector<TensorInfo> tensors;
    for (const int tensor : file.tensors) tensors.push_back(source_.tensors()[tensor]);
    return safetensors_beginning(tensors, options_.dtype);
  }

  /// Weights of two exports in one folder would be taken for one model.
  void refuse_other_weights() const {
    if (options_.overwrite) return;
    for (const auto& entry : fs::directory_iterator(folder_)) {
      const auto name = entry.path().filename().string();
      if (name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json")) {
        throw_user_error(
            "{} already holds weights ({}); choose another folder, or replace them with --overwrite",
            folder_.string(), name);
      }
    }
  }

  /// All of them before the first new file gets its name, so that there is never a mixture of two models; and
  /// config.json, without which the folder is not taken for a model.
  void remove_other_weights() const {
    std::vector<fs::path> old{folder_ / "config.json"};
    for (const auto& entry : fs::directory_iterator(folder_)) {
      if (is_weights_name(entry.path().filename().string())) old.push_back(entry.path());
    }
    for (const auto& file : old) {
      std::error_code error;
      fs::remove(file, error);
      if (error) throw_user_error("{} cannot be replaced: {}", file.string(), error.message());
    }
    io::sync_folder_of(old.front());
  }

  void create() const {
    for (const auto& file : files_)
      io::PosixFile::create(temporary(file)).write_at(0, bytes_of(beginning(file)));
    if (files_.size() > 1)
      io::PosixFile::create(temporary_index()).write_at(0, bytes_of(index_text(source_.tensors(), files_)));
  }

  void write_values() const {
    const std::int64_t element_bytes = size_of(options_.dtype);
    std::vector<float> values(static_cast<std::size_t>(kTransferElements));
    Encoding encoding;
    TensorParts parts(world_.rank(), world_.size(), kTransferElements);
    for (const auto& file : files_) {
      const auto out = io::PosixFile::open_for_writing(temporary(file));
      auto offset = static_cast<std::int64_t>(beginning(file).size());
      for (const int tensor : file.tensors) {
        const std::int64_t elements = elements_of(source_.tensors()[tensor].shape);
        parts.next(elements, [&](std::int64_t begin, std::int64_t count) {
          source_.read(tensor, begin, count, values.data());
          const auto read = std::span(values).first(static_cast<std::size_t>(count));
          out.write_at(offset + begin * element_bytes, encoding.encode(read, element_bytes));
        });
        offset += elements * element_bytes;
      }
      out.sync();
    }
  }

  void rename() const {
    refuse_other_weights();  // there may be some meanwhile
    if (options_.overwrite) remove_other_weights();
    for (const auto& file : files_) io::rename_into_place(temporary(file), folder_ / file.name);
    if (files_.size() == 1) return;
    io::PosixFile::open_for_writing(temporary_index()).sync();
    io::rename_into_place(temporary_index(), folder_ / kWeightsIndex);
  }

  /// On rank 0; the others make none.
  std::vector<fs::path> temporaries() const {
    if (world_.rank() != 0) return {};
    std::vector<fs::path> files{temporary_index()};
    for (const auto& file : files_) files.push_back(temporary(file));
    return files;
  }

  void remove_temporaries() const {
    std::error_code ignored;
    for (const auto& file : temporaries()) fs::remove(file, ignored);
  }

  comm::World& world_;
  const WeightsSource& source_;
  fs::path folder_;
  ExportOptions options_;
  std::vector<ShardFile> files_;
  std::string ending_;  ///< of temporary names
};

}  // namespace

void export_weights(comm::World& world, const WeightsSource& source, const fs::path& folder,
                    const ExportOptions& options) {
  Exporter(world, source, folder, options).run();
}

}  // namespace llampi::checkpoint
