// SPDX-License-Identifier: Apache-2.0
// What saving and loading cost, against copying and plain reads and writes of the same bytes on the same
// disk:
//
//   mpirun -n RANKS build/bench/checkpoint_bench FOLDER [REPETITIONS]
//
// The state of a model of 110 million parameters, float32: 1.3 GB over all ranks. Plain files are written and
// read by all ranks at once, each its equal part of one file, 4 MiB at a time, and synced as checkpoints are;
// pages are dropped before anything is read. A repetition does each once, so that all see the same machine.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "llampi/checkpoint/checkpoint.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/core/text.hpp"
#include "llampi/fsdp/engine.hpp"
#include "llampi/infer/session.hpp"
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

/// Seconds from when all ranks begin to when all have ended.
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
  const auto model = llampi::model::make_llama(shape());
  const auto device = llampi::device::make_cpu_device(1);
  llampi::fsdp::EngineOptions options;
  options.batch = {1, 16};
  options.snapshot = true;
  options.groups = llampi::optim::parameter_groups(model->parameters(), {.weight_decay = 0.1});
  llampi::fsdp::Engine engine(*model, *device, *world, options);
  engine.initialise(0);

  const auto infos = llampi::infer::tensor_infos(engine);
  const auto pieces = llampi::infer::tensor_pieces(engine.pieces_to_save());
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

  Row copied{"copy of the state (memcpy)"}, snapshot{"snapshot: what training waits for"},
      written{"plain write"}, saved{"save_checkpoint"}, read{"plain read"}, loaded{"load_checkpoint"};
  const auto in_blocks = [&](const auto& work) {
    for (std::int64_t at = 0; at < bytes; at += kBlock) work(at, std::min(kBlock, bytes - at));
  };
  engine.snapshot();  // touches its memory
  for (int i = 0; i < repetitions; ++i) {
    copied.seconds.push_back(timed(*world, [&] {
      std::byte* to = copy.data();
      for (const auto& tensor : tensors)
        to = std::copy_n(static_cast<std::byte*>(tensor.data), tensor.bytes(), to);
    }));
    snapshot.seconds.push_back(timed(*world, [&] { engine.snapshot(); }));
    if (world->rank() == 0) {  // deleting takes time, too
      llampi::io::PosixFile::create(plain);
      fs::remove(checkpoint);
    }
    written.seconds.push_back(timed(*world, [&] {
      const auto file = llampi::io::PosixFile::open_for_writing(plain);
      in_blocks([&](std::int64_t at, std::int64_t count) {
        file.write_at(begin + at,
                      std::span(copy).subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(count)));
      });
      file.sync();
    }));
    saved.seconds.push_back(timed(*world, [&] {
      llampi::checkpoint::save_checkpoint(*world, *device, checkpoint,
                                          {infos, pieces, {.step = 1}, {"{}", ""}});
    }));
    drop_pages(plain);
    read.seconds.push_back(timed(*world, [&] {
      const auto file = llampi::io::PosixFile::open_for_reading(plain);
      in_blocks([&](std::int64_t at, std::int64_t count) {
        file.read_at(begin + at,
                     std::span(copy).subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(count)));
      });
    }));
    drop_pages(checkpoint);
    loaded.seconds.push_back(timed(*world, [&] {
      llampi::checkpoint::load_checkpoint(*world, *device, checkpoint, infos,
                                          llampi::infer::tensor_pieces(engine.pieces_to_load()));
    }));
  }
  if (world->rank() == 0) {
    std::printf("%s on %d ranks, medians of %d\n", format_bytes(all).c_str(), world->size(), repetitions);
    for (const auto* row : {&copied, &snapshot, &written, &saved, &read, &loaded}) {
      std::printf("  %-36s %8.3f s %8.2f GB/s\n", row->what, row->median(),
                  static_cast<double>(all) / row->median() / 1e9);
    }
    std::printf("snapshot / copy %.2f; plain write / save %.2f; plain read / load %.2f\n",
                snapshot.median() / copied.median(), written.median() / saved.median(),
                read.median() / loaded.median());
    fs::remove(plain);
    fs::remove(checkpoint);
  }
  return 0;
}
