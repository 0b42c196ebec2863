// SPDX-License-Identifier: Apache-2.0
// The program on GPUs, which here are emulated: a plugin that the program loads as it loads the real one.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "support/shell.hpp"

namespace llampi::test {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

/// A loss of the same weights, which are bfloat16 on a GPU: 1.4e-5 of it was seen between the two. Other seeds are 7e-3 away.
constexpr double kBf16Weights = 3e-4;

class OnGpus : public ::testing::Test {
 protected:
  OnGpus() {
    folder_.write("config.json", R"({"model_type": "llama", "vocab_size": 256, "hidden_size": 32,
      "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
      "head_dim": 16, "max_position_embeddings": 64})");
    folder_.write("run.ini",
                  "[model]\nconfig = config.json\n[data]\ntrain = tokens.h5\nseq_len = 16\n"
                  "[train]\nsteps = 2\nmicro_batch = 2\nglobal_batch = 4\n[optimizer]\nlr = 1e-3\n");
    std::string text;
    for (int i = 0; i < 2000; ++i) text += static_cast<char>('a' + i * i % 23);
    folder_.write("text", text);
    EXPECT_EQ(llampi("tokenize --tokenizer bytes --output tokens.h5 text").status, 0);
  }

  Ending llampi(const std::string& arguments, int ranks = 1, const std::string& environment = "") const {
    const std::string start = ranks == 1 ? "" : fmt::format("{} -n {} ", MPIRUN, ranks);
    return shell(
        folder_.path(),
        fmt::format("LLAMPI_PLUGIN_DIR='{}/emulated' XDG_CACHE_HOME=cache OMP_NUM_THREADS=1 {} {} {} {}",
                    FAKE_PLUGINS, environment, start, LLAMPI_PROGRAM, arguments));
  }
  std::vector<nlohmann::json> metrics(const std::string& run) const {
    std::vector<nlohmann::json> lines;
    std::istringstream text(read_text(folder_.path() / run / "metrics.jsonl"));
    for (std::string line; std::getline(text, line);) lines.push_back(nlohmann::json::parse(line));
    return lines;
  }
  void expect_same_curve(const std::string& run, const std::string& expected, double tolerance) const {
    const auto lines = metrics(run), others = metrics(expected);
    ASSERT_EQ(lines.size(), 2U);
    for (std::size_t i = 0; i < lines.size(); ++i) {
      for (const char* key : {"loss", "grad_norm"}) {
        const double value = others.at(i)[key];
        EXPECT_NEAR(lines[i][key].get<double>(), value, tolerance * value) << key << " of step " << i + 1;
      }
    }
  }

  ScratchFolder folder_;
};

// As far as float32 goes: 1e-5 is what other orders of sums do (tests/support/expect_trajectory.hpp). bfloat16:
// three times what PyTorch's deviates by (tests/gpu/engine/engine_test.cpp).
TEST_F(OnGpus, TrainsAsOnCpus) {
  const std::string train = "train --config run.ini --run.dir=";
  ASSERT_EQ(llampi(train + "cpu --run.device=cpu").status, 0);
  const Ending exact = llampi(train + "exact --run.device=cuda --fsdp.param_dtype=float32");
  ASSERT_EQ(exact.status, 0) << exact.err;
  expect_same_curve("exact", "cpu", 1e-5);
  EXPECT_THAT(exact.out, HasSubstr("\ndevice: emulated GPU (0000:00:00.0), "));
  EXPECT_THAT(exact.out,
              ContainsRegex("\nGPU self-check passed: [0-9]+ tensors match the CPU \\(float32\\)\n"));
  EXPECT_THAT(exact.out,
              ContainsRegex("\nGPU memory per rank: CUDA context and libraries .*, arena planned "
                            "([0-9.]+ [KMG]iB) and used [0-9.]+ [KMG]iB, NCCL's communicators .*; in all "));

  const Ending narrow =
      llampi(train + "narrow --run.device=cuda --run.share_gpu=true", 2,
             fmt::format("LD_LIBRARY_PATH='{}/nvml' FAKE_NVML='1:5000000000 self:700000000'", FAKE_PLUGINS));
  ASSERT_EQ(narrow.status, 0) << narrow.err;
  expect_same_curve("narrow", "cpu", 1.8e-2);
  EXPECT_THAT(narrow.out, HasSubstr(" tensors match the CPU (bfloat16)\n"));
  // The arena, and nothing of the process.
  const auto plan = nlohmann::json::parse(llampi("plan --config run.ini --ranks 2 --device cuda --json").out);
  EXPECT_GE(metrics("narrow").back()["memory_bytes"], plan["arenas"]["device"]["planned_bytes"]);
  // What the driver says of this process, where it says it.
  EXPECT_EQ(metrics("narrow").back()["gpu_process_bytes"], 700000000);
  EXPECT_THAT(narrow.out, HasSubstr(" (of all that use it); this process has 667.57 MiB\n"));
  EXPECT_TRUE(metrics("exact").back().at("gpu_process_bytes").is_null());
  EXPECT_FALSE(metrics("cpu").back().contains("gpu_process_bytes"));

  // Weights go on where there are other devices.
  const std::string weights = " --weights narrow/checkpoints/step-00000002.h5 ";
  const auto loss = [&](const std::string& device) {
    const Ending ending =
        llampi("evaluate --json --data tokens.h5 --seq-len 16" + weights + "--device " + device);
    EXPECT_EQ(ending.status, 0) << ending.err;
    return nlohmann::json::parse(ending.out)["loss"].get<double>();
  };
  const double on_cpu = loss("cpu");
  EXPECT_NEAR(loss("cuda"), on_cpu, kBf16Weights * on_cpu);
  const std::string generate = "generate --prompt ab --max-tokens 3 --temperature 0" + weights;
  const Ending text = llampi(generate + "--device cuda");
  EXPECT_EQ(text.status, 0) << text.err;
  EXPECT_THAT(text.out, ::testing::StartsWith("ab"));
  EXPECT_EQ(text.out, llampi(generate + "--device cpu").out);
  EXPECT_THAT(text.err, HasSubstr("device: emulated GPU"));
}

