// SPDX-License-Identifier: Apache-2.0
// A folder with a small model and its data, and whole runs in it.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "llampi/checkpoint/checkpoint.hpp"
#include "llampi/checkpoint/run_folder.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/comm/compute.hpp"
#include "llampi/data/token_file.hpp"
#include "llampi/train/train.hpp"
#include "support/mpi_test.hpp"

namespace llampi::test {

namespace fs = std::filesystem;

/// config.json of a small model; `more` is further fields.
inline std::string model_json(const std::string& more = "") {
  return R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 61,
  "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 3,
  "num_key_value_heads": 1, "max_position_embeddings": 64)" +
         more + "}";
}

/// On a machine with GPUs, too.
inline const comm::DeviceOptions kOnCpu = {.device = device::DeviceChoice::cpu, .threads = 1};

/// The last byte of the file, which is one of a value: only its checksum tells.
inline void change_a_value(const std::filesystem::path& file) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekg(-1, std::ios::end);
  const auto byte = static_cast<char>(stream.peek() ^ 1);
  stream.seekp(-1, std::ios::end);
  stream.put(byte);
}

class Train : public ::testing::Test {
 protected:
  Train() {
    folder_ = world().broadcast(
        (fs::temp_directory_path() / fmt::format("llampi-train-{}", ::getpid())).string(), 0);
    if (world().rank() == 0) {
      fs::create_directories(folder_);
      std::ofstream(folder_ / "config.json") << model_json();
      write_tokens("tokens.h5", 61, 3000);
      write_tokens("eval.h5", 61, 500);
    }
    world().barrier();
  }
  ~Train() override {
    world().barrier();
    if (world().rank() == 0) fs::remove_all(folder_);
  }

  static comm::World& world() { return test_world(); }

  void write_tokens(const std::string& name, std::int32_t vocabulary, int count) const {
    data::TokenFileWriter writer(folder_ / name, vocabulary, "bytes");
    std::vector<std::int32_t> document;
    for (int i = 0; i < count; ++i) {
      document.push_back((i * i + i / 7) % vocabulary);
      if (i % 37 == 36) writer.append_document(document), document.clear();
    }
    if (!document.empty()) writer.append_document(document);
    writer.close();
  }

  /// singles.h5: one token per document, so no label belongs to its input's document.
  void write_singles() const {
    if (world().rank() == 0) {
      data::TokenFileWriter writer(folder_ / "singles.h5", 61, "bytes");
      const std::vector<std::int32_t> one = {7};
      for (int i = 0; i < 400; ++i) writer.append_document(one);
      writer.close();
    }
    world().barrier();
  }

  /// Twelve steps with a checkpoint after every fourth.
  train::Config config(const std::string& run) const {
    train::Config c;
    c.run.dir = (folder_ / run).string();
    c.run.device = kOnCpu.device;
    c.run.threads = 1;
    c.run.bind = comm::Bind::none;  // tests share the cores with others
    c.model.config = (folder_ / "config.json").string();
    c.data.train = (folder_ / "tokens.h5").string();
    c.data.seq_len = 16;
    c.train.steps = 12;
    c.train.micro_batch = 1;
    c.train.global_batch = 12;
    c.optimizer.lr = 1e-2;
    c.optimizer.warmup_steps = 3;
    c.checkpoint.every = 4;
    c.checkpoint.keep = 10;
    return c;
  }

  train::Outcome run(const train::Config& c, const Log& log = Log()) const {
    return train::train(world(), c, {"resolved\n"}, log);
  }

