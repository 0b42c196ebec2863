// SPDX-License-Identifier: Apache-2.0
// What saving and loading cost, against copying and plain reads and writes of the same bytes on the same
// disk:
//
//   mpirun -n RANKS build/bench/checkpoint_bench FOLDER [REPETITIONS]
//
// The state of a model of 110 million parameters, float32: 1.3 GB over all ranks; that of an engine on up to 8 ranks, and on more,
// for which memory would not last, shards as full_shard cuts them. Written by every rank, and by 8 and by 1 of this node. Plain files are written and
// read by all ranks at once, each its equal part of one file, 4 MiB at a time, and synced as checkpoints are;
// pages are dropped before anything is read. dd writes as many zeros by itself (bs=4M conv=fsync). A repetition does each once,
// so that all see the same machine. Both checkpoint.io are measured, where HDF5 is parallel.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "llampi/checkpoint/checkpoint.hpp"
#include "llampi/checkpoint/engine_weights.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/core/text.hpp"
#include "llampi/fsdp/engine.hpp"
#include "llampi/io/hdf5.hpp"
#include "llampi/io/posix_file.hpp"
#include "llampi/model/llama.hpp"

namespace {

using namespace llampi;
namespace fs = std::filesystem;

constexpr std::int64_t kBlock = std::int64_t{4} << 20;

llampi::model::LlamaConfig shape() {
  llampi::model::LlamaConfig config;
  config.vocab_size = 32000;
  config.hidden_size = 768;
  config.intermediate_size = 2048;
  config.layers = 12;
  config.query_heads = config.key_value_heads = 12;
  config.head_dim = 64;
  config.max_position_embeddings = 2048;
  config.tie_word_embeddings = true;
  config.json = "{}";
  return config;
}

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Seconds from when all ranks begin to when all have ended. @param world a split one, in which who waits takes no core from dd
double timed(llampi::comm::World& world, const std::function<void()>& work) {
  world.barrier();
  const double begin = now();
  work();
  world.barrier();
  return now() - begin;
}

/// This rank's state, tensor by tensor.
std::vector<Tensor> state_of(const std::vector<llampi::checkpoint::TensorPiece>& pieces) {
  std::vector<Tensor> tensors;
  for (const auto& piece : pieces) {
    for (const auto& tensor : {piece.model, piece.exp_avg, piece.exp_avg_sq}) {
      if (tensor.bytes() > 0) tensors.push_back(tensor);
    }
  }
  return tensors;
}

/// This rank's equal part of each block, of the embedding and of the rest, without an engine.
class Shards {
 public:
  Shards(const llampi::model::Model& model, int rank, int ranks) {
    const auto& parameters = model.parameters();
    for (std::size_t first = 0, last = 0; first < parameters.size(); first = last) {
      const auto unit = unit_of(parameters[first].name);
      std::int64_t all = 0;
      for (; last < parameters.size() && unit_of(parameters[last].name) == unit; ++last) {
        infos_.push_back({parameters[last].name, parameters[last].shape});
        all += elements_of(infos_.back());
      }
      const std::int64_t begin = all * rank / ranks, end = all * (rank + 1) / ranks;
      std::int64_t at = 0;
      for (std::size_t i = first; i < last; at += elements_of(infos_[i]), ++i)
        add(static_cast<int>(i), std::max(begin, at) - at, std::min(end, at + elements_of(infos_[i])) - at);
    }
  }
  const std::vector<llampi::checkpoint::TensorInfo>& infos() const { return infos_; }
  const std::vector<llampi::checkpoint::TensorPiece>& pieces() const { return pieces_; }

 private:
  /// "model.layers.3"
  static std::string unit_of(const std::string& name) {
    return name.substr(0, name.find('.', name.find("layers.") + 7));
  }
  static std::int64_t elements_of(const llampi::checkpoint::TensorInfo& info) {
    std::int64_t elements = 1;
    for (const auto extent : info.shape) elements *= extent;
    return elements;
  }
  void add(int tensor, std::int64_t begin, std::int64_t end) {
    if (begin >= end) return;
    const auto memory = [&] {
      return Tensor{memory_.emplace_back(static_cast<std::size_t>(end - begin), 0.5F).data(),
                    llampi::DType::float32, 1, end - begin};
    };
    llampi::checkpoint::TensorPiece piece{.tensor = tensor, .begin = begin, .model = memory()};
    piece.exp_avg = memory();
    piece.exp_avg_sq = memory();
    pieces_.push_back(piece);
  }

