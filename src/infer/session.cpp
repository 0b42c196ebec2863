// SPDX-License-Identifier: Apache-2.0
#include "llampi/infer/session.hpp"

#include <utility>

#include "llampi/checkpoint/adapter.hpp"
#include "llampi/checkpoint/engine_weights.hpp"
#include "llampi/comm/agree.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/comm/threads.hpp"
#include "llampi/core/error.hpp"
#include "llampi/fsdp/available_memory.hpp"
#include "llampi/fsdp/fit_decisions.hpp"
#include "llampi/selfcheck/gpu_check.hpp"

namespace llampi::infer {
namespace {

/// Of the ranks of a job, each has the whole model where that fits, and gathers nothing: else each token takes a gather of all.
fsdp::Strategy fitting_strategy(comm::World& world, const InferenceSession& session, int threads,
                                fsdp::EngineOptions options) {
  const auto sharded = std::exchange(options.strategy, fsdp::Strategy::no_shard);
  auto memory = fsdp::available_to_all(world, session.compute);
  for (auto* const available : {&memory.on_device, &memory.on_host})  // of what others may take meanwhile
    *available = available->value() / 10 * 9;
  const auto sizes = fsdp::sizes_for_all(world, session.compute, threads);
  bool fits = false;
  comm::agree(world, [&] {
    const auto mesh =
        fsdp::make_device_mesh(options.strategy, world.topology().node_of_rank, options.shard_group_size);
    fits = fsdp::make_fit_question(*session.model, options, mesh, *sizes, memory).fits_with(options);
  });
  return fits ? options.strategy : sharded;
}

}  // namespace

InferenceSession open_for_inference(comm::World& world, const std::filesystem::path& weights,
                                    model::BatchShape batch, const comm::DeviceOptions& options,
                                    const Log& log, const std::filesystem::path& adapter,
                                    std::optional<fsdp::Strategy> strategy) {
  InferenceSession session;
  const int threads = comm::threads_per_rank(world, options.threads);
  comm::agree(world, [&] {
    session.config = checkpoint::config_of_weights(weights);
    if (batch.context == 0 && batch.seq_len > session.config.max_position_embeddings) {
      throw_user_error("a sequence length of {} is larger than max_position_embeddings = {} of {}",
                       batch.seq_len, session.config.max_position_embeddings, weights.string());
    }
    session.model = model::make_llama(session.config);
  });
  auto& compute = session.compute;
  compute =
      comm::open_compute(world, {.device = options.device, .threads = threads, .option = "--device"}, log);
  log.info("device: {}", compute.device().describe());
  fsdp::EngineOptions engine;
  const bool grows = batch.context > 0;
  engine.batch = grows && compute.on_gpu() ? generation_shape(batch.context, kGpuRows) : batch;
  engine.training = false;
  if (compute.on_gpu())  // nothing is updated: no master in float32 is needed
    engine.precision.master = engine.precision.param = engine.precision.compute = DType::bfloat16;
  selfcheck::check_gpus(world, compute, {.dtype = engine.precision.compute, .model = &session.config}, log);
  if (world.size() > 1)
    engine.strategy = strategy ? *strategy : fitting_strategy(world, session, threads, engine);
  session.engine = std::make_unique<fsdp::Engine>(*session.model, compute.device(), *compute.host,
                                                  compute.world(), engine);
  // Ranks that need everything do not each read it.
  const auto reading = world.size() > 1 && engine.strategy == fsdp::Strategy::no_shard
                           ? checkpoint::WeightsReading::broadcast
                           : checkpoint::WeightsReading::each;
  if (adapter.empty()) {
    checkpoint::load_weights(world, compute.device(), weights, session.config, *session.engine, reading,
                             {.log = log});
    return session;
  }
  std::unique_ptr<checkpoint::WeightsSource> base;
  checkpoint::Adapter opened;
  comm::agree(world, [&] {
    base = checkpoint::open_weights(weights, session.config);
    opened = checkpoint::open_adapter(adapter);
  });
  const auto merged = checkpoint::merge_checked(world, std::move(base), std::move(opened));
  auto pieces = checkpoint::tensor_pieces(*session.engine, session.engine->pieces_to_load());
  checkpoint::load_weights(world, compute.device(), *merged, checkpoint::tensor_infos(*session.engine),
                           pieces, reading);
  return session;
}

void refuse_logits(const std::string& consequence) {
  throw_user_error(
      "the model computes logits that are NaN or infinite, so {}: its weights are not finite, or too large; take an "
      "earlier checkpoint",
      consequence);
}

}  // namespace llampi::infer
