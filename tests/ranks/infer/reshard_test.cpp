// SPDX-License-Identifier: Apache-2.0
// The state of an engine goes into a file on each number of ranks in each strategy, and from there into
// engines on each other number in each other strategy. ctest runs `Write...` first, on 1, 2, 3 and 4 ranks, then
// `Read...`.
#include <gtest/gtest.h>

#include "llampi/checkpoint/engine_weights.hpp"
#include "llampi/core/half.hpp"
#include "llampi/core/philox.hpp"
#include "llampi/model/llama.hpp"
#include "support/mpi_test.hpp"

namespace llampi::test {
namespace {

namespace fs = std::filesystem;

// Norms have two elements, fewer than there are ranks; most matrices fewer than two for each.
constexpr const char* kReshardedModel = R"({"model_type": "llama", "vocab_size": 5, "hidden_size": 2,
  "intermediate_size": 3, "num_hidden_layers": 3, "num_attention_heads": 1, "num_key_value_heads": 1,
  "max_position_embeddings": 16, "tie_word_embeddings": true})";

struct Choice {
  const char* name;
  fsdp::Strategy strategy;
  fsdp::WrapPolicy wrap = fsdp::WrapPolicy::transformer;
  DType moment = DType::float32;
};
const Choice kChoices[] = {
    {"full_shard", fsdp::Strategy::full_shard},
    {"shard_grad_op", fsdp::Strategy::shard_grad_op, fsdp::WrapPolicy::none},
    {"no_shard", fsdp::Strategy::no_shard},
    {"hybrid_shard", fsdp::Strategy::hybrid_shard, fsdp::WrapPolicy::size},
    {"bfloat16_moments", fsdp::Strategy::full_shard, fsdp::WrapPolicy::size, DType::bfloat16}};

bool is_possible(const Choice& choice, int ranks) {
  return choice.strategy != fsdp::Strategy::hybrid_shard || (ranks % 2 == 0);
}

struct Loaded {
  std::unique_ptr<model::Model> model =
      model::make_llama(model::LlamaConfig::parse(kReshardedModel, "model"));
  std::unique_ptr<device::Device> device = device::make_cpu_device(1);
  std::unique_ptr<fsdp::Engine> engine;

  explicit Loaded(const Choice& choice) {
    fsdp::EngineOptions options;
    options.batch = {1, 4};
    options.strategy = choice.strategy;
    options.wrap.policy = choice.wrap;
    options.wrap.min_params = 20;
    options.precision.moment = choice.moment;
    if (choice.strategy == fsdp::Strategy::hybrid_shard) options.shard_group_size = test_ranks() / 2;
    options.parameter_groups = optim::parameter_groups(model->parameters(), {.frozen = "layers.1.mlp"});
    engine = std::make_unique<fsdp::Engine>(*model, *device, test_world(), options);
  }
  const std::string& name(const fsdp::StatePiece& piece) const {
    return model->parameters()[piece.parameter].name;
  }
};

/// What stands at an element: bits that bfloat16 holds, so that every dtype does.
float value(const std::string& tensor, const char* role, std::int64_t element) {
  return from_bfloat16(to_bfloat16(static_cast<float>(RandomStream(7, tensor + role).normal(element))));
}

template <class Visit>
void for_each_tensor(const fsdp::StatePiece& piece, const Visit& visit) {
  visit(piece.master, "model");
  if (piece.exp_avg) visit(piece.exp_avg, "exp_avg");
  if (piece.exp_avg_sq) visit(piece.exp_avg_sq, "exp_avg_sq");
}

void fill(const Loaded& loaded, const fsdp::StatePiece& piece) {
  for_each_tensor(piece, [&](const Tensor& tensor, const char* role) {
    for (std::int64_t i = 0; i < tensor.elements(); ++i) {
      const float v = value(loaded.name(piece), role, piece.begin + i);
      if (tensor.dtype == DType::float32) {
        static_cast<float*>(tensor.data)[i] = v;
      } else {
        static_cast<std::uint16_t*>(tensor.data)[i] = to_bfloat16(v);
      }
    }
  });
}

std::int64_t differences(const Loaded& loaded, const fsdp::StatePiece& piece) {
  std::int64_t count = 0;
  for_each_tensor(piece, [&](const Tensor& tensor, const char* role) {
    for (std::int64_t i = 0; i < tensor.elements(); ++i) {
      const float found = tensor.dtype == DType::float32
                              ? static_cast<float*>(tensor.data)[i]
                              : from_bfloat16(static_cast<std::uint16_t*>(tensor.data)[i]);
      if (found != value(loaded.name(piece), role, piece.begin + i)) ++count;
    }
  });
  return count;
}

fs::path file_of(const Choice& choice, int ranks) {
  return fs::path(LLAMPI_EXCHANGE_FOLDER) / fmt::format("{}-{}.h5", choice.name, ranks);
}

TEST(Reshard, WritesStateInEachStrategy) {
  for (const auto& choice : kChoices) {
    if (!is_possible(choice, test_ranks())) continue;
    const Loaded loaded(choice);
    for (const auto& piece : loaded.engine->pieces_to_load()) fill(loaded, piece);
    checkpoint::save_checkpoint(test_world(), *loaded.device, file_of(choice, test_ranks()),
                                {checkpoint::tensor_infos(*loaded.engine),
                                 checkpoint::tensor_pieces(*loaded.engine, loaded.engine->pieces_to_save()),
                                 {.step = test_ranks()},
                                 {kReshardedModel, ""}});
  }
}

TEST(Reshard, ReadsStateOfEveryNumberOfRanksAndStrategy) {
  for (const auto& reader : kChoices) {
    if (!is_possible(reader, test_ranks())) continue;
    const Loaded loaded(reader);
    for (const int writers : {1, 2, 3, 4}) {
      for (const auto& writer : kChoices) {
        if (!is_possible(writer, writers)) continue;
        const auto pieces = loaded.engine->pieces_to_load();
        for (const auto& piece : pieces) {
          for_each_tensor(piece, [](const Tensor& tensor, const char*) {
            std::memset(tensor.data, 0xFF, static_cast<std::size_t>(tensor.bytes()));
          });
        }
        const auto state = checkpoint::load_checkpoint(test_world(), *loaded.device, file_of(writer, writers),
                                                       checkpoint::tensor_infos(*loaded.engine),
                                                       checkpoint::tensor_pieces(*loaded.engine, pieces));
        EXPECT_EQ(state.step, writers);
        std::int64_t count = 0;
        for (const auto& piece : pieces) count += differences(loaded, piece);
        EXPECT_EQ(count, 0) << writer.name << " on " << writers << " into " << reader.name;
      }
    }
  }
}

}  // namespace
}  // namespace llampi::test
