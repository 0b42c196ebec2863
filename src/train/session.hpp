// What training, evaluation and generation share: a model with its weights in an engine on a device.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "llampi/checkpoint/checkpoint.hpp"
#include "llampi/checkpoint/weights.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/core/log.hpp"
#include "llampi/data/loader.hpp"
#include "llampi/fsdp/engine.hpp"
#include "llampi/model/llama.hpp"
#include "llampi/train/train.hpp"
#include "train/compute.hpp"

namespace llampi {

/// Threads per rank: as asked for; if that is 0, OMP_NUM_THREADS; if that is not set, the cores that this
/// rank may run on over the ranks that share them. Collective.
int threads_per_rank(World& world, int asked);
/// The same for one of `sharing` ranks that share the cores which this process may run on. Not collective.
int threads_per_rank(int asked, int sharing);

/// The parameters as checkpoints and safetensors name them.
std::vector<TensorInfo> tensor_infos(const Engine& engine);
std::vector<TensorPiece> tensor_pieces(const std::vector<StatePiece>& pieces);
/// The name of the unit that a parameter belongs to.
std::string unit_of(const Engine& engine, int parameter);

/// The configuration that belongs to weights: of a Hugging Face folder, or of a checkpoint.
LlamaConfig config_of_weights(const std::filesystem::path& weights);

/// Fills the parameters (not the moments) from a Hugging Face folder or a checkpoint. Collective.
void load_weights(World& world, Device& device, const std::filesystem::path& weights,
                  const LlamaConfig& config, Engine& engine, WeightsReading reading = WeightsReading::each);

/// A model for forward passes only, with its weights. Collective.
struct InferenceSession {
  LlamaConfig config;
  std::unique_ptr<Model> model;
  Compute compute;
  std::unique_ptr<Engine> engine;
};
InferenceSession open_for_inference(World& world, const std::filesystem::path& weights, BatchShape batch,
                                    const DeviceOptions& options, const Log& log);

/// Loss over all samples of a file, dealt out over ranks and micro-batches; what is left over is filled up
/// with empty slots. Collective.
/// @param whether_to_drop asked before each micro-batch; all ranks must answer alike. If true, there is no
/// result
std::optional<Evaluation> evaluate_file(World& world, Engine& engine, const TokenFile& file,
                                        const BatchOptions& options,
                                        const std::function<bool()>& whether_to_drop = {});

}  // namespace llampi
