// SPDX-License-Identifier: Apache-2.0
// Runs that train adapters: the base stays as it is and outside of checkpoints, and every way of running has the same bits.
#include <gmock/gmock.h>

#include <set>

#include "llampi/checkpoint/adapter.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/core/half.hpp"
#include "ranks/train/run_fixture.hpp"
#include "support/int8_base.hpp"

namespace llampi::test {
namespace {

using namespace train;

using ::testing::AllOf;
using ::testing::HasSubstr;

class Lora : public Train {
 protected:
  /// @param model config.json
  explicit Lora(const std::string& model = model_json()) {
    if (world().rank() == 0) std::ofstream(folder_ / "config.json") << model;
    world().barrier();
    auto base = config("base");
    base.train.steps = 4;
    run(base);
    base_ = checkpoint::checkpoint_path(folder_ / "base", 4).string();
  }

  Config lora(const std::string& name) const {
    Config c = config(name);
    c.model.weights = base_;
    c.lora.rank = 4;
    c.lora.targets = "proj";
    c.lora.dropout = 0.1;
    return c;
  }

  std::vector<std::string> names(const std::string& run, std::int64_t step) const {
    std::vector<std::string> names;
    for (const auto& tensor :
         checkpoint::read_checkpoint_summary(checkpoint::checkpoint_path(folder_ / run, step)).tensors)
      names.push_back(tensor.name);
    return names;
  }

  /// As the run "plain", or with equal bits from a checkpoint on, whatever else is chosen.
  void expect_every_choice_continues(const std::function<Config(const std::string& name)>& config_of) const;

