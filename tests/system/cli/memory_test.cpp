// SPDX-License-Identifier: Apache-2.0
// The memory of whole processes with a model of 301 million parameters, against the plan. Needs 6 GiB.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "support/shell.hpp"

namespace llampi::test {
namespace {

struct Case {
  int ranks;
  std::string options;
};

TEST(Memory, OfAProcessIsThePlanAndAConstant) {
  const ScratchFolder folder;
  folder.write("config.json", R"({"model_type": "llama", "vocab_size": 32000, "hidden_size": 1024,
    "intermediate_size": 4096, "num_hidden_layers": 16, "num_attention_heads": 16, "num_key_value_heads": 16,
    "max_position_embeddings": 256, "tie_word_embeddings": true})");
  folder.write("text", std::string(5000, 'x'));
  const auto llampi = [&](const std::string& before, const std::string& arguments) {
    const auto ending =
        shell(folder.path(), fmt::format("OMP_NUM_THREADS=1 {} {} {}", before, LLAMPI_PROGRAM, arguments));
    EXPECT_EQ(ending.status, 0) << ending.err;
    return ending.out;
  };
  llampi("", "tokenize --tokenizer bytes --output tokens.h5 text");
  std::int64_t kept_by_one = 0;
  for (const auto& [ranks, options] :
       {Case{1, ""}, Case{2, ""}, Case{4, ""},
        Case{1, "--fsdp.cpu_offload=params --fsdp.param_dtype=bfloat16"},
        Case{2, "--fsdp.strategy=no_shard --optimizer.moment_dtype=bfloat16"},
        Case{2, "--fsdp.cpu_offload=optimizer --fsdp.offload_step=host --activation.checkpointing=full"}}) {
    const std::string common =
        "--model.config=config.json --data.seq_len=128 --train.global_batch=4 " + options;
    const auto plan =
        nlohmann::json::parse(llampi("", fmt::format("plan --json --ranks={} {}", ranks, common)));
    const auto planned = plan["planned_bytes"].get<std::int64_t>();
    const auto constant = plan["process_bytes"].get<std::int64_t>();
    // The second step has touched everything.
    llampi(fmt::format("{} -n {}", MPIRUN, ranks),
           fmt::format("train {} --data.train=tokens.h5 --train.steps=2 --run.dir=run", common));
    std::string line, last;
    for (std::ifstream in(folder.path() / "run" / "metrics.jsonl"); std::getline(in, line);) last = line;
    std::filesystem::remove_all(folder.path() / "run");
    const auto resident = nlohmann::json::parse(last)["memory_bytes"].get<std::int64_t>();
    fmt::print("{} rank(s) {}: planned {}, resident {}, {} MiB more\n", ranks, options, planned, resident,
               (resident - planned) >> 20);
    EXPECT_NEAR(static_cast<double>(resident - constant), static_cast<double>(planned),
                0.05 * static_cast<double>(planned));
    if (!options.empty()) continue;
    std::int64_t kept = 0;
    for (const auto& [name, arena] : plan["arenas"].items()) kept += arena["kept_bytes"].get<std::int64_t>();
    if (ranks == 1) kept_by_one = kept;
    // Parameters and optimizer state fall as 1 / ranks, up to padding and a few tables.
    EXPECT_NEAR(static_cast<double>(kept), static_cast<double>(kept_by_one) / ranks, 1e6);
  }
}

}  // namespace
}  // namespace llampi::test