// A replayed step shows nothing until its end: here more than the second that the watchdog is told to wait.
TEST_F(OnGpus, AreNotTakenToHangInALongStep) {
  const Ending ending = llampi(
      "train --config run.ini --run.dir=long --run.device=cuda --train.steps=3 --data.seq_len=64 "
      "--train.global_batch=24 --run.watchdog_seconds=1");
  ASSERT_EQ(ending.status, 0) << ending.err;
  if (metrics("long").at(1)["step_seconds"] < 0.6) GTEST_SKIP() << "this machine is too fast";
  EXPECT_THAT(
      ending.out,
      ContainsRegex("run.watchdog_seconds = 1 is short for steps of [0-9.]+ s, during which a GPU "
                    "shows no progress: the watchdog waits three times as long as the last step took"));
}

// What the run's model has beside a Llama is compared before it begins.
TEST_F(OnGpus, TrainOtherFamiliesAsOnCpus) {
  const std::map<std::string, std::string> families = {
      {R"("qwen2", "use_sliding_window": true, "sliding_window": 5, "max_window_layers": 0)",
       "biases of q, k and v, a sliding window"},
      {R"("qwen3")", "norms of heads"},
      {R"("mistral", "sliding_window": 5)", "a sliding window"}};
  int model = 0;
  for (const auto& [family, compared] : families) {
    SCOPED_TRACE(family);
    folder_.write("other.json", fmt::format(R"({{"model_type": {}, "vocab_size": 256, "hidden_size": 32,
      "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
      "head_dim": 16, "max_position_embeddings": 64}})",
                                            family));
    const std::string run = fmt::format("run-{}", ++model);
    const std::string train = "train --config run.ini --model.config=other.json --run.dir=" + run;
    ASSERT_EQ(llampi(train + "-cpu --run.device=cpu").status, 0);
    const Ending exact = llampi(train + " --run.device=cuda --fsdp.param_dtype=float32");
    ASSERT_EQ(exact.status, 0) << exact.err;
    expect_same_curve(run, run + "-cpu", 1e-5);
    EXPECT_THAT(exact.out, HasSubstr(" tensors match the CPU (float32, " + compared + ")\n"));

    const auto loss = [&](const std::string& device) {
      const Ending ending = llampi(
          fmt::format("evaluate --json --data tokens.h5 --seq-len 16 --weights {} --device {}", run, device));
      EXPECT_EQ(ending.status, 0) << ending.err;
      return nlohmann::json::parse(ending.out)["loss"].get<double>();
    };
    const double on_cpu = loss("cpu");
    EXPECT_NEAR(loss("cuda"), on_cpu, kBf16Weights * on_cpu);
    const std::string generate =
        fmt::format("generate --prompt ab --max-tokens 9 --temperature 0 --weights {} --device ", run);
    const Ending text = llampi(generate + "cuda");
    EXPECT_EQ(text.status, 0) << text.err;
    EXPECT_THAT(text.out, ::testing::StartsWith("ab"));
    // Two tokens: where a model has hardly learnt, later ones are a matter of rounding.
    EXPECT_EQ(text.out.substr(0, 4), llampi(generate + "cpu").out.substr(0, 4));
  }
}

