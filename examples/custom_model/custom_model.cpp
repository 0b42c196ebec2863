// SPDX-License-Identifier: Apache-2.0
// A model of your own, which is not a Llama: sharded over the ranks of MPI, trained, saved, and loaded again.
//
//   mpirun -n 2 custom_model [CHECKPOINT.h5]
//
// It guesses a byte from the one before it: an embedding, blocks x + W2 swiglu(W1 x), a head with the loss. Each
// is a layer: passes made of the device's operations, and what memory they need. All else follows.
#include <fmt/format.h>

#include "llampi/checkpoint/engine_weights.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/comm/compute.hpp"
#include "llampi/data/loader.hpp"
#include "llampi/device/operations.hpp"
#include "llampi/model/layer_support.hpp"
#include "llampi/model/sequential.hpp"

using namespace llampi;
using model::BatchShape, model::LayerContext, model::LayerSpec, device::OperationSizes;
namespace op = device::op;

constexpr std::int64_t kVocabulary = 256, kHidden = 32, kFeedForward = 64, kSequences = 4, kSeqLen = 32;

// ---- the layers: the only lines that call the device ----

struct Embedding final : model::Layer {
  LayerSpec spec(BatchShape batch, DType dtype, const OperationSizes&) const override {
    return {.module = "embedding",
            .parameters = {{.parameter = 0, .backward = false}},
            .output = {"x", batch.tokens(), kHidden, dtype},
            .keeps_input = false};
  }
  void forward(LayerContext& c) const override {
    c.operations.run(op::Embedding{c.batch.tokens, c.parameters[0], c.output});
  }
  void backward(LayerContext& c) const override {
    c.operations.run(
        op::EmbeddingBackward{c.batch.tokens, c.gradient, c.parameter_gradients[0], c.accumulate[0]});
  }
};

struct Block final : model::Layer {
  explicit Block(int first) : first(first) {}
  LayerSpec spec(BatchShape batch, DType dtype, const OperationSizes&) const override {
    return {.module = fmt::format("blocks.{}", first / 2),
            .parameters = model::read_in_both({first, first + 1}),
            .output = {"x", batch.tokens(), kHidden, dtype},
            .saved = {{"gate_up", batch.tokens(), 2 * kFeedForward, dtype},
                      {"activated", batch.tokens(), kFeedForward, dtype}},
            .backward_scratch = {{"dactivated", batch.tokens(), kFeedForward, dtype},
                                 {"dx", batch.tokens(), kHidden, dtype}}};
  }
  void forward(LayerContext& c) const override {
    const auto [gate_up, activated] = model::take<2>(c.saved);
    c.operations.run(op::GateUpSwiglu{c.input, c.parameters[0], gate_up, activated});
    if (c.output) c.operations.run(op::ProjectionResidual{activated, c.parameters[1], c.input, c.output});
  }
  void backward(LayerContext& c) const override {
    const auto [gate_up, activated] = model::take<2>(c.saved);
    const auto [dactivated, dx] = model::take<2>(c.scratch);
    c.operations.run(op::InputGradient{c.gradient, c.parameters[1], dactivated});
    c.operations.run(op::WeightGradient{c.gradient, activated, c.parameter_gradients[1], c.accumulate[1]});
    c.operations.run(op::SwigluBackward{dactivated, gate_up});  // gate_up becomes its own gradient
    c.operations.run(op::InputGradient{gate_up, c.parameters[0], dx});
    c.operations.run(op::WeightGradient{gate_up, c.input, c.parameter_gradients[0], c.accumulate[0]});
    c.operations.run(op::Add{dx, c.gradient});  // which is that of the residual connection so far
  }
  int first;
};

