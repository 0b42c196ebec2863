// SPDX-License-Identifier: Apache-2.0
#include "llampi/infer/session.hpp"

#include <utility>

#include "llampi/checkpoint/adapter.hpp"
#include "llampi/checkpoint/engine_weights.hpp"
#include "llampi/comm/agree.hpp"
#include "llampi/comm/threads.hpp"
#include "llampi/core/error.hpp"
#include "llampi/selfcheck/gpu_check.hpp"

namespace llampi::infer {

InferenceSession open_for_inference(comm::World& world, const std::filesystem::path& weights,
                                    model::BatchShape batch, const comm::DeviceOptions& options,
                                    const Log& log, const std::filesystem::path& adapter) {
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
  engine.batch = batch;
  engine.training = false;
  if (compute.on_gpu()) engine.precision.param = engine.precision.compute = DType::bfloat16;
  selfcheck::check_gpus(world, compute, {.dtype = engine.precision.compute, .model = &session.config}, log);
  session.engine = std::make_unique<fsdp::Engine>(*session.model, compute.device(), *compute.host,
                                                  compute.world(), engine);
  if (adapter.empty()) {
    checkpoint::load_weights(world, compute.device(), weights, session.config, *session.engine,
                             checkpoint::WeightsReading::each, {.log = log});
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
                           pieces);
  return session;
}

void refuse_logits(const std::string& consequence) {
  throw_user_error(
      "the model computes logits that are NaN or infinite, so {}: its weights are not finite, or too large; take an "
      "earlier checkpoint",
      consequence);
}

}  // namespace llampi::infer