// A base in bfloat16 or in 8 bits, which products in float32 read in float32; dropout, which evaluations are without; a checkpoint between.
TEST_F(OnGpus, TrainAdaptersAsOnCpus) {
  ASSERT_EQ(llampi("train --config run.ini --run.dir=base --run.device=cpu").status, 0);
  folder_.write("few", read_text(folder_.path() / "text").substr(0, 200));
  ASSERT_EQ(llampi("tokenize --tokenizer bytes --output few.h5 few").status, 0);
  const std::string train =
      "train --config run.ini --model.weights=base --lora.rank=4 --lora.targets=proj --lora.dropout=0.2 "
      "--optimizer.lr=1e-2 --optimizer.schedule=constant --data.eval=few.h5 --train.eval_every=2 ";
  const auto values = [&](const std::string& run) {
    std::vector<double> all;
    for (const auto& line : metrics(run)) {
      for (const char* key : {"loss", "grad_norm", "eval_loss"}) {
        if (line.contains(key)) all.push_back(line[key]);
      }
    }
    return all;
  };
  const auto expect_near = [&](const std::string& run, double tolerance, const std::string& like = "cpu") {
    const auto actual = values(run), expected = values(like);
    ASSERT_EQ(actual.size(), 4U * 2 + 2) << "steps, and evaluations";
    ASSERT_EQ(expected.size(), actual.size());
    for (std::size_t i = 0; i < actual.size(); ++i)
      EXPECT_NEAR(actual[i], expected[i], tolerance * expected[i]) << run << ", " << i;
  };
  ASSERT_EQ(llampi(train + "--train.steps=4 --run.dir=cpu --run.device=cpu").status, 0);
  for (const char* steps : {"2", "4"}) {
    const Ending exact = llampi(fmt::format(
        "{}--train.steps={} --run.dir=exact --run.device=cuda --fsdp.param_dtype=float32", train, steps));
    ASSERT_EQ(exact.status, 0) << exact.err;
    EXPECT_THAT(exact.out, HasSubstr(" tensors match the CPU (float32, adapters)\n"));
  }
  expect_near("exact", 1e-5);
  for (const std::string where : {"cpu", "cuda"}) {
    const Ending ending =
        llampi(fmt::format("{}--train.steps=4 --run.dir=int8-{} --run.device={} --fsdp.param_dtype=float32 "
                           "--lora.base_dtype=int8",
                           train, where, where));
    ASSERT_EQ(ending.status, 0) << ending.err;
  }
  expect_near("int8-cuda", 1e-5, "int8-cpu");
  EXPECT_NE(values("int8-cpu"), values("cpu"));
  const Ending narrow =
      llampi(train + "--train.steps=4 --run.dir=narrow --run.device=cuda --run.share_gpu=true", 2);
  ASSERT_EQ(narrow.status, 0) << narrow.err;
  EXPECT_THAT(narrow.out, HasSubstr(" tensors match the CPU (bfloat16, adapters)\n"));
  expect_near("narrow", 1.8e-2);
  const auto plan = nlohmann::json::parse(
      llampi("plan --config run.ini --ranks 2 --device cuda --json --lora.rank=4 --lora.targets=proj "
             "--lora.dropout=0.2 --model.weights=base")
          .out);
  EXPECT_GE(metrics("narrow").front()["memory_bytes"], plan["arenas"]["device"]["planned_bytes"]);

  const auto loss = [&](const std::string& device) {
    const Ending ending =
        llampi("evaluate --json --data few.h5 --seq-len 16 --weights narrow --device " + device);
    EXPECT_EQ(ending.status, 0) << ending.err;
    return nlohmann::json::parse(ending.out)["loss"].get<double>();
  };
  const double on_cpu = loss("cpu");
  EXPECT_NEAR(loss("cuda"), on_cpu, kBf16Weights * on_cpu);
}

TEST_F(OnGpus, MultiplyIn8BitsAsCpusDo) {
  const std::string train = "train --config run.ini --fsdp.product_dtype=fp8 --run.dir=";
  ASSERT_EQ(llampi(train + "cpu --run.device=cpu").status, 0);
  const Ending run = llampi(train + "gpu --run.device=cuda --run.share_gpu=true", 2);
  ASSERT_EQ(run.status, 0) << run.err;
  expect_same_curve("gpu", "cpu", 1.8e-2);
  EXPECT_THAT(run.out, HasSubstr(" tensors match the CPU (bfloat16 with products in FP8)\n"));
  EXPECT_EQ(metrics("gpu").back()["fp8_saturated"], 0);
  EXPECT_THAT(read_text(folder_.path() / "gpu/checkpoints/tuning.json"),
              ::testing::AllOf(HasSubstr("float8_e5m2"), HasSubstr("fast accumulation")));
  const Ending again = llampi(train + "gpu --run.device=cuda --run.share_gpu=true --train.steps=3", 2);
  EXPECT_EQ(again.status, 0) << again.err;
  EXPECT_THAT(again.out, Not(HasSubstr("bits will differ")));

  const Ending older = llampi(train + "older --run.device=cuda", 1, "EMULATED_GPU_MAJOR=8");
  EXPECT_EQ(older.status, 2);
  EXPECT_THAT(older.err,
              HasSubstr("fsdp.product_dtype = fp8 needs a GPU of compute capability 8.9 or newer (Ada, "
                        "Hopper, Blackwell), and emulated GPU has 8.0"));
}

