// SPDX-License-Identifier: Apache-2.0
// What gpu_bench is asked for.
#pragma once

#include <cstdint>
#include <string>

#include "llampi/core/tensor.hpp"

namespace llampi::bench {

struct Options {
  std::string device = "cuda";  ///< cuda or cpu
  int threads = 1;              ///< of the CPU
  bool share_gpu = false;       ///< several ranks may have one GPU

  // The model: blocks of Llama-3-8B.
  std::int64_t hidden = 4096;
  std::int64_t feed_forward = 14336;
  std::int64_t query_heads = 32;
  std::int64_t key_value_heads = 8;
  std::int64_t vocabulary = 128256;
  std::int64_t layers = 0;   ///< 0: as many as fit, 18 at most
  double headroom_gib = 12;  ///< of the device's memory that layers = 0 leaves free

  // A step.
  std::int64_t seq_len = 8192;
  std::int64_t tokens = 8192;  ///< of a micro-batch of a rank
  int micro_batches = 2;
  /// auto: the tokens of a step are divided into micro-batches as by train.micro_batch = auto; chosen: they have been; given: by
  /// `tokens` and `micro_batches`.
  std::string micro_batch = "given";
  std::int64_t documents = 1;          ///< of a sequence, which do not see each other
  std::string checkpointing = "none";  ///< as activation.checkpointing
  std::string offload =
      "none";  ///< residuals: in host memory whatever fits; none: where `checkpointing` is auto and needs it
  double labels = 1;                 ///< share of the tokens that have a label
  std::string state = "bfloat16";    ///< master parameters and moments: bfloat16 or float32
  std::string gradient = "float32";  ///< sharded gradients: float32 or bfloat16
  std::string product = "auto";      ///< as fsdp.product_dtype: auto or fp8
  std::string attention = "auto";    ///< auto, cudnn, native
  bool deterministic = true;
  std::int64_t attention_workspace = -1;  ///< MiB, as run.attention_workspace; -1: auto
  std::int64_t logits_workspace = -1;     ///< MiB, as run.logits_workspace; -1: auto
  bool graph = true;                      ///< steps are captured and replayed, as run.cuda_graph = auto
  std::string tuning = "auto";            ///< as run.tuning: auto (products are chosen by timing), off
  std::string choices;  ///< file of products chosen before, to which new ones are added; empty: none

  // What is measured.
  int steps = 10;              ///< at most
  double seconds = 5;          ///< that timed steps may take; at least 3 are timed
  bool profile = true;         ///< time of each operation, in steps of their own
  bool products = true;        ///< the matrix products alone, and the device's limits
  std::int64_t square = 8192;  ///< side of the product that the limit is measured with

  std::string output;  ///< file to which the result is added as a line of JSON
  std::string beside;  ///< a log of llmq, to be added to the output as a row
  std::string table;   ///< such a file, to be printed as tables
};

/// Of Options::state and Options::gradient.
inline DType dtype_of_word(const std::string& word) {
  return word == "bfloat16" ? DType::bfloat16 : DType::float32;
}

/// False after --help. @throws UserError for an unknown option, word or size
bool parse(int argc, char** argv, Options& options);

}  // namespace llampi::bench