  /// A log of this rank that keeps its lines, and calls `then` with each.
  Log keeping_log(std::function<void(const std::string&)> then = nullptr) {
    lines_.clear();
    return Log([this, then](const std::string& line) {
      lines_.push_back(line);
      if (then) then(line);
    });
  }
  /// True on ranks other than 0: outside of tests their logs are silent, so not every line is meant for them.
  bool logged(const std::string& part) const {
    return world().rank() != 0 || std::any_of(lines_.begin(), lines_.end(), [&](const auto& line) {
             return line.find(part) != std::string::npos;
           });
  }
  static std::filesystem::path newest(const train::Config& c) {
    return checkpoint::list_checkpoints(c.run.dir).back();
  }
  /// The run was told to stop when the step was reported, which other ranks heard during the step after the next.
  static void expect_stopped_soon_after(std::int64_t step, const train::Config& c) {
    const auto file = newest(c);
    EXPECT_GE(file, checkpoint::checkpoint_path(c.run.dir, step));
    EXPECT_LE(file, checkpoint::checkpoint_path(c.run.dir, step + 2));
  }
  /// Calls `what` on one rank when a step of twelve is reported.
  Log at_step(int step, int rank, const std::function<void()>& what) {
    return keeping_log([=](const std::string& line) {
      if (world().rank() == rank && line.starts_with(fmt::format("step {:>2}/12 ", step))) what();
    });
  }
  /// The sentence with which all ranks refuse.
  std::string refusal(const train::Config& c) const {
    try {
      run(c);
    } catch (const UserError& error) {
      return error.what();
    }
    return "not refused";
  }

  std::vector<nlohmann::json> metrics(const std::string& run) const {
    std::vector<nlohmann::json> lines;
    std::ifstream in(folder_ / run / "metrics.jsonl");
    for (std::string line; std::getline(in, line);) lines.push_back(nlohmann::json::parse(line));
    return lines;
  }

  /// Of the last line of history.jsonl.
  std::string reason_of_end(const std::string& run) const {
    std::ifstream in(folder_ / run / "history.jsonl");
    std::string last;
    for (std::string line; std::getline(in, line);) last = line;
    return nlohmann::json::parse(last).value("reason", "");
  }

  /// What must not depend on when a run was interrupted.
  std::vector<std::string> curve(const std::string& run) const {
    std::vector<std::string> values;
    for (auto& line : metrics(run)) {
      for (const auto* key : {"step_seconds", "data_seconds", "tokens_per_second",
                              "tokens_per_second_per_rank", "memory_bytes", "checkpoint_stall_seconds",
                              "slowest_rank", "slowest_rank_seconds", "mean_rank_seconds", "time"}) {
        line.erase(key);
      }
      values.push_back(line.dump());
    }
    return values;
  }

  /// All tensors of a checkpoint, on one rank's memory.
  std::vector<std::vector<float>> tensors(const std::string& run, std::int64_t step) const {
    return tensors_of(checkpoint::checkpoint_path(folder_ / run, step));
  }
  static std::vector<std::vector<float>> tensors_of(const std::filesystem::path& file) {
    const auto infos = checkpoint::read_checkpoint_summary(file).tensors;
    std::vector<std::vector<float>> values;
    std::vector<checkpoint::TensorPiece> pieces;
    for (std::size_t t = 0; t < infos.size(); ++t) {
      std::int64_t n = 1;
      for (const auto extent : infos[t].shape) n *= extent;
      for (int k = 0; k < 3; ++k) values.emplace_back(n);
      const auto at = values.end() - 3;
      pieces.push_back({static_cast<int>(t), 0, tensor(at[0].data(), 1, n), {}, {}});
      if (!infos[t].optimizer) continue;
      pieces.back().exp_avg = tensor(at[1].data(), 1, n);
      pieces.back().exp_avg_sq = tensor(at[2].data(), 1, n);
    }
    checkpoint::load_checkpoint(world(), *device::make_reference_device(), file, infos, pieces);
    return values;
  }

  void copy_checkpoint(const std::string& from, const std::string& to, std::int64_t step) const {
    if (world().rank() == 0) {
      fs::create_directories(folder_ / to / "checkpoints");
      fs::copy(checkpoint::checkpoint_path(folder_ / from, step),
               checkpoint::checkpoint_path(folder_ / to, step));
      fs::copy(folder_ / from / "metrics.jsonl", folder_ / to / "metrics.jsonl");
    }
    world().barrier();
  }

  /// A run of twelve steps that is done: what goes on from its checkpoint of step 8, as `name`, ends as it did.
  void expect_equal_bits_from_step_8(train::Config whole, const std::string& whole_name,
                                     const std::string& name) const {
    copy_checkpoint(whole_name, name, 8);
    whole.run.dir = (folder_ / name).string();
    EXPECT_EQ(run(whole), train::Outcome::done);
    EXPECT_EQ(curve(name), curve(whole_name));
    EXPECT_EQ(tensors(name, 12), tensors(whole_name, 12));
  }

  fs::path folder_;
  std::vector<std::string> lines_;
};

}  // namespace llampi::test
