// SPDX-License-Identifier: Apache-2.0
// Tokens per second of whole training steps on random tokens, without files:
//
//   mpirun -n RANKS build/bench/step_bench a|b THREADS [STEPS]
//
// (a) hidden 288, 6 layers, 6 heads, ffn 768, sequences of 256, 8 per step; (b) hidden 768, 12 layers, 12
// heads, ffn 2048, sequences of 512, 4 per step; both with a vocabulary of 32000 and a tied head. 2048 tokens
// per step over all ranks.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "llampi/comm/comm.hpp"
#include "llampi/core/philox.hpp"
#include "llampi/core/text.hpp"
#include "llampi/fsdp/engine.hpp"
#include "llampi/model/llama.hpp"

namespace {

using namespace llampi;

llampi::model::LlamaConfig shape(bool large) {
  llampi::model::LlamaConfig config;
  config.vocab_size = 32000;
  config.hidden_size = large ? 768 : 288;
  config.intermediate_size = large ? 2048 : 768;
  config.layers = large ? 12 : 6;
  config.query_heads = config.key_value_heads = large ? 12 : 6;
  config.head_dim = config.hidden_size / config.query_heads;
  config.max_position_embeddings = 2048;
  config.tie_word_embeddings = true;
  return config;
}

llampi::device::HostBatch random_batch(std::int64_t sequences, std::int64_t seq_len, std::uint64_t seed) {
  const RandomStream random(seed, "tokens");
  llampi::device::HostBatch batch(sequences * seq_len);
  for (std::int64_t t = 0; t < batch.token_count(); ++t) {
    const auto i = static_cast<std::size_t>(t);
    batch.tokens()[i] = static_cast<std::int32_t>(random.bits(2 * i) % 32000);
    batch.labels()[i] = static_cast<std::int32_t>(random.bits(2 * i + 1) % 32000);
  }
  batch.cut_into_documents(seq_len);
  batch.valid_labels = batch.token_count();
  return batch;
}

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: step_bench a|b THREADS [STEPS]\n");
    return 2;
  }
  const bool large = std::string(argv[1]) == "b";
  const int steps = argc > 3 ? std::atoi(argv[3]) : 7;
  const auto world = llampi::comm::World::create();
  const auto model = llampi::model::make_llama(shape(large));
  const auto device = llampi::device::make_cpu_device(std::atoi(argv[2]));
  const std::int64_t seq_len = large ? 512 : 256;
  const std::int64_t sequences = (large ? 4 : 8) / world->size();

  llampi::fsdp::EngineOptions options;
  options.batch = {sequences, seq_len};
  options.clip_grad_norm = 1;
  options.parameter_groups = llampi::optim::parameter_groups(model->parameters(), {.weight_decay = 0.1});
  llampi::fsdp::Engine engine(*model, *device, *world, options);
  engine.initialise(0);

  std::vector<double> seconds;
  for (int step = 1; step <= steps; ++step) {
    const std::vector<llampi::device::HostBatch> batches = {
        random_batch(sequences, seq_len, static_cast<std::uint64_t>(step * 100 + world->rank()))};
    world->barrier();
    const double begin = now();
    engine.step(batches, {1e-4, step, 2048});
    world->barrier();
    if (step > 1) seconds.push_back(now() - begin);
  }
  std::sort(seconds.begin(), seconds.end());
  if (world->rank() == 0) {
    const auto& bytes = engine.compiled().arena_bytes;
    std::printf("%s: %d rank(s), %s: %.0f tokens/s (median of %zu steps; %.0f to %.0f), arenas %s + %s\n",
                argv[1], world->size(), device->describe().c_str(), 2048 / seconds[seconds.size() / 2],
                seconds.size(), 2048 / seconds.back(), 2048 / seconds.front(), format_bytes(bytes[0]).c_str(),
                format_bytes(bytes[1]).c_str());
  }
  return 0;
}
