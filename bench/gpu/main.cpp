// SPDX-License-Identifier: Apache-2.0
// Speed of training steps of Llama-3-8B-shaped blocks, on GPUs or, to try it out, on CPUs:
//
//   build/gpu_bench [--seq-len 4096 ...] [--output results.jsonl]     one configuration
//   mpirun -n RANKS build/gpu_bench ...                               on several GPUs
//   build/gpu_bench --table results.jsonl                             all results of a file, as tables
//
// bench/gpu_table.sh runs a set of them, and PyTorch beside it. MFU counts 6 FLOP per parameter of a matrix
// and token, the head included, the embedding not, and attention with its causal half; recomputation does
// not count.
#include <cstdio>
#include <fstream>

#include "gpu/beside.hpp"
#include "gpu/results.hpp"
#include "llampi/comm/comm.hpp"

namespace {

using namespace llampi;
using namespace llampi::bench;

std::int64_t parameter_count(const llampi::model::Model& model) {
  std::int64_t count = 0;
  for (const auto& parameter : model.parameters()) count += parameter.elements();
  return count;
}

/// @param options become those of what was measured
Measured measure(llampi::comm::World& mpi, const Machine& machine, Options& options) {
  llampi::comm::World& world = machine.world(mpi);
  Measured measured;
  measured.ranks = world.size();
  measured.layers = layers_that_fit(machine, world, options);
  const auto model = make_model(options, measured.layers);
  options = with_micro_batches(*model, machine, world, options);
  measured.parameters = parameter_count(*model);
  measured.steps = time_steps(*model, machine, world, options);
  if (options.profile) measured.profile = profile_step(*model, machine, world, options);
  if (options.products) {
    const DType dtype = machine.gpu ? DType::bfloat16 : DType::float32;
    const auto [major, minor] = std::pair(machine.properties.major, machine.properties.minor);
    measured.limits = measure_limits(
        machine.device(), dtype, options, measured.layers, measured.steps.logits_bytes,
        machine.gpu && device::has_fp8_products(major, minor), machine.gpu && machine.properties.fp8_blocks);
  }
  return measured;
}

void append(const std::string& file, const nlohmann::json& row) {
  std::ofstream out(file, std::ios::app);
  out << row.dump() << '\n';
  if (!out.flush()) throw_user_error("{} cannot be written", file);
}

void report(const Options& options, const nlohmann::json& row) {
  std::printf("%s, sequences of %ld: %ld layers, %.0f tokens/s per rank, %.1f TFLOP/s, step %.1f ms\n",
              row["device"].get<std::string>().c_str(), static_cast<long>(options.seq_len),
              row["layers"].get<long>(), row["tokens_per_second"].get<double>(), row["tflops"].get<double>(),
              1e3 * row["step_seconds"].get<double>());
  if (row.contains("profile")) {
    std::printf("%s\n",
                row["profile"]["same_loss"].get<bool>()
                    ? "The loss of the first step is the same when operations are timed."
                    : "WARNING: the loss of the first step is another one when operations are timed.");
  }
  if (!options.output.empty()) append(options.output, row);
}

int run(llampi::comm::World& mpi, Options options) {
  const Machine machine = open_machine(mpi, options);
  const Measured measured = measure(mpi, machine, options);
  if (mpi.rank() == 0) report(options, to_json(options, machine, measured));
  return 0;
}

/// The ways of the program itself to fail: the user's mistake is 2, all else ends the job.
int run_on_ranks(const Options& options) {
  const auto world = llampi::comm::World::create();
  try {
    return run(*world, options);
  } catch (const UserError& error) {
    if (world->rank() == 0) std::fprintf(stderr, "gpu_bench: %s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gpu_bench: rank %d: %s\n", world->rank(), error.what());
    world->abort(1);
    return 1;  // not reached, which g++ does not see through a virtual function
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  try {
    if (!parse(argc, argv, options)) return 0;
    if (!options.beside.empty()) {
      if (options.output.empty()) throw_user_error("--beside needs --output, to which the row is added");
      append(options.output, row_of_llmq(options.beside, options));
      return 0;
    }
    if (!options.table.empty()) {
      std::fputs(tables(options.table).c_str(), stdout);
      return 0;
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gpu_bench: %s\n", error.what());
    return 2;
  }
  return run_on_ranks(options);
}