TEST_F(OnGpus, TraceWhatTheyDoAtTheirOwnTimes) {
  const Ending run = llampi("train --config run.ini --run.dir=traced --run.device=cuda --log.trace=2");
  ASSERT_EQ(run.status, 0) << run.err;
  const auto trace = nlohmann::json::parse(read_text(folder_.path() / "traced/trace/rank-00000.json"));
  std::map<int, double> ends;  // of the last event of each row
  std::map<std::string, double> took;
  for (const auto& event : trace["traceEvents"]) {
    if (event["ph"] != "X") continue;
    const double begin = event["ts"], microseconds = event["dur"];
    double& end = ends[event["tid"]];
    EXPECT_GE(begin, event["args"]["issued"].get<double>() - 2) << event;
    EXPECT_GE(begin, end - 1e-2) << event;
    EXPECT_GE(microseconds, 0) << event;
    end = begin + microseconds;
    took[event["cat"]] += microseconds;
  }
  for (const char* operation : {"h2d", "forward", "backward", "update"}) EXPECT_GT(took[operation], 0);
}

TEST_F(OnGpus, KeepWhatWasDecidedWhenTheRunBegan) {
  const std::string train =
      "train --config run.ini --run.device=cuda --run.tuning=off --run.dir=run --train.steps=";
  const auto decided = [&] { return read_text(folder_.path() / "run" / "config.ini"); };
  const Ending begun = llampi(train + "1 --activation.checkpointing=auto");
  ASSERT_EQ(begun.status, 0) << begun.err;
  EXPECT_THAT(begun.out, HasSubstr("\nactivation.checkpointing = auto: none\n"));
  EXPECT_THAT(
      begun.out,
      HasSubstr("\nrun.attention_workspace = auto: 1024 MiB, run.logits_workspace = auto: 1024 MiB\n"));
  EXPECT_THAT(decided(), HasSubstr("\nattention_workspace = 1024\n"));  // an eighth of the memory
  EXPECT_THAT(decided(), HasSubstr("\nlogits_workspace = 1024\n"));     // more than they take
  EXPECT_THAT(decided(), HasSubstr("\ncheckpointing = none\noffload = none\n"));
  const Ending given = llampi(
      train +
      "2 --run.attention_workspace=7 --run.logits_workspace=3 --activation.checkpointing='full 1, none'");
  ASSERT_EQ(given.status, 0) << given.err;
  EXPECT_THAT(given.out, HasSubstr("changed since step 1: run.attention_workspace = 7, was 1024\n"));
  const Ending kept = llampi(train + "3 --activation.checkpointing=auto");
  ASSERT_EQ(kept.status, 0) << kept.err;
  EXPECT_THAT(kept.out, Not(HasSubstr("changed since step 2: run.attention_workspace")));
  EXPECT_THAT(kept.out, HasSubstr("\nactivation.checkpointing = auto: full 1, none\n"));
  EXPECT_THAT(kept.out,
              HasSubstr("\nrun.attention_workspace = auto: 7 MiB, run.logits_workspace = auto: 3 MiB\n"));
  EXPECT_THAT(decided(), HasSubstr("\nattention_workspace = 7\nlogits_workspace = 3\n"));
  EXPECT_THAT(decided(), HasSubstr("\ncheckpointing = full 1, none\n"));

  // A number that was chosen is as one that was given.
  const std::string large = " --train.global_batch=12 --activation.checkpointing=none --run.dir=";
  const Ending chosen = llampi(train + "2 --train.micro_batch=auto" + large + "chosen");
  ASSERT_EQ(chosen.status, 0) << chosen.err;
  EXPECT_THAT(chosen.out, HasSubstr("\ntrain.micro_batch = auto: 12\n"));
  EXPECT_THAT(read_text(folder_.path() / "chosen" / "config.ini"), HasSubstr("\nmicro_batch = 12\n"));
  const Ending number = llampi(train + "2 --train.micro_batch=12" + large + "number");
  ASSERT_EQ(number.status, 0) << number.err;
  EXPECT_EQ(metrics("chosen")[1]["loss"], metrics("number")[1]["loss"]);
  const Ending smaller = llampi(train + "3 --train.micro_batch=4" + large + "chosen");
  ASSERT_EQ(smaller.status, 0) << smaller.err;
  const Ending again = llampi(train + "4 --train.micro_batch=auto" + large + "chosen");
  ASSERT_EQ(again.status, 0) << again.err;
  EXPECT_THAT(again.out, HasSubstr("\ntrain.micro_batch = auto: 4\n"));
  EXPECT_THAT(again.out, Not(HasSubstr("changed since step 3: train.micro_batch")));

  // What has no effect is not decided.
  const Ending other =
      llampi(train + "1 --run.dir=other --run.deterministic=false --activation.checkpointing=auto");
  ASSERT_EQ(other.status, 0) << other.err;
  EXPECT_THAT(read_text(folder_.path() / "other" / "config.ini"),
              HasSubstr("\nattention_workspace = auto\n"));
  EXPECT_THAT(other.out, HasSubstr("\nrun.logits_workspace = auto: 1024 MiB\n"));
  const Ending tree = llampi(train + "1 --run.dir=tree --fsdp.sum_order=tree");
  ASSERT_EQ(tree.status, 0) << tree.err;
  EXPECT_THAT(read_text(folder_.path() / "tree" / "config.ini"), HasSubstr("\nlogits_workspace = auto\n"));
  EXPECT_THAT(tree.out, HasSubstr("\nrun.attention_workspace = auto: 1024 MiB\n"));
}