  std::string base_;
};

struct Choice {
  std::string name;
  std::function<void(Config&)> apply;
  bool only_scheduling = true;
};

std::vector<Choice> choices(int ranks) {
  std::vector<Choice> all = {
      {"shard_grad_op", [](Config& c) { c.fsdp.strategy = fsdp::Strategy::shard_grad_op; }},
      {"wrap_none", [](Config& c) { c.fsdp.wrap = fsdp::WrapPolicy::none; }},
      {"wrap_modules",
       [](Config& c) {
         c.fsdp.wrap = fsdp::WrapPolicy::modules,
         c.fsdp.wrap_modules = {"LlamaAttention", "\\.mlp$", "lora_"};
       }},
      {"offload_params", [](Config& c) { c.fsdp.cpu_offload = CpuOffload::params; }},
      {"offload_optimizer_host",
       [](Config& c) {
         c.fsdp.cpu_offload = CpuOffload::optimizer, c.fsdp.offload_step = OffloadStep::host;
       }},
      {"full", [](Config& c) { c.activation.checkpointing = fsdp::Checkpointing::full; }},
      {"selective", [](Config& c) { c.activation.checkpointing = fsdp::Checkpointing::selective; }},
      {"offload", [](Config& c) { c.activation.checkpointing = fsdp::Checkpointing::offload; }},
      {"feed_forward", [](Config& c) { c.activation.checkpointing = fsdp::Checkpointing::feed_forward; }},
      {"async", [](Config& c) { c.checkpoint.async = true; }},
      {"broadcast", [](Config& c) { c.fsdp.sync_init = checkpoint::WeightsReading::broadcast; }},
      {"no_shard",
       [](Config& c) {
         c.fsdp.strategy = fsdp::Strategy::no_shard, c.fsdp.shard_optimizer_over_replicas = true;
         c.run.verify_replicas_every = 3;
       }},
      {"bfloat16", [](Config& c) { c.fsdp.param_dtype = c.fsdp.reduce_dtype = DType::bfloat16; }, false},
      {"rslora",
       [](Config& c) { c.lora.scaling = model::LoraScaling::rslora, c.lora.targets = "q_proj|down"; }, false},
  };
  if (ranks > 1) {
    all.push_back(
        {"hybrid",
         [](Config& c) { c.fsdp.strategy = fsdp::Strategy::hybrid_shard_zero2, c.fsdp.shard_group_size = 1; },
         false});
  }
  return all;
}

void Lora::expect_every_choice_continues(
    const std::function<Config(const std::string& name)>& config_of) const {
  for (const auto& choice : choices(world().size())) {
    SCOPED_TRACE(choice.name);
    auto whole = config_of(choice.name);
    choice.apply(whole);
    EXPECT_EQ(run(whole), Outcome::done);
    if (choice.only_scheduling) {
      EXPECT_EQ(curve(choice.name), curve("plain"));
      EXPECT_EQ(tensors(choice.name, 12), tensors("plain", 12));
    }
    expect_equal_bits_from_step_8(whole, choice.name, "resumed-" + choice.name);
  }
}

TEST_F(Lora, EveryChoiceContinuesWithEqualBits) {
  run(lora("plain"));
  expect_every_choice_continues([this](const std::string& name) { return lora(name); });
}

TEST_F(Lora, CheckpointsHoldAdaptersAloneAndNameTheirBase) {
  run(lora("a"));
  const auto summary = checkpoint::read_checkpoint_summary(checkpoint::checkpoint_path(folder_ / "a", 12));
  EXPECT_EQ(summary.tensors.size(), 2U * 7 * 2);  // blocks, linear maps, matrices
  EXPECT_TRUE(std::ranges::all_of(summary.tensors, [](const auto& t) {
    return t.optimizer && t.name.find(".lora_") != std::string::npos;
  }));
  const auto info = checkpoint::parse_adapter(summary.texts.adapter, "here");
  EXPECT_EQ(info.config.rank, 4);
  EXPECT_EQ(info.base, base_);
  const auto source = checkpoint::open_checkpoint_weights(base_);
  EXPECT_EQ(info.base_sums, checkpoint::sums_of_source(world(), *source));
  // B begins as zeros, and so do the moments of A.
  const auto values = tensors("a", 12);
  for (const auto& tensor : values) EXPECT_TRUE(std::ranges::any_of(tensor, [](float x) { return x != 0; }));
}

TEST_F(Lora, TheBaseIsRoundedOnceAndStaysAsItIs) {
  // A base of bfloat16 is the same in float32, so the whole run is.
  auto rounded = config("rounded");
  rounded.train.steps = 4;
  rounded.fsdp.param_dtype = rounded.optimizer.master_dtype = DType::bfloat16;
  run(rounded);
  auto narrow = lora("narrow"), wide = lora("wide");
  for (auto* c : {&narrow, &wide})
    c->model.weights = checkpoint::checkpoint_path(folder_ / "rounded", 4).string();
  wide.lora.base_dtype = DType::float32;
  run(narrow), run(wide);
  EXPECT_EQ(curve("narrow"), curve("wide"));
  EXPECT_EQ(tensors("narrow", 12), tensors("wide", 12));
}

TEST_F(Lora, AnotherBaseIsRefusedOnResume) {
  auto c = lora("a");
  c.train.steps = 8;
  c.optimizer.schedule = optim::Decay::constant;
  run(c);
  c.train.steps = 12;
  c.model.weights = (folder_ / "moved.h5").string();
  if (world().rank() == 0) fs::copy_file(base_, *c.model.weights);
  world().barrier();
  c.train.steps = 9;
  EXPECT_EQ(run(c), Outcome::done);  // the same base, in another place

  auto other = config("other");
  other.train.steps = 4;
  other.run.seed = 9;
  run(other);
  c.train.steps = 10;
  c.model.weights = checkpoint::checkpoint_path(folder_ / "other", 4).string();
  EXPECT_THAT(refusal(c), AllOf(HasSubstr("is not the model that the adapters in"),
                                HasSubstr("model.embed_tokens.weight")));
}

TEST_F(Lora, ARunsFolderStaysTheFileThatItWasWhenTheAdaptersBegan) {
  auto c = lora("a");
  c.model.weights = (folder_ / "base").string();
  const auto train_to = [&](std::int64_t steps) -> std::string {
    c.train.steps = steps;
    try {
      train::train(world(), c, {"[model]\nweights = " + *c.model.weights + "\n"}, keeping_log());
      return "";
    } catch (const UserError& error) {
      return error.what();
    }
  };
  const auto expect_base = [&](std::int64_t step) {
    const auto texts =
        checkpoint::read_checkpoint_summary(checkpoint::checkpoint_path(folder_ / "a", step)).texts;
    EXPECT_EQ(checkpoint::parse_adapter(texts.adapter, "here").base, base_);
  };
  ASSERT_EQ(train_to(4), "");
  expect_base(4);

  auto longer = config("base");
  longer.train.steps = 8;
  ASSERT_EQ(run(longer), Outcome::done);
  for (const std::int64_t step : {6, 8}) {
    ASSERT_EQ(train_to(step), "");
    EXPECT_TRUE(logged("the base is " + base_ + ", as when the run began"));
    expect_base(step);
  }
  world().barrier();
  if (world().rank() == 0) fs::rename(folder_ / "base", folder_ / "moved");
  world().barrier();
  c.model.weights = (folder_ / "moved").string();
  const std::string moved = (folder_ / "moved/checkpoints" / fs::path(base_).filename()).string();
  ASSERT_EQ(train_to(10), "");
  EXPECT_TRUE(logged("the base is " + moved + ", as when the run began"));

  world().barrier();
  if (world().rank() == 0) fs::remove(moved);
  world().barrier();
  EXPECT_THAT(train_to(12),
              AllOf(HasSubstr("moved/checkpoints/step-00000008.h5 is not the model that the adapters in"),
                    HasSubstr("give that model, which was read from " + moved + ", no longer there")));
}

TEST_F(Lora, AWholeModelAndAdaptersAreToldApart) {
  run(lora("a"));
  const std::string adapters = checkpoint::checkpoint_path(folder_ / "a", 12).string();
  auto whole = config("b");
  whole.run.resume = {ResumeFrom::Mode::file, adapters};
  EXPECT_THAT(refusal(whole), HasSubstr("holds adapters alone, and lora.rank = 0"));
  auto weights = config("c");
  weights.model.weights = adapters;
  EXPECT_THAT(refusal(weights), HasSubstr("holds adapters and not the model"));
  auto back = lora("d");
  back.run.resume = {ResumeFrom::Mode::file, base_};
  EXPECT_THAT(refusal(back), HasSubstr("holds a whole model, and lora.rank = 4"));
  auto random = lora("e");
  random.model.weights.reset();
  EXPECT_THAT(refusal(random), HasSubstr("lora.rank = 4 needs model.weights"));
  auto frozen = lora("f");
  frozen.optimizer.frozen = "norm";
  EXPECT_THAT(refusal(frozen), HasSubstr("cannot be used with adapters"));
}

TEST_F(Lora, StartsFromOtherAdapters) {
  run(lora("a"));
  auto second = lora("second");
  second.optimizer.lr = second.optimizer.min_lr = 0;
  second.train.steps = 1;
  second.lora.weights = (folder_ / "a").string();
  run(second);
  const auto there = tensors("a", 12), here = tensors("second", 1);
  for (std::size_t t = 0; t < there.size(); t += 3) EXPECT_EQ(here[t], there[t]);
  second = lora("third");
  second.lora.weights = (folder_ / "a").string();
  second.lora.alpha = 8;
  EXPECT_THAT(refusal(second), AllOf(HasSubstr("lora.alpha"), HasSubstr("use 16")));
}

/// Of an adapter that trains nothing here.
constexpr const char* kHeadRefused = "training has no adapter of the head";

// Which evaluate and export merge.
TEST_F(Lora, HasNoAdapterOfTheHead) {
  const auto folder = folder_ / "head";
  if (world().rank() == 0) {
    fs::create_directories(folder);
    std::ofstream(folder / "adapter_config.json")
        << R"({"peft_type": "LORA", "r": 4, "lora_alpha": 16, "target_modules": ["lm_head"]})";
    const std::string header =
        R"({"base_model.model.lm_head.lora_A.weight": {"dtype": "F32", "shape": [4, 24], "data_offsets": [0, 384]},)"
        R"( "base_model.model.lm_head.lora_B.weight": {"dtype": "F32", "shape": [61, 4], "data_offsets": [384, 1360]}})";
    const std::uint64_t length = header.size();
    std::ofstream(folder / "adapter_model.safetensors", std::ios::binary)
        << std::string(reinterpret_cast<const char*>(&length), sizeof length) << header
        << std::string(1360, 0);
  }
  world().barrier();
  auto c = lora("a");
  c.lora.weights = folder.string();
  EXPECT_THAT(refusal(c), AllOf(HasSubstr(kHeadRefused), HasSubstr("lm_head.lora_A.weight")));
  // The chat template beside the adapters is that of data which name none.
  if (world().rank() == 0) {
    std::ofstream(folder / "tokenizer_config.json") << "{";
    data::TokenFileWriter writer(folder_ / "chats.h5", 61, "bytes");
    writer.append_document(std::vector<std::int32_t>(3000, 7));
    writer.close({.chat_template = "{{ messages }}"});
  }
  world().barrier();
  EXPECT_THAT(refusal(c), HasSubstr("tokenizer_config.json"));
  c.data.train = (folder_ / "chats.h5").string();
  EXPECT_THAT(refusal(c), HasSubstr(kHeadRefused));
}

// ---- a base in 8 bits ----

class Int8Base : public Lora {
 protected:
  Int8Base() : Lora(model_of_whole_blocks()) {}