struct Head final : model::Layer {
  explicit Head(int weight) : weight(weight) {}
  LayerSpec spec(BatchShape batch, DType dtype, const OperationSizes& sizes) const override {
    const auto bytes = sizes.linear_cross_entropy_workspace(batch.tokens(), kHidden, kVocabulary, dtype);
    const auto workspace = model::workspace_spec(bytes, model::statistics_dtype(dtype));
    return {.module = "head",
            .parameters = model::read_in_both({weight}),
            .forward_scratch = {workspace},
            .backward_scratch = {workspace}};
  }
  void forward(LayerContext& c) const override {
    c.operations.run(
        op::LinearCrossEntropy{c.batch.labels, c.input, c.parameters[0], c.loss_sum, c.scratch[0]});
  }
  void backward(LayerContext& c) const override {
    c.operations.run(op::LinearCrossEntropyBackward{c.batch.labels, c.input, c.parameters[0],
                                                    c.inverse_tokens, c.loss_sum, c.gradient,
                                                    c.parameter_gradients[0], c.accumulate[0], c.scratch[0]});
  }
  int weight;
};

model::Sequential make_model() {
  model::Sequential model("BytePairs", /*block_type=*/"Block", kVocabulary);
  model.add("embedding", "Embedding", {{"weight", {kVocabulary, kHidden}}}, std::make_unique<Embedding>());
  for (const std::string name : {"blocks.0", "blocks.1"})
    model.add(name, "Block", {{"w1", {2 * kFeedForward, kHidden}}, {"w2", {kHidden, kFeedForward}}},
              std::make_unique<Block>(model.next_parameter()));
  model.add("head", "Head", {{"weight", {kVocabulary, kHidden}}},
            std::make_unique<Head>(model.next_parameter()));
  return model;
}

/// Pieces of the same sentence over and over, from places that depend on step and rank.
device::HostBatch make_batch(std::int64_t step, int rank) {
  const std::string sentence = "the quick brown fox jumps over the lazy dog. ";
  std::vector<std::int32_t> rows;
  for (std::int64_t i = 0; i < kSequences * (kSeqLen + 1); ++i)
    rows.push_back(sentence[(17 * step + 5 * rank + 3 * (i / (kSeqLen + 1)) + i) % std::ssize(sentence)]);
  return data::make_batch(rows, kSeqLen);
}

void run(comm::World& world, const std::filesystem::path& file) {
  const Log log(world.rank() == 0 ? [](const std::string& line) { fmt::print("{}\n", line); } : Log::Sink());
  const auto model = make_model();
  const auto compute = comm::open_compute(world, {.threads = 1}, log);
  fsdp::EngineOptions options;
  options.batch = {.sequences = kSequences, .seq_len = kSeqLen};
  options.parameter_groups = optim::parameter_groups(model.parameters(), {.weight_decay = 0.01});
  fsdp::Engine engine(model, compute.device(), *compute.host, compute.world(), options);
  engine.initialise(/*seed=*/1);
  const std::int64_t tokens = world.size() * kSequences * kSeqLen;
  const auto mean = [&](double sum) { return world.sum(std::span(&sum, 1)), sum / double(tokens); };
  for (std::int64_t step = 1; step <= 100; ++step) {
    const auto batch = make_batch(step, world.rank());
    const auto result = engine.step({&batch, 1}, {0.01, step, tokens});
    if (step % 20 > 0) continue;
    log.info("step {}: loss {:.4f}, gradient norm {:.3f}", step, mean(result.loss_sum), result.grad_norm);
  }
  const auto evaluate = [&](fsdp::Engine& of) { return mean(of.evaluate(make_batch(0, world.rank()))); };
  const double loss = evaluate(engine);
  const auto tensors = checkpoint::tensor_infos(engine);
  const auto pieces = checkpoint::tensor_pieces(engine, engine.pieces_to_save());
  checkpoint::save_checkpoint(world, compute.device(), file, {tensors, pieces, {.step = 100}, {}});
  fsdp::Engine other(model, compute.device(), *compute.host, compute.world(), options);  // all zero
  checkpoint::load_checkpoint(world, compute.device(), file, tensors,
                              checkpoint::tensor_pieces(other, other.pieces_to_load()));
  log.info("loss {:.6f}, and from {} {:.6f}", loss, file.string(), evaluate(other));
  if (evaluate(other) != loss) throw Error("the model that was loaded is not the one that was saved");
}

int main(int argc, char** argv) {
  const auto world = comm::World::create();
  try {
    run(*world, argc > 1 ? argv[1] : "custom_model.h5");
  } catch (const std::exception& error) {
    fmt::print(stderr, "rank {}: {}\n", world->rank(), error.what());
    world->abort(1);
  }
}