// The first run measures, and keeps what it chose beside its checkpoints and in the cache.
TEST_F(OnGpus, ChooseProductsOnce) {
  const std::string train =
      "train --config run.ini --run.device=cuda --run.share_gpu=true --train.steps=1 --run.dir=";
  const auto products = [&](const std::string& file) {
    const auto gpus = nlohmann::json::parse(read_text(folder_.path() / file));
    return gpus.front().front();  // of one GPU and one run
  };
  const Ending first = llampi(train + "first", 2);
  ASSERT_EQ(first.status, 0) << first.err;
  EXPECT_THAT(first.out,
              ContainsRegex("\nproducts: [1-9][0-9]* chosen by timing in [0-9.]+ s, 0 remembered\n"));
  const std::string kept = "first/checkpoints/tuning.json";
  EXPECT_GE(products(kept).size(), 8U);
  const Ending second = llampi(train + "second", 2);
  ASSERT_EQ(second.status, 0) << second.err;
  EXPECT_THAT(second.out, Not(HasSubstr("products: ")));
  EXPECT_EQ(products("second/checkpoints/tuning.json"), products(kept));
  EXPECT_EQ(metrics("second")[0]["loss"], metrics("first")[0]["loss"]);

  // A file that another run left, and a home that cannot be written.
  folder_.write("file", "");
  const Ending given = llampi(train + "given --run.tuning=" + kept, 2, "XDG_CACHE_HOME=file");
  ASSERT_EQ(given.status, 0) << given.err;
  EXPECT_EQ(products("given/checkpoints/tuning.json"), products(kept));
  const Ending without = llampi(train + "without", 1, "XDG_CACHE_HOME=file");
  ASSERT_EQ(without.status, 0) << without.err;
  EXPECT_THAT(without.out, HasSubstr("choices of products are not kept for other runs: "));

  const Ending off = llampi(train + "off --run.tuning=off");
  ASSERT_EQ(off.status, 0) << off.err;
  EXPECT_FALSE(std::filesystem::exists(folder_.path() / "off/checkpoints/tuning.json"));

  folder_.write("broken", "{\"gpu\": ");
  const Ending broken = llampi(train + "broken-run --run.tuning=broken");
  EXPECT_EQ(broken.status, 2);
  EXPECT_THAT(broken.err, HasSubstr("broken is not a tuning file (run.tuning): "));

  // What was chosen goes on with the run, whatever the cache says, and another GPU's choices are no use.
  const auto choices = nlohmann::json::parse(read_text(folder_.path() / kept));
  folder_.write(kept, nlohmann::json({{"another GPU", choices.front()}}).dump());
  const Ending other = llampi(train + "first --train.steps=2", 2);
  ASSERT_EQ(other.status, 0) << other.err;
  EXPECT_THAT(other.out + other.err, HasSubstr("tuning.json is of another GPU, and this is emulated GPU"));
  EXPECT_EQ(nlohmann::json::parse(read_text(folder_.path() / kept)).size(), 2U) << "another GPU's stay";

  // What changes the products is another run.
  const Ending changed = llampi(train + "changed --fsdp.wrap=none --optimizer.frozen=embed", 2);
  ASSERT_EQ(changed.status, 0) << changed.err;
  EXPECT_THAT(changed.out,
              ContainsRegex("\nproducts: [0-9]+ chosen by timing in [0-9.]+ s, [1-9][0-9]* remembered\n"));
}