  Config int8(const std::string& name) const {
    Config c = lora(name);
    c.lora.base_dtype = DType::int8_blocks;
    c.data.eval = (folder_ / "eval.h5").string();
    c.train.eval_every = 4;
    return c;
  }

  /// Another base: what a run with this one in 8 bits reads.
  std::string rounded_base() const {
    const auto summary = checkpoint::read_checkpoint_summary(base_);
    const auto values = tensors("base", 4);
    std::vector<std::vector<float>> rounded;
    std::vector<checkpoint::TensorPiece> pieces;
    auto infos = summary.tensors;
    for (std::size_t t = 0; t < infos.size(); ++t) {
      infos[t].optimizer = false;
      auto& of_tensor = rounded.emplace_back(values[3 * t]);
      if (is_kept_in_int8(infos[t].name, infos[t].shape)) {
        round_to_blocks(of_tensor);
      } else {
        for (float& x : of_tensor) x = from_bfloat16(to_bfloat16(x));
      }
      if (world().rank() == 0)
        pieces.push_back(
            {static_cast<int>(t), 0, tensor(of_tensor.data(), 1, std::ssize(of_tensor)), {}, {}});
    }
    const auto file = folder_ / "rounded.h5";
    checkpoint::save_checkpoint(world(), *device::make_reference_device(), file,
                                {infos, pieces, {}, summary.texts});
    return file.string();
  }

