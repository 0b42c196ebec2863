// SPDX-License-Identifier: Apache-2.0
#include "llampi/infer/session.hpp"

#include "llampi/checkpoint/weights.hpp"
#include "llampi/comm/agree.hpp"
#include "llampi/comm/threads.hpp"
#include "llampi/selfcheck/gpu_check.hpp"

namespace llampi::infer {

std::vector<checkpoint::TensorInfo> tensor_infos(const fsdp::Engine& engine) {
  const auto& groups = engine.options().groups;
  std::vector<checkpoint::TensorInfo> infos;
  for (const auto& parameter : engine.model().parameters()) {
    const bool frozen = !groups.empty() && groups[infos.size()].frozen;
    infos.push_back({parameter.name, parameter.shape, !frozen});
  }
  return infos;
}

std::vector<checkpoint::TensorPiece> tensor_pieces(const std::vector<fsdp::StatePiece>& pieces) {
  std::vector<checkpoint::TensorPiece> result;
  for (const auto& piece : pieces)
    result.push_back({piece.parameter, piece.begin, piece.master, piece.exp_avg, piece.exp_avg_sq});
  return result;
}

std::string unit_of(const fsdp::Engine& engine, int parameter) {
  for (const auto& unit : engine.compiled().units) {
    for (const auto& p : unit.parameters) {
      if (p.parameter == parameter) return unit.name;
    }
  }
  return "";
}

model::LlamaConfig config_of_weights(const std::filesystem::path& weights) {
  switch (checkpoint::identify(weights)) {
    case checkpoint::FileKind::huggingface_folder:
      return model::LlamaConfig::read(weights);
    case checkpoint::FileKind::checkpoint:
      return checkpoint::llama_of(checkpoint::read_checkpoint_summary(weights).texts, weights);
    case checkpoint::FileKind::tokens:
      break;
  }
  throw_user_error("{} is a token file; weights are a checkpoint or a Hugging Face folder", weights.string());
}

void load_weights(comm::World& world, device::Device& device, const std::filesystem::path& weights,
                  const model::LlamaConfig& config, fsdp::Engine& engine, checkpoint::WeightsReading reading,
                  const checkpoint::LoadSettings& settings) {
  const auto tensors = tensor_infos(engine);
  auto pieces = tensor_pieces(engine.pieces_to_load());
  for (auto& piece : pieces) piece.exp_avg = piece.exp_avg_sq = {};
  std::unique_ptr<checkpoint::WeightsSource>
      source;  // null: a checkpoint of which each rank reads what it needs
  comm::agree(world, [&] {
    const checkpoint::FileKind kind = checkpoint::identify(weights);
    if (kind == checkpoint::FileKind::tokens) {
      throw_user_error("{} is a token file; weights are a checkpoint or a Hugging Face folder",
                       weights.string());
    }
    if (kind == checkpoint::FileKind::huggingface_folder) {
      source = checkpoint::open_safetensors(weights, config.tie_word_embeddings);
    } else if (reading == checkpoint::WeightsReading::broadcast) {
      source = checkpoint::open_checkpoint_weights(weights);
    }
  });
  if (source) {
    checkpoint::load_weights(world, device, *source, tensors, pieces, reading);
  } else {
    checkpoint::load_checkpoint(world, device, weights, tensors, pieces, settings);
  }
}

InferenceSession open_for_inference(comm::World& world, const std::filesystem::path& weights,
                                    model::BatchShape batch, const comm::DeviceOptions& options,
                                    const Log& log) {
  InferenceSession session;
  const int threads = comm::threads_per_rank(world, options.threads);
  comm::agree(world, [&] {
    session.config = config_of_weights(weights);
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
  load_weights(world, compute.device(), weights, session.config, *session.engine,
               checkpoint::WeightsReading::each, {.log = log});
  return session;
}

}  // namespace llampi::infer