// Whatever the cache has, and with run.tuning = off: they are a part of what makes the bits of a run.
TEST_F(OnGpus, KeepTheAlgorithmsOfTheirCheckpoint) {
  const auto train = [&](int steps, const std::string& more = "") {
    const Ending ending = llampi(fmt::format(
        "train --config run.ini --run.device=cuda --run.dir=run --train.steps={} {}", steps, more));
    EXPECT_EQ(ending.status, 0) << ending.err;
    return ending.out + ending.err;
  };
  const auto choices = [&](const std::string& file) {
    return nlohmann::json::parse(read_text(folder_.path() / file));
  };
  const auto change = [&](const std::string& file, const auto& other_way) {
    auto gpus = choices(file);
    for (auto& way : gpus.front().front()) way = other_way(way.template get<std::string>());
    folder_.write(file, gpus.dump());
  };
  const auto that_is_gone = [](const std::string&) { return "gone"; };
  const auto differs = ContainsRegex(
      "warning: of [0-9]+ products: the remembered algorithm cannot be used any more, so bits "
      "will differ: ");
  const std::string kept = "run/checkpoints/tuning.json";
  train(1);
  std::string cache = "cache/llampi/";
  cache += std::filesystem::directory_iterator(folder_.path() / cache)->path().filename();

  change(cache, that_is_gone);
  change(kept, [](const std::string& way) {
    constexpr std::string_view kLarge = "workspace 65536 ", kNone = "workspace 0 ";
    EXPECT_TRUE(way.starts_with(kLarge) || way.starts_with(kNone)) << way;
    const bool is_large = way.starts_with(kLarge);
    return std::string(is_large ? kNone : kLarge) + way.substr((is_large ? kLarge : kNone).size());
  });
  const auto changed = choices(kept);
  EXPECT_THAT(train(2), Not(HasSubstr("bits will differ")));
  EXPECT_EQ(choices(kept), changed);

  change(kept, that_is_gone);
  EXPECT_THAT(train(3, "--run.tuning=off"), differs);
  // Of another run's choices the same is said after a rehearsal.
  folder_.write(
      kept,
      nlohmann::json({{changed.begin().key(), {{"another run", choices(kept).front().front()}}}}).dump());
  std::filesystem::remove(folder_.path() / cache);
  const std::string rehearsed = train(4);
  EXPECT_THAT(rehearsed, differs);
  EXPECT_THAT(rehearsed,
              ContainsRegex("\nproducts: 0 chosen by timing in [0-9.]+ s, [1-9][0-9]* remembered\n"));
}

// Whether products are chosen or not.
TEST_F(OnGpus, PrepareForPackedDocuments) {
  folder_.write("more", std::string(50, 'x'));
  ASSERT_EQ(llampi("tokenize --tokenizer bytes --output documents.h5 text more").status, 0);
  const std::string train = "train --config run.ini --run.device=cuda --train.steps=1 --run.dir=";
  const auto is_said = ContainsRegex("\npacked documents: prepared in [0-9.]+ s\n");
  for (const auto* tuning : {"auto", "off"}) {
    const Ending packed =
        llampi(fmt::format("{}packed-{} --data.train=documents.h5 --run.tuning={}", train, tuning, tuning));
    ASSERT_EQ(packed.status, 0) << packed.err;
    EXPECT_THAT(packed.out, is_said);
  }
  const Ending whole = llampi(train + "whole --run.tuning=off");
  ASSERT_EQ(whole.status, 0) << whole.err;
  EXPECT_THAT(whole.out, Not(is_said));
}

// The head of so few tokens has products of its own shapes, which are chosen with the others.
TEST_F(OnGpus, TrainOnAnswersAlone) {
  std::string chats;
  for (int i = 0; i < 60; ++i) {
    chats += fmt::format(R"({{"prompt": "What is {} times {}, and why is it so?", "completion": "{}"}})",
                         i % 7, i % 5, i % 7 * (i % 5));
    chats += "\n";
  }
  folder_.write("chats.jsonl", chats);
  folder_.write("wide.json", R"({"model_type": "llama", "vocab_size": 1203, "hidden_size": 32,
    "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
    "head_dim": 16, "max_position_embeddings": 64})");
  const Ending written =
      llampi("tokenize --format chat --seq-len 64 --json --tokenizer " LLAMPI_TEST_DATA
             "/fixtures/tokenizers/llama2 --template llama2 --output chats.h5 chats.jsonl");
  ASSERT_EQ(written.status, 0) << written.err;
  const auto tokens = nlohmann::json::parse(written.out);
  ASSERT_LT(2 * tokens["loss_tokens"].get<int>(), tokens["tokens"].get<int>());

  const std::string train =
      "train --config run.ini --model.config=wide.json --data.train=chats.h5 --data.seq_len=64 --train.micro_batch=1 "
      "--train.global_batch=2 --run.share_gpu=true --run.dir=";
  ASSERT_EQ(llampi(train + "cpu --run.device=cpu", 2).status, 0);
  for (const auto* tuning : {"auto", "off"}) {
    const Ending trained =
        llampi(fmt::format("{}{} --run.device=cuda --fsdp.param_dtype=float32 --run.tuning={}", train, tuning,
                           tuning),
               2);
    ASSERT_EQ(trained.status, 0) << trained.err;
    expect_same_curve(tuning, "cpu", 1e-5);
  }
  const auto choices = nlohmann::json::parse(read_text(folder_.path() / "auto/checkpoints/tuning.json"));
  EXPECT_THAT(choices.front().items().begin().key(), HasSubstr(" tokens, loss mask, "));
  // Of all 64 tokens of a micro-batch, and of quarters of them.
  for (const char* rows : {" 1203x64/", " 1203x48/", " 1203x32/", " 1203x16/"})
    EXPECT_THAT(choices.dump(), HasSubstr(rows));
}

