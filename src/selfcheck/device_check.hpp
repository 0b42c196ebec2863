// SPDX-License-Identifier: Apache-2.0
// Whether a device computes what another one does: one step of a small Llama, part by part, on both.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "llampi/device/device.hpp"
#include "llampi/model/fp8_recipe.hpp"
#include "llampi/model/llama_config.hpp"
#include "llampi/model/lora.hpp"

namespace llampi::selfcheck {

/// Shorter than documents of the check, and no multiple of a tile.
inline constexpr std::int64_t kCheckWindow = 50;

struct DeviceCheckOptions {
  DType dtype = DType::float32;  ///< what the device is to compute in
  bool tf32 = false;             ///< float32 products have 10 bits of mantissa
  std::int64_t head_dim = 128;   ///< attention kernels differ by it
  std::int64_t sequences = 2;    ///< of the batch
  /// More than a block of rows, no multiple of one, and long enough for documents of two classes of lengths:
  /// what a launch for one class writes must leave the others alone.
  std::int64_t seq_len = 140;
  const model::Architecture* architecture = nullptr;  ///< null: a Llama
  std::int64_t window = 0;                            ///< of attention; 0: none
  DType judge_dtype = DType::float32;                 ///< what the judge computes in
  /// Products in 8 bits, of a batch whose tokens are a multiple of model::fp8_multiple().
  std::optional<model::Fp8Recipe> fp8 = {};
  /// Adapters of the linear maps, which are trained as well. What a base in 8 bits is cast to is compared then, too.
  std::optional<model::LoraConfig> lora = {};
};

/// What both devices made of the same operands.
struct ComparedTensor {
  std::string name;    ///< "qkv of model.layers.0.self_attn", "gradient of lm_head.weight"
  double error = 0;    ///< ||device - judge|| / ||judge||; NaN where one is not a number
  double allowed = 0;  ///< what rounding can explain

  bool passed() const { return error <= allowed; }
};

/// Of products in 8 bits, with sequences like the default whose tokens they can sum over.
DeviceCheckOptions fp8_check_options(DType dtype, const model::Fp8Recipe& recipe);

/// Adapters of all linear maps, whose part of a product is half as large as the product: larger ones would lead to scores of
/// attention that are far apart, which enlarges what rounding does.
model::LoraConfig lora_check_config(std::int64_t rank, double dropout);

/// The error that rounding can explain of any tensor of a layer.
double rounding_explains(DType dtype, bool tf32);
/// The same where linear maps have adapters.
double adapters_rounding_explains(DType dtype, bool tf32);
/// The same where products are in 8 bits.
double fp8_rounding_explains(DType dtype);

/// Forward and backward pass of every layer of a Llama (embedding, attention, MLP, head with loss), layer by
/// layer with the judge's results as operands, then gradient norm and AdamW. The inputs are random numbers of
/// Philox, the same in every run, rounded to `dtype`. Allocates its memory, some tens of MiB and the device's
/// workspace, and gives it back; the device must be given another shared workspace afterwards.
/// @throws Error if a device does
std::vector<ComparedTensor> compare_devices(device::Device& device, device::Device& judge,
                                            const DeviceCheckOptions& options);

/// Of compare_pieces(): several tiles of attention, the last of which is not full, and documents of two classes of lengths.
inline constexpr std::int64_t kPiecesSeqLen = 300;

/// Gradients of an attention that the device computed in some kind of pieces, against those that it computed as a whole.
struct ComparedPieces {
  std::string kind;                          ///< "documents by heads"
  std::vector<ComparedTensor> tensors = {};  ///< which must have the same bits
  std::string why_none = {};                 ///< the device's words, where it does not compute in such pieces
};

/// Sequences and packed documents, each one by one and by heads: always these four, in this order.
/// @param options.seq_len with documents of two classes of lengths
std::vector<ComparedPieces> compare_pieces(device::Device& device, const DeviceCheckOptions& options);

/// "gradient of lm_head.weight: relative error 0.31, and rounding explains 0.032 (so do 2 more of 40
/// tensors)"; empty if all passed.
std::string failure_of(const std::vector<ComparedTensor>& compared);

}  // namespace llampi::selfcheck