  std::vector<llampi::checkpoint::TensorInfo> infos_;
  std::vector<llampi::checkpoint::TensorPiece> pieces_;
  std::vector<std::vector<float>> memory_;
};

void drop_pages(const fs::path& file) {
  const int descriptor = ::open(file.c_str(), O_RDONLY);
  if (descriptor < 0) return;
  ::posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED);
  ::close(descriptor);
}

struct Row {
  const char* what;
  std::vector<double> seconds = {};

  double median() const {
    auto sorted = seconds;
    std::sort(sorted.begin(), sorted.end());
    return sorted[sorted.size() / 2];
  }
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: checkpoint_bench FOLDER [REPETITIONS]\n");
    return 2;
  }
  const fs::path folder = argv[1], checkpoint = folder / "bench.h5", plain = folder / "bench.plain";
  const int repetitions = argc > 2 ? std::atoi(argv[2]) : 5;
  const auto world = llampi::comm::World::create();
  const auto waiting = world->split(0);
  const auto model = llampi::model::make_llama(shape());
  const auto device = llampi::device::make_cpu_device(1);
  llampi::fsdp::EngineOptions options;
  options.batch = {1, 16};
  options.snapshot = true;
  options.parameter_groups = llampi::optim::parameter_groups(model->parameters(), {.weight_decay = 0.1});
  std::optional<llampi::fsdp::Engine> engine;
  std::optional<Shards> shards;
  if (world->size() <= 8) {
    engine.emplace(*model, *device, *world, options);
    engine->initialise(0);
  } else {
    shards.emplace(*model, world->rank(), world->size());
  }

  const auto infos = engine ? llampi::checkpoint::tensor_infos(*engine) : shards->infos();
  const auto pieces =
      engine ? llampi::checkpoint::tensor_pieces(*engine, engine->pieces_to_save()) : shards->pieces();
  const auto tensors = state_of(pieces);
  std::int64_t bytes = 0;
  for (const auto& tensor : tensors) bytes += tensor.bytes();
  std::vector<std::byte> copy(static_cast<std::size_t>(bytes));
  std::int64_t begin = 0, all = bytes;
  {
    std::vector<std::int64_t> sizes(static_cast<std::size_t>(world->size()));
    sizes[static_cast<std::size_t>(world->rank())] = bytes;
    world->sum(sizes);
    for (int r = 0; r < world->rank(); ++r) begin += sizes[static_cast<std::size_t>(r)];
    world->sum(std::span(&all, 1));
  }

  Row copied{"copy of the state (memcpy)"}, snapshot{"snapshot: what training waits for"}, dd{"dd"},
      written{"plain write"}, saved{"save_checkpoint, direct"}, saved_hdf5{"save_checkpoint, hdf5"},
      saved_by_8{"save_checkpoint, direct, 8 writers"}, saved_by_1{"save_checkpoint, direct, 1 writer"},
      read{"plain read"}, loaded{"load_checkpoint, direct"}, loaded_hdf5{"load_checkpoint, hdf5"};
  const bool has_hdf5 = llampi::io::hdf5::is_parallel();
  const std::string dd_command = "dd if=/dev/zero of='" + plain.string() +
                                 "' bs=4M count=" + std::to_string(all / kBlock) + " conv=fsync 2>/dev/null";
  const auto in_blocks = [&](const auto& work) {
    for (std::int64_t at = 0; at < bytes; at += kBlock) work(at, std::min(kBlock, bytes - at));
  };
  if (engine) engine->snapshot();  // touches its memory
  for (int i = 0; i < repetitions; ++i) {
    copied.seconds.push_back(timed(*waiting, [&] {
      std::byte* to = copy.data();
      for (const auto& tensor : tensors)
        to = std::copy_n(static_cast<std::byte*>(tensor.data), tensor.bytes(), to);
    }));
    if (engine) snapshot.seconds.push_back(timed(*waiting, [&] { engine->snapshot(); }));
    if (world->rank() == 0) {  // deleting takes time, too
      llampi::io::PosixFile::create(plain);
      fs::remove(checkpoint);
    }
    bool dd_worked = true;
    dd.seconds.push_back(timed(*waiting, [&] {
      if (world->rank() == 0) dd_worked = std::system(dd_command.c_str()) == 0;
    }));
    if (!dd_worked) std::fprintf(stderr, "dd failed: %s\n", dd_command.c_str());
    if (world->rank() == 0) llampi::io::PosixFile::create(plain);
    written.seconds.push_back(timed(*waiting, [&] {
      const auto file = llampi::io::PosixFile::open_for_writing(plain);
      in_blocks([&](std::int64_t at, std::int64_t count) {
        file.write_at(begin + at,
                      std::span(copy).subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(count)));
      });
      file.sync();
    }));
    const auto save = [&](llampi::checkpoint::FileIo io, int writers = 0) {
      if (world->rank() == 0) fs::remove(checkpoint);
      return timed(*waiting, [&] {
        llampi::checkpoint::save_checkpoint(*world, *device, checkpoint,
                                            {infos, pieces, {.step = 1}, {"{}", ""}},
                                            {.io = io, .writers_per_node = writers});
      });
    };
    if (has_hdf5) saved_hdf5.seconds.push_back(save(llampi::checkpoint::FileIo::hdf5));
    if (world->size() > 8) saved_by_8.seconds.push_back(save(llampi::checkpoint::FileIo::direct, 8));
    if (world->size() > 1) saved_by_1.seconds.push_back(save(llampi::checkpoint::FileIo::direct, 1));
    saved.seconds.push_back(save(llampi::checkpoint::FileIo::direct));
    drop_pages(plain);
    read.seconds.push_back(timed(*waiting, [&] {
      const auto file = llampi::io::PosixFile::open_for_reading(plain);
      in_blocks([&](std::int64_t at, std::int64_t count) {
        file.read_at(begin + at,
                     std::span(copy).subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(count)));
      });
    }));
    const auto load = [&](llampi::checkpoint::FileIo io) {
      drop_pages(checkpoint);
      return timed(*waiting, [&] {
        llampi::checkpoint::load_checkpoint(
            *world, *device, checkpoint, infos,
            engine ? llampi::checkpoint::tensor_pieces(*engine, engine->pieces_to_load()) : pieces,
            {.io = io});
      });
    };
    loaded.seconds.push_back(load(llampi::checkpoint::FileIo::direct));
    if (has_hdf5) loaded_hdf5.seconds.push_back(load(llampi::checkpoint::FileIo::hdf5));
  }
  if (world->rank() == 0) {
    std::printf("%s on %d ranks, medians of %d\n", format_bytes(all).c_str(), world->size(), repetitions);
    for (const auto* row : {&copied, &snapshot, &dd, &written, &saved, &saved_by_8, &saved_by_1, &saved_hdf5,
                            &read, &loaded, &loaded_hdf5}) {
      if (row->seconds.empty()) continue;
      std::printf("  %-36s %8.3f s %8.2f GB/s\n", row->what, row->median(),
                  static_cast<double>(all) / row->median() / 1e9);
    }
    if (engine) std::printf("snapshot / copy %.2f; ", snapshot.median() / copied.median());
    std::printf("plain write / save %.2f; plain read / load %.2f\n", written.median() / saved.median(),
                read.median() / loaded.median());
    std::printf("dd / save: direct %.2f", dd.median() / saved.median());
    if (!saved_by_8.seconds.empty()) std::printf(", by 8 writers %.2f", dd.median() / saved_by_8.median());
    if (!saved_by_1.seconds.empty()) std::printf(", by 1 writer %.2f", dd.median() / saved_by_1.median());
    if (has_hdf5) std::printf(", hdf5 %.2f", dd.median() / saved_hdf5.median());
    std::printf("\n");
    fs::remove(plain);
    fs::remove(checkpoint);
  }
  return 0;
}