// A thread of each rank waits for the GPU's copies before it writes them.
TEST_F(OnGpus, SavesWhileTheyTrain) {
  const std::string train =
      "train --config run.ini --run.device=cuda --run.share_gpu=true --train.steps=3 --checkpoint.every=1 "
      "--checkpoint.keep=3 --run.dir=";
  for (const auto* run : {"waits", "overlaps --checkpoint.async=true"}) {
    const Ending ending = llampi(train + run, 2);
    ASSERT_EQ(ending.status, 0) << ending.err;
    EXPECT_THAT(ending.err + ending.out, Not(HasSubstr("holds training up")));
  }
  for (int step = 1; step <= 3; ++step) {
    const auto loss = [&](const std::string& run) {
      const std::string file = fmt::format("{}/checkpoints/step-{:08}.h5", run, step);
      EXPECT_EQ(llampi("inspect --verify " + file).status, 0);
      const Ending ending =
          llampi("evaluate --json --data tokens.h5 --seq-len 16 --device cpu --weights " + file);
      EXPECT_EQ(ending.status, 0) << ending.err;
      return nlohmann::json::parse(ending.out)["loss"].get<double>();
    };
    EXPECT_EQ(loss("overlaps"), loss("waits")) << "step " << step;
  }
}

// All comparisons are gpu_check_emulated's too, one by one.
TEST_F(OnGpus, DISABLED_ChecksWhatComputes) {
  const Ending check = llampi("check --json --device cuda");
  ASSERT_EQ(check.status, 0) << check.err;
  const auto json = nlohmann::json::parse(check.out);
  EXPECT_EQ(json["passed"], true);
  EXPECT_THAT(json["devices"][0].get<std::string>(), HasSubstr("emulated GPU"));
  EXPECT_GT(json["tensors"].size(), 250U);
  ASSERT_EQ(json["left_out"].size(), 2U) << "this plugin's attention is native, which knows no pieces";
  EXPECT_THAT(
      json["left_out"][0].get<std::string>(),
      ContainsRegex(
          "^GPU in bfloat16, heads of 64, in pieces against the whole \\(sequences one "
          "by one; sequences by heads; documents one by one; documents by heads\\): rank 0 does not compute so: .*, "
          "attention native$"));
}

TEST_F(OnGpus, DISABLED_ChecksCpusOfSeveralRanks) {
  const Ending on_cpus = llampi("check --device cpu", 2);
  EXPECT_EQ(on_cpus.status, 0) << on_cpus.err;
  EXPECT_THAT(on_cpus.out, HasSubstr("CPU against the reference in float64: "));
  EXPECT_THAT(on_cpus.out, ContainsRegex("\nMPI: 6 tensors; the one with the largest difference:\n  ok  "));
  EXPECT_THAT(on_cpus.out, Not(HasSubstr("WRONG")));
}

TEST_F(OnGpus, ChecksCpusWhereThatIsAskedFor) {
  const Ending on_cpus = llampi("check --config run.ini --skip-arithmetic --run.device=cpu");
  EXPECT_EQ(on_cpus.status, 0) << on_cpus.err;
  EXPECT_THAT(on_cpus.out, HasSubstr("\nPASS  steps "));
  EXPECT_THAT(on_cpus.out + on_cpus.err, Not(HasSubstr("emulated GPU")));
}

