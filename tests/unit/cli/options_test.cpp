// SPDX-License-Identifier: Apache-2.0
// The configuration of a run: its sources, their precedence, and the file that gives it back.
#include "cli/options.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cli/option_table.hpp"
#include "llampi/train/run_text.hpp"
#include "support/temporary_folder.hpp"
#include "train/changed_keys.hpp"
#include "unit/cli/expect_user_error.hpp"

namespace llampi::test {
namespace {

using namespace cli;

using ::testing::HasSubstr;

class OptionsTest : public ::testing::Test {
 protected:
  void TearDown() override {
    for (const auto& name : variables_) unsetenv(name.c_str());
    std::filesystem::remove(kFile);
  }
  void set_variable(const std::string& name, const std::string& value) {
    setenv(name.c_str(), value.c_str(), 1);
    variables_.push_back(name);
  }
  void write_file(const std::string& text) { std::ofstream(kFile, std::ios::binary) << text; }

  static Arguments with_required(Arguments arguments) {
    const Arguments required = {"--model.config=m.json", "--data.train=t.h5", "--train.steps=9"};
    arguments.insert(arguments.end(), required.begin(), required.end());
    return arguments;
  }

  const std::string kFile = "options_test.ini";  // in the folder of the build where the test runs

 private:
  std::vector<std::string> variables_;
};

train::Config resolve_config(const Arguments& arguments, Purpose purpose = Purpose::train,
                             const std::vector<Option>& more = {}) {
  return cli::resolve_config(arguments, Log(), purpose, more);
}

constexpr const char* kRequired = "[model]\nconfig=m.json\n[data]\ntrain=t.h5\n[train]\nsteps=9\n";

TEST_F(OptionsTest, DefaultsAreTheConfigs) {
  train::Config c = resolve_config(with_required({})), defaults;
  EXPECT_EQ(c.model.config, "m.json");
  EXPECT_EQ(c.data.train, "t.h5");
  EXPECT_EQ(c.train.steps, 9);
  for (const auto& option : option_table(defaults)) {
    if (option.key == "model.config" || option.key == "data.train" || option.key == "train.steps") continue;
    EXPECT_EQ(value_text(*find_option(option_table(c), option.key)), value_text(option)) << option.key;
  }
}

TEST_F(OptionsTest, CommandLineThenEnvironmentThenFileThenDefault) {
  write_file(std::string(kRequired) +
             "micro_batch = 2\neval_every = 0\n[run]\nseed = 1\nthreads = 1\n[log]\nevery=5");
  set_variable("LLAMPI_RUN_SEED", "2");
  set_variable("LLAMPI_RUN_THREADS", "2");
  set_variable("LLAMPI_CHECKPOINT_KEEP", "8");
  const train::Config c = resolve_config({"--run.seed=3", "--config", kFile, "--train.global_batch", "16"});
  EXPECT_EQ(c.run.seed, 3U);            // all three
  EXPECT_EQ(c.run.threads, 2);          // environment and file
  EXPECT_EQ(c.train.micro_batch, 2);    // file
  EXPECT_EQ(c.log.every, 5);            // file, in a later section, without a line end
  EXPECT_EQ(c.train.global_batch, 16);  // command line
  EXPECT_EQ(c.checkpoint.keep, 8);      // environment
  EXPECT_EQ(c.data.seq_len, 1024);      // nobody
}

TEST_F(OptionsTest, OverriddenValuesAreNotLookedAt) {
  write_file(std::string(kRequired) + "[log]\ntensorboard = yes\n");
  EXPECT_FALSE(resolve_config({"--config=" + kFile, "--log.tensorboard=false"}).log.tensorboard);
  expect_user_error([&] { resolve_config({"--config=" + kFile}); },
                    "log.tensorboard = yes (options_test.ini, line 8) is neither true nor false");
}

TEST_F(OptionsTest, FilesHoldCommentsSpacesAndEqualsSigns) {
  write_file("# first\r\n[run]\r\n dir = a b=c # why\r\n\r\n[data]\r\n\teval =\r\n" + std::string(kRequired));
  const train::Config c = resolve_config({"--config=" + kFile});
  EXPECT_EQ(c.run.dir, "a b=c");
  EXPECT_EQ(c.data.eval, "");
}

TEST_F(OptionsTest, EveryKeySetsTheMemberItNames) {
#define IS(...) [](const train::Config& c) { return __VA_ARGS__; }
  const std::vector<std::pair<std::string, bool (*)(const train::Config&)>> settings = {
      {"activation.checkpointing=full",
       IS(c.activation.checkpointing == fsdp::BlockCheckpointing(fsdp::Checkpointing::full))},
      {"activation.offload=residuals", IS(c.activation.offload == train::ActivationOffload::residuals)},
      {"checkpoint.async=true", IS(c.checkpoint.async)},
      {"checkpoint.content=weights", IS(c.checkpoint.content == train::CheckpointContent::weights)},
      {"checkpoint.every=11", IS(c.checkpoint.every == 11)},
      {"checkpoint.fallback_dir=f", IS(c.checkpoint.fallback_dir == "f")},
      {"checkpoint.io=hdf5", IS(c.checkpoint.io == checkpoint::FileIo::hdf5)},
      {"checkpoint.keep=1", IS(c.checkpoint.keep == 1)},
      {"checkpoint.keep_every=100", IS(c.checkpoint.keep_every == 100)},
      {"checkpoint.state_dtype=bfloat16", IS(c.checkpoint.state_dtype == DType::bfloat16)},
      {"checkpoint.stripe_bytes=4096", IS(c.checkpoint.stripe_bytes == 4096)},
      {"checkpoint.stripes=8", IS(c.checkpoint.stripes == 8)},
      {"checkpoint.wait_minutes=2.5", IS(c.checkpoint.wait_minutes == 2.5)},
      {"checkpoint.writers_per_node=3", IS(c.checkpoint.writers_per_node == 3)},
      {"data.document_mask=false", IS(!c.data.document_mask)},
      {"data.eval=e", IS(c.data.eval == "e")},
      {"data.seq_len=64", IS(c.data.seq_len == 64)},
      {"data.shuffle=false", IS(!c.data.shuffle)},
      {"data.train=other.h5", IS(c.data.train == "other.h5")},
      {"fsdp.accumulate=unsharded", IS(c.fsdp.accumulate == train::GradientAccumulation::unsharded)},
      {"fsdp.all_reduce_stream=true", IS(c.fsdp.all_reduce_stream)},
      {"fsdp.backward_prefetch=post", IS(c.fsdp.backward_prefetch == fsdp::Prefetch::post)},
      {"fsdp.cpu_offload=params", IS(c.fsdp.cpu_offload == train::CpuOffload::params)},
      {"fsdp.forward_prefetch=false", IS(!c.fsdp.forward_prefetch)},
      {"fsdp.fp8_gradient_dtype=float8_e4m3fn", IS(c.fsdp.fp8_gradient_dtype == DType::float8_e4m3fn)},
      {"fsdp.fp8_scales=block", IS(c.fsdp.fp8_scales == model::Fp8Scales::block)},
      {"fsdp.limit_all_gathers=1", IS(c.fsdp.limit_all_gathers == 1)},
      {"fsdp.nccl_copy_engines=true", IS(c.fsdp.nccl_copy_engines)},
      {"fsdp.nccl_ctas=4", IS(c.fsdp.nccl_ctas == 4)},
      {"fsdp.nccl_split_share=true", IS(c.fsdp.nccl_split_share)},
      {"fsdp.nccl_window=true", IS(c.fsdp.nccl_window)},
      {"fsdp.offload_step=host", IS(c.fsdp.offload_step == train::OffloadStep::host)},
      {"fsdp.param_dtype=float16", IS(c.fsdp.param_dtype == DType::float16)},
      {"fsdp.product_dtype=fp8", IS(c.fsdp.product_dtype == train::ProductDtype::fp8)},
      {"fsdp.product_sms=100", IS(c.fsdp.product_sms == 100)},
      {"fsdp.reduce_dtype=bfloat16", IS(c.fsdp.reduce_dtype == DType::bfloat16)},
      {"fsdp.reduction=nccl", IS(c.fsdp.reduction == comm::Reduction::nccl)},
      {"fsdp.shard_group_size=4", IS(c.fsdp.shard_group_size == 4)},
      {"fsdp.shard_optimizer_over_replicas=true", IS(c.fsdp.shard_optimizer_over_replicas)},
      {"fsdp.strategy=NO_SHARD", IS(c.fsdp.strategy == fsdp::Strategy::no_shard)},
      {"fsdp.sum_order=tree", IS(c.fsdp.sum_order == fsdp::SumOrder::tree)},
      {"fsdp.sync_init=broadcast", IS(c.fsdp.sync_init == checkpoint::WeightsReading::broadcast)},
      {"fsdp.wrap=size", IS(c.fsdp.wrap == fsdp::WrapPolicy::size)},
      {"fsdp.wrap_min_params=77", IS(c.fsdp.wrap_min_params == 77)},
      {"fsdp.wrap_modules=A B", IS(c.fsdp.wrap_modules == std::vector<std::string>{"A", "B"})},
      {"log.every=6", IS(c.log.every == 6)},
      {"log.plan=true", IS(c.log.plan)},
      {"log.prometheus=run.prom", IS(c.log.prometheus == "run.prom")},
      {"log.tensorboard=true", IS(c.log.tensorboard)},
      {"log.trace=3-5", IS(c.log.trace == train::StepRange{3, 5})},
      {"lora.alpha=4.5", IS(c.lora.alpha == 4.5)},
      {"lora.base_dtype=float32", IS(c.lora.base_dtype == DType::float32)},
      {"lora.dropout=0.25", IS(c.lora.dropout == 0.25)},
      {"lora.rank=8", IS(c.lora.rank == 8)},
      {"lora.scaling=rslora", IS(c.lora.scaling == model::LoraScaling::rslora)},
      {"lora.targets=up_proj", IS(c.lora.targets == "up_proj")},
      {"lora.weights=a", IS(c.lora.weights == "a")},
      {"model.config=other.json", IS(c.model.config == "other.json")},
      {"model.weights=w", IS(c.model.weights == "w")},
      {"optimizer.beta1=0.5", IS(c.optimizer.beta1 == 0.5)},
      {"optimizer.beta2=0.75", IS(c.optimizer.beta2 == 0.75)},
      {"optimizer.clip_grad_norm=0", IS(c.optimizer.clip_grad_norm == 0)},
      {"optimizer.eps=1e-6", IS(c.optimizer.eps == 1e-6)},
      {"optimizer.frozen=layers.0", IS(c.optimizer.frozen == "layers.0")},
      {"optimizer.gradient_dtype=bfloat16", IS(c.optimizer.gradient_dtype == DType::bfloat16)},
      {"optimizer.loss_scale=128", IS(c.optimizer.loss_scale == 128)},
      {"optimizer.lr=0.5", IS(c.optimizer.lr == 0.5)},
      {"optimizer.lr_factors=head=2", IS(c.optimizer.lr_factors == "head=2")},
      {"optimizer.master_dtype=BFloat16", IS(c.optimizer.master_dtype == DType::bfloat16)},
      {"optimizer.min_lr=1e-5", IS(c.optimizer.min_lr == 1e-5)},
      {"optimizer.moment_dtype=bfloat16", IS(c.optimizer.moment_dtype == DType::bfloat16)},
      {"optimizer.no_decay=norm|bias$", IS(c.optimizer.no_decay == "norm|bias$")},
      {"optimizer.schedule=linear", IS(c.optimizer.schedule == optim::Decay::linear)},
      {"optimizer.warmup_steps=4", IS(c.optimizer.warmup_steps == 4)},
      {"optimizer.weight_decay=0", IS(c.optimizer.weight_decay == 0)},
      {"optimizer.weight_decays=embed=0.5", IS(c.optimizer.weight_decays == "embed=0.5")},
      {"run.attention=native", IS(c.run.attention == device::GpuAttention::native)},
      {"run.attention_workspace=64", IS(c.run.attention_workspace == 64)},
      {"run.bind=none", IS(c.run.bind == comm::Bind::none)},
      {"run.cuda_graph=off", IS(c.run.cuda_graph == train::StepGraph::off)},
      {"run.deterministic=false", IS(!c.run.deterministic)},
      {"run.device=CPU", IS(c.run.device == device::DeviceChoice::cpu)},
      {"run.dir=d", IS(c.run.dir == "d")},
      {"run.logits_workspace=32", IS(c.run.logits_workspace == 32)},
      {"run.max_hours=1.5", IS(c.run.max_hours == 1.5)},
      {"run.resume=never", IS(c.run.resume.mode == train::ResumeFrom::Mode::never)},
      {"run.resume_with_changes=true", IS(c.run.resume_with_changes)},
      {"run.seed=5", IS(c.run.seed == 5U)},
      {"run.share_gpu=true", IS(c.run.share_gpu)},
      {"run.tf32=true", IS(c.run.tf32)},
      {"run.threads=3", IS(c.run.threads == 3)},
      {"run.tuning=off", IS(c.run.tuning.mode == train::TuningMode::Mode::off)},
      {"run.verify_replicas_every=50", IS(c.run.verify_replicas_every == 50)},
      {"run.watchdog_seconds=30", IS(c.run.watchdog_seconds == 30)},
      {"train.epochs=2", IS(c.train.epochs == 2)},
      {"train.eval_every=7", IS(c.train.eval_every == 7)},
      {"train.global_batch=12", IS(c.train.global_batch == 12)},
      {"train.micro_batch=2", IS(c.train.micro_batch == 2)},
      {"train.not_finite=skip 3", IS(c.train.not_finite.skip == 3)},
      {"train.steps=11", IS(c.train.steps == 11)},
  };
#undef IS
  const train::Config defaults;
  train::Config all;
  std::set<std::string> missing;
  for (const auto& key : keys_of(option_table(all))) missing.insert(key);
  for (const auto& [setting, is_set] : settings) {
    const std::string key = setting.substr(0, setting.find('='));
    missing.erase(key);
    EXPECT_FALSE(is_set(defaults)) << setting;
    train::Config one;
    assign(*find_option(option_table(one), key), {key, setting.substr(key.size() + 1), "test"});
    EXPECT_TRUE(is_set(one)) << setting;
    EXPECT_EQ(changed_keys(defaults, one).size(), 1) << setting;
  }
  EXPECT_THAT(missing, ::testing::IsEmpty());
}

TEST_F(OptionsTest, ResolvedConfigurationGivesItselfBack) {
  train::Config c = resolve_config(with_required({"--optimizer.lr=0.1", "--run.seed=18446744073709551615",
                                                  "--run.max_hours=0.3333333333333333", "--run.dir=a folder",
                                                  "--optimizer.no_decay=[a=b]", "--data.shuffle=false"}));
  const std::string ini = to_ini(c);
  train::Config back = parse_ini(ini, "x");
  const auto table = option_table(c), table_back = option_table(back);
  for (std::size_t i = 0; i < table.size(); ++i) {
    EXPECT_EQ(value_text(table_back[i]), value_text(table[i])) << table[i].key;
  }
  write_file(ini);
  EXPECT_EQ(to_ini(resolve_config({"--config=" + kFile})), ini);
  EXPECT_THAT(ini, HasSubstr("[run]\ndir = a folder\n"));
  EXPECT_THAT(ini, HasSubstr("\n[train]\nsteps = 9\nepochs = 0\n"));
}

TEST_F(OptionsTest, NothingIsLostInAFileThatCouldNotHoldIt) {
  expect_user_error(
      [] { resolve_config(with_required({"--run.dir=a#b"})); },
      "run.dir = a#b (command line) cannot be kept in a configuration file: it holds a # or a line end");
  expect_user_error(
      [] { resolve_config(with_required({"--run.dir=a\nb"})); },
      "run.dir = a?b (command line) cannot be kept in a configuration file: it holds a # or a line end");
  expect_user_error(
      [] { resolve_config(with_required({"--run.dir= a"})); },
      "run.dir =  a (command line) cannot be kept in a configuration file: it begins or ends with a space");
}

TEST_F(OptionsTest, UnknownKeysAreNamedWithTheNearest) {
  expect_user_error([] { resolve_config(with_required({"--train.step=5"})); },
                    "unknown option --train.step on the command line; did you mean --train.steps?");
  write_file("[optimiser]\nlr = 1\n");
  expect_user_error([&] { resolve_config({"--config=" + kFile}); },
                    "unknown key optimiser.lr in options_test.ini, line 2; did you mean optimizer.lr?");
  set_variable("LLAMPI_TRAIN_MICROBATCH", "1");
  expect_user_error(
      [] { resolve_config(with_required({})); },
      "unknown variable LLAMPI_TRAIN_MICROBATCH in the environment: unset it; did you mean LLAMPI_TRAIN_MICRO_BATCH?");
}

TEST_F(OptionsTest, SuggestionsKnowSectionsAndOtherTrainers) {
  const auto suggests = [](const std::string& option, const std::string& end) {
    expect_user_error([&] { resolve_config(with_required({"--" + option + "=1"})); },
                      "unknown option --" + option + " on the command line; " + end);
  };
  suggests("lr", "did you mean --optimizer.lr?");
  suggests("optimizer.learning_rate", "did you mean --optimizer.lr?");
  suggests("train.lr", "did you mean --optimizer.lr?");
  suggests("batch-size", "did you mean --train.micro_batch?");
  suggests("max_steps", "did you mean --train.steps?");
  suggests("every", "did you mean --checkpoint.every or --log.every?");
  suggests("checkpoints.every", "did you mean --checkpoint.every?");
  suggests("data.seqlen", "did you mean --data.seq_len?");
  suggests("weigth_decay", "did you mean --optimizer.weight_decay?");
  suggests("gradient_checkpointing", "did you mean --activation.checkpointing?");
  suggests("frobnicate", "see --help");
  set_variable("LLAMPI_LR", "1");
  expect_user_error(
      [] { resolve_config(with_required({})); },
      "unknown variable LLAMPI_LR in the environment: unset it; did you mean LLAMPI_OPTIMIZER_LR?");
}

TEST_F(OptionsTest, OfTwoOptionsTheLastCounts) {
  write_file(kRequired);
  std::vector<std::string> lines;
  const Log log([&](const std::string& line) { lines.push_back(line); });
  const train::Config c = llampi::cli::resolve_config(
      {"--config=none.ini", "--run.dir=a", "--config=" + kFile, "--run.dir", "b", "--run.dir=c"}, log);
  EXPECT_EQ(c.run.dir, "c");
  EXPECT_THAT(lines, ::testing::ElementsAre(
                         "--config is given twice on the command line: options_test.ini counts, not none.ini",
                         "--run.dir is given twice on the command line: b counts, not a",
                         "--run.dir is given twice on the command line: c counts, not b"));
}

TEST_F(OptionsTest, QuotesAroundAValueMeanNothing) {
  write_file("\xEF\xBB\xBF[run]\n" +  // a byte order mark, as some editors write it
             std::string("dir = \"runs/x y\" # as in TOML\n[data]\neval = ''\n") + kRequired);
  const train::Config c = resolve_config({"--config=" + kFile});
  EXPECT_EQ(c.run.dir, "runs/x y");
  EXPECT_EQ(c.data.eval, "");
  write_file("[run]\ndir = \"runs # x\"\n" + std::string(kRequired));
  expect_user_error([&] { resolve_config({"--config=" + kFile}); },
                    "run.dir = \"runs (options_test.ini, line 2) cannot be kept in a configuration file: it "
                    "begins or ends with a quotation mark");
  expect_user_error([] { resolve_config(with_required({"--run.dir='a'"})); },
                    "run.dir = 'a' (command line) cannot be kept in a configuration file: it begins or ends "
                    "with a quotation mark");
}

TEST_F(OptionsTest, WhatModulesSetIsLeftAloneAndEveryOtherVariableWithThePrefixIsAKey) {
  for (const char* name : {"LLAMPI_ROOT", "LLAMPI_HOME", "LLAMPI_VERSION", "LLAMPI_PATH"})
    set_variable(name, "x");
  EXPECT_EQ(resolve_config(with_required({})).model.config, "m.json");
  for (const char* name : {"LLAMPI_CONFIG", "LLAMPI_HOURS", "LLAMPI_SCRIPT", "LLAMPI_SITE", "LLAMPI_DATA_DIR",
                           "LLAMPI_TRAINER_STEPS", "LLAMPI_"}) {
    setenv(name, "x", 1);
    EXPECT_THROW(resolve_config(with_required({})), UserError) << name;
    unsetenv(name);
  }
}

TEST_F(OptionsTest, MistakesSayWhereTheyStand) {
  expect_user_error([] { resolve_config(with_required({"--optimizer.beta1=1"})); },
                    "optimizer.beta1 = 1 (command line) is out of range; it must be at least 0 and below 1");
  expect_user_error(
      [] { resolve_config(with_required({"--data.seq_len=0"})); },
      "data.seq_len = 0 (command line) is out of range; it must be at least 1 and at most 1000000000");
  expect_user_error([] { resolve_config(with_required({"--optimizer.lr=0"})); },
                    "optimizer.lr = 0 (command line) is out of range; it must be above 0");
  expect_user_error([] { resolve_config(with_required({"--checkpoint.keep=0"})); },
                    "checkpoint.keep = 0 (command line) is out of range; it must be at least 1; "
                    "checkpoint.keep_every = 1 keeps all");
  expect_user_error([] { resolve_config(with_required({"--optimizer.schedule=cosin"})); },
                    "optimizer.schedule = cosin (command line) is not known; use cosine, linear or constant");
  expect_user_error([] { resolve_config(with_required({"more"})); },
                    "unexpected argument \"more\"; options are written --section.key=value");
  write_file(std::string(kRequired) + "steps = 10\n");
  expect_user_error([&] { resolve_config({"--config=" + kFile}); },
                    "train.steps is given twice, first in options_test.ini, line 6; give it once");
  write_file("[train]\nsteps 10\n");
  expect_user_error([&] { resolve_config({"--config=" + kFile}); },
                    "options_test.ini, line 2: \"steps 10\" is neither [section] nor key = value");
  write_file(std::string(kRequired) +
             "# of a run\n[ optimizer ]  # or so\n[optimizer]\n  beta1 = 0.9\n lr = -1 # too little\n");
  expect_user_error([&] { resolve_config({"--config=" + kFile}); },
                    "optimizer.lr = -1 (options_test.ini, line 11) is out of range; it must be above 0");
  write_file("[train]\r\n# note\r\n\r\n= 5\r\n");
  expect_user_error([&] { resolve_config({"--config=" + kFile}); },
                    "unknown key train. in options_test.ini, line 4; did you mean train.steps?");
  write_file("[optimizer.]\n\tlr\t= 0\n");
  expect_user_error([&] { resolve_config({"--config=" + kFile}); },
                    "optimizer.lr = 0 (options_test.ini, line 2) is out of range; it must be above 0");
  set_variable("LLAMPI_TRAIN_MICRO_BATCH", "two");
  expect_user_error(
      [] { resolve_config(with_required({})); },
      "train.micro_batch = two (LLAMPI_TRAIN_MICRO_BATCH) is not known; use auto or a number of sequences");
}

TEST_F(OptionsTest, RefusesFilesThatAreNoConfiguration) {
  expect_user_error([] { resolve_config({"--config=missing.ini"}); },
                    "the configuration file missing.ini cannot be read: No such file or directory");
  expect_user_error([] { resolve_config({"--config=."}); },
                    "the configuration file . is a folder; give the file in it");
  write_file(std::string("\x89HDF\r\n\x1a\n\0\0", 10));
  expect_user_error([&] { resolve_config({"--config=" + kFile}); },
                    "options_test.ini, line 1: \"?HDF\" is neither [section] nor key = value");
}

TEST_F(OptionsTest, ValuesThatAskForNothingAreAccepted) {
  const train::Config c =
      resolve_config(with_required({"--log.trace=0", "--fsdp.shard_group_size=", "--fsdp.wrap_modules=",
                                    "--run.watchdog_seconds=0.0", "--fsdp.cpu_offload=NONE"}));
  EXPECT_EQ(c.fsdp.cpu_offload, train::CpuOffload::none);
}

TEST_F(OptionsTest, TheConfigurationsThatComeWithTheProgramCanBeTrained) {
  for (const std::string name :
       {"small", "sums-base", "sums-chat", "sums-lora", "llama3-8b", "llama3-8b-chat", "llama3-70b"}) {
    const std::string file = LLAMPI_TEST_DATA "/../input/" + name + ".ini";
    EXPECT_EQ(resolve_config({"--config=" + file}).run.device,
              name.starts_with("llama3") ? device::DeviceChoice::cuda : device::DeviceChoice::automatic)
        << name;
  }
}

TEST_F(OptionsTest, ConsistencyIsChecked) {
  expect_user_error(
      [] {
        resolve_config({"--data.train=t", "--train.steps=1"});
      },
      "model.config is not given; name a Hugging Face config.json or the folder that holds it");
  expect_user_error(
      [] {
        resolve_config({"--model.config=m", "--train.steps=1"});
      },
      "data.train is not given; name a token file, which llampi tokenize writes");
  expect_user_error(
      [] {
        resolve_config({"--model.config=m", "--data.train=t"});
      },
      "neither train.steps nor train.epochs is given; say how long the run is with one of them");
  expect_user_error([] { resolve_config(with_required({"--train.epochs=1.5"})); },
                    "train.steps = 9 and train.epochs = 1.5 are both given; set one of them to 0");
  expect_user_error([] { resolve_config(with_required({"--train.eval_every=2"})); },
                    "train.eval_every = 2 needs data.eval; name a token file, or set it to 0");
  expect_user_error([] { resolve_config(with_required({"--optimizer.min_lr=1"})); },
                    "optimizer.min_lr = 1 is above optimizer.lr = 0.0003; it must be at most that");
  EXPECT_EQ(resolve_config({"--model.config=m", "--data.train=t", "--train.epochs=1.5"}).train.epochs, 1.5);
}

TEST_F(OptionsTest, TheFolderOfTheWeightsIsThatOfTheModel) {
  const TemporaryFolder folder;
  const std::string weights = folder.path().string();
  const Arguments arguments = {"--model.weights=" + weights, "--data.train=t", "--train.steps=9"};
  const auto not_given =
      "model.config is not given; name a Hugging Face config.json or the folder that holds it";
  expect_user_error([&] { resolve_config(arguments); }, not_given);  // such as the folder of a run
  std::ofstream(folder.path() / "config.json") << "{}";
  EXPECT_EQ(resolve_config(arguments).model.config, weights);
  EXPECT_EQ(resolve_config(with_required({"--model.weights=" + weights})).model.config, "m.json");
  std::filesystem::remove_all(folder.path());
  EXPECT_EQ(resolve_config(arguments).model.config, weights) << "as when the run began";
}

TEST_F(OptionsTest, APlanNeedsNoDataAndNoDevice) {
  const auto plan = [](Arguments arguments, const std::vector<Option>& more = {}) {
    arguments.push_back("--model.config=m");
    return resolve_config(arguments, Purpose::plan, more);
  };
  const train::Config c = plan({"--run.device=cuda"});
  EXPECT_EQ(c.run.device, device::DeviceChoice::cuda);
  // What is left is as strict as ever.
  expect_user_error([&] { resolve_config({}, Purpose::plan); },
                    "model.config is not given; name a Hugging Face config.json or the folder that holds it");
  expect_user_error([&] { plan({"--run.device=gpu"}); },
                    "run.device = gpu (command line) is not known; use auto, cpu or cuda");
  expect_user_error([&] { plan({"--train.eval_every=2"}); },
                    "train.eval_every = 2 needs data.eval; name a token file, or set it to 0");
}

TEST_F(OptionsTest, ACommandHasOptionsOfItsOwn) {
  int ranks = 1;
  bool units = false;
  const std::vector<Option> more = {{"ranks", &ranks, "", {.range = kAtLeastOne}},
                                    {"units", &units, "", {}, true}};
  const train::Config c =
      resolve_config(with_required({"--ranks", "4", "--run.seed=7", "--units"}), Purpose::train, more);
  EXPECT_EQ(ranks, 4);
  EXPECT_TRUE(units);
  EXPECT_EQ(c.run.seed, 7U);
  expect_user_error([&] { resolve_config(with_required({"--ranks=0"}), Purpose::train, more); },
                    "--ranks 0 is out of range; it must be at least 1");
  expect_user_error([&] { resolve_config(with_required({"--unit"}), Purpose::train, more); },
                    "unknown option --unit on the command line; did you mean --units?");
}

// Who adds a key decides, in src/train/changed_keys.cpp, what a change of it means for a run that continues.
TEST_F(OptionsTest, EveryKeyHasAnEffectOnRunsThatContinue) {
  train::Config defaults;
  for (const auto& option : option_table(defaults)) EXPECT_TRUE(train::effect_of(option.key)) << option.key;
}

TEST_F(OptionsTest, HelpNamesEveryKeyAndDefault) {
  const std::string help = help_text(with_keys({}));
  train::Config defaults;
  for (const auto& option : option_table(defaults)) {
    EXPECT_THAT(help, HasSubstr("--" + option.key + " " + value_name(option)));
    const auto value = value_text(option);
    if (value.empty()) continue;
    EXPECT_THAT(help, HasSubstr("--" + option.key + " " + value_name(option) + " (=" + value + ")"));
  }
}

// Until the next version.
TEST_F(OptionsTest, AcceptTheOldNameOfAValueAndSayTheNewOne) {
  std::vector<std::string> lines;
  const auto resolved = [&](const Arguments& arguments) {
    lines.clear();
    return cli::resolve_config(arguments, Log([&](const std::string& line) { lines.push_back(line); }),
                               Purpose::train, {});
  };
  for (const char* old : {"own", "OWN"}) {
    const auto config = resolved(with_required({std::string("--run.attention=") + old}));
    EXPECT_EQ(config.run.attention, device::GpuAttention::native);
    EXPECT_EQ(
        lines,
        std::vector<std::string>{fmt::format(
            "warning: run.attention = {} (command line) is now called native; the next version will refuse "
            "the old name",
            old)});
    EXPECT_NE(to_ini(config).find("attention = native\n"), std::string::npos);
  }
  EXPECT_EQ(resolved(with_required({"--run.attention=native"})).run.attention, device::GpuAttention::native);
  EXPECT_TRUE(lines.empty());
  // A checkpoint of the older version: the same value, silently.
  EXPECT_EQ(train::read_run_text("[run]\nattention = own\ndir = own\n").value("run.attention"), "native");
  EXPECT_EQ(train::read_run_text("[run]\nattention = own\ndir = own\n").value("run.dir"), "own");
}

}  // namespace
}  // namespace llampi::test