 private:
  static std::string model_of_whole_blocks() {
    return R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 61,
      "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
      "num_key_value_heads": 2, "max_position_embeddings": 64})";
  }
};

TEST_F(Int8Base, IsARoundedBaseInEveryRun) {
  auto before = int8("before");
  before.model.weights = rounded_base();
  before.lora.base_dtype = DType::float32;
  run(before);
  run(int8("plain"));
  EXPECT_EQ(curve("plain"), curve("before"));
  EXPECT_EQ(tensors("plain", 12), tensors("before", 12));
  auto in_bfloat16 = int8("bfloat16-base");
  in_bfloat16.lora.base_dtype = DType::bfloat16;
  run(in_bfloat16);
  EXPECT_NE(curve("plain"), curve("bfloat16-base"));

  expect_every_choice_continues([this](const std::string& name) { return int8(name); });
}

TEST_F(Int8Base, CheckpointsNameTheBaseAsItIsStored) {
  run(int8("a"));
  const auto summary = checkpoint::read_checkpoint_summary(checkpoint::checkpoint_path(folder_ / "a", 12));
  EXPECT_EQ(summary.tensors.size(), 2U * 7 * 2);
  const auto source = checkpoint::open_checkpoint_weights(base_);
  EXPECT_EQ(checkpoint::parse_adapter(summary.texts.adapter, "here").base_sums,
            checkpoint::sums_of_source(world(), *source));
}

TEST_F(Int8Base, IsRefusedWithoutAdaptersAndWithoutWholeBlocks) {
  auto whole = config("whole");
  whole.lora.base_dtype = DType::int8_blocks;
  EXPECT_EQ(refusal(whole), "lora.base_dtype = int8 needs lora.rank");
  if (world().rank() == 0) std::ofstream(folder_ / "config.json") << model_json();
  world().barrier();
  auto base = config("other");
  base.train.steps = 4;
  run(base);
  auto c = int8("b");
  c.model.weights = checkpoint::checkpoint_path(folder_ / "other", 4).string();
  EXPECT_THAT(refusal(c), AllOf(HasSubstr("lora.base_dtype = int8 keeps matrices in blocks of 128 elements"),
                                HasSubstr("model.layers.0.self_attn.q_proj.weight has 576")));
}

}  // namespace
}  // namespace llampi::test