// Pairs of ranks exchange while the third one waits; windows are opened by all ranks together.
TEST_F(OnGpus, ChecksLinksOfAnOddNumberOfRanksWithWindows) {
  const Ending check = llampi(
      "check --config run.ini --skip-arithmetic --run.device=cuda --run.share_gpu=true --train.global_batch=6 "
      "--fsdp.nccl_window=true --fsdp.cpu_offload=optimizer",
      3);
  for (const auto* name : {"links", "copies"})  // a slow one is no fault where ranks share the cores
    EXPECT_THAT(check.out, ContainsRegex(fmt::format("\n(PASS  {0} |FAIL  {0} .* (is|are) slow)", name)))
        << check.err;
  for (const auto* name : {"data", "steps", "memory", "room", "checkpoint"})
    EXPECT_THAT(check.out, ContainsRegex(fmt::format("\nPASS  {} ", name))) << check.err;
}

// `auto`: GPUs where there is a driver and one for each rank, else CPUs.
TEST_F(OnGpus, AutoTakesGpusWhereEveryRankCanHaveOne) {
  const std::string train = "train --config run.ini --train.steps=1 --run.dir=";
  const std::string driver = fmt::format("LD_LIBRARY_PATH='{}/driver'", FAKE_PLUGINS);
  const Ending with = llampi(train + "with", 1, driver);
  ASSERT_EQ(with.status, 0) << with.err;
  EXPECT_THAT(with.out, HasSubstr("\ndevice: emulated GPU"));
  const Ending two = llampi(train + "two", 2, driver);
  EXPECT_EQ(two.status, 0) << two.err;
  EXPECT_THAT(two.out,
              HasSubstr("warning: all compute on CPUs, as run.device = auto allows: ranks 0 and 1 on "));
  EXPECT_THAT(two.out, HasSubstr("\ndevice: cpu: "));
  const Ending without = llampi(train + "without", 1, driver + " LLAMPI_PLUGIN_DIR=/nowhere");
  EXPECT_EQ(without.status, 0) << without.err;
  EXPECT_THAT(without.out,
              HasSubstr("warning: all compute on CPUs, as run.device = auto allows: there is no "
                        "libllampi_cuda.so in /nowhere (not installed, or not built: make program)\n"));
  const Ending refused = llampi(train + "refused --run.device=cuda", 2);
  EXPECT_EQ(refused.status, 2);
  ASSERT_EQ(refused.complaints().size(), 1U);
  EXPECT_THAT(refused.complaints()[0], HasSubstr("would share GPU"));
}

TEST_F(OnGpus, ARankThatSeesNoGpuIsAFaultOfItsNode) {
  const auto ending_of = [&](const std::string& command) {
    return shell(
        folder_.path(),
        fmt::format("LLAMPI_PLUGIN_DIR='{0}/emulated' LD_LIBRARY_PATH='{0}/driver' OMP_NUM_THREADS=1 "
                    "{1} -n 1 {2} {3} : -n 1 -x LLAMPI_PLUGIN_DIR=/nowhere {2} {3}",
                    FAKE_PLUGINS, MPIRUN, LLAMPI_PROGRAM, command));
  };
  const std::string check = "check --config run.ini --skip-arithmetic --run.device=";
  const Ending by_choice = ending_of(check + "auto");
  EXPECT_EQ(by_choice.status, 1) << by_choice.err;
  EXPECT_THAT(
      by_choice.out,
      HasSubstr(
          "\nFAIL  products    1 of 2 ranks see no GPU, so all compute on CPUs; rank 1: there is no "
          "libllampi_cuda.so in /nowhere (not installed, or not built: make program); run.device = cpu, "
          "if that is meant\n"));
  const std::string reason = "run.device = cuda, but no GPU is usable: there is no libllampi_cuda.so";
  const Ending asked = ending_of(check + "cuda");
  EXPECT_EQ(asked.status, 1) << asked.err;
  EXPECT_THAT(asked.err, ContainsRegex("llampi: rank 1 on [^ ]+: " + reason));
  const Ending trained = ending_of("train --config run.ini --run.device=cuda");
  EXPECT_EQ(trained.status, 1);
  ASSERT_EQ(trained.complaints().size(), 1U);
  EXPECT_THAT(trained.complaints()[0], ContainsRegex("^llampi: rank 1 on [^ ]+: " + reason));
}

TEST_F(OnGpus, CudaNeedsGpus) {
  const Ending ending = llampi("train --config run.ini --run.device=cuda", 1, "LLAMPI_PLUGIN_DIR=/nowhere");
  EXPECT_EQ(ending.status, 2);
  EXPECT_EQ(
      ending.err,
      "llampi: run.device = cuda, but no GPU is usable: there is no libllampi_cuda.so in /nowhere (not installed, "
      "or not built: make program); use run.device = cpu, or start on a machine with a GPU\n");
  const Ending evaluation = llampi("evaluate --weights . --data tokens.h5 --seq-len 16 --device gpu");
  EXPECT_EQ(evaluation.status, 2);
  EXPECT_THAT(evaluation.err, HasSubstr("use auto, cpu or cuda"));
}

}  // namespace
}  // namespace llampi::test
