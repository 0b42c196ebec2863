// SPDX-License-Identifier: Apache-2.0
#include "llampi/selfcheck/check.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "llampi/comm/agree.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/comm/threads.hpp"
#include "llampi/device/gpu.hpp"

#include "selfcheck/collectives_check.hpp"

namespace llampi::selfcheck {
namespace {

constexpr double kNotANumber = std::numeric_limits<double>::infinity();  // while it travels: NaN has no order

/// Adds the largest error of each tensor over the ranks.
void add(CheckResult& result, comm::World& world, const std::string& where,
         const std::vector<ComparedTensor>& compared) {
  std::vector<double> errors;
  for (const auto& tensor : compared) errors.push_back(std::isnan(tensor.error) ? kNotANumber : tensor.error);
  std::vector<double> largest = errors;
  world.max(std::span(largest));
  std::vector<std::int64_t> ranks;
  for (std::size_t i = 0; i < errors.size(); ++i)
    ranks.push_back(errors[i] == largest[i] ? world.rank() : -1);
  world.max(std::span(ranks));
  for (std::size_t i = 0; i < errors.size(); ++i) {
    result.tensors.push_back(
        {where, compared[i].name, largest[i], compared[i].allowed, static_cast<int>(ranks[i])});
  }
}

/// The kinds of pieces that all ranks computed. Where one did not, the same would be compared with itself.
void add(CheckResult& result, comm::World& world, const std::string& where,
         const std::vector<ComparedPieces>& compared) {
  std::map<std::string, std::vector<std::string>> left_out;  // kinds, by the reason
  for (const ComparedPieces& pieces : compared) {
    const auto whys = world.all_gather(pieces.why_none);
    const auto why = std::ranges::find_if(whys, [](const std::string& text) { return !text.empty(); });
    if (why == whys.end()) {
      add(result, world, where, pieces.tensors);
    } else {
      left_out[fmt::format("rank {} does not compute so: {}", why - whys.begin(), *why)].push_back(
          pieces.kind);
    }
  }
  for (const auto& [why, kinds] : left_out)
    result.left_out.push_back(fmt::format("{} ({}): {}", where, fmt::join(kinds, "; "), why));
}

/// What fails on one rank ends the check on all.
template <class Compare>
auto on_all(comm::World& world, const Compare& compare) {
  decltype(compare()) compared;
  comm::agree(world, [&] { compared = compare(); });
  return compared;
}

/// In what other families differ from a Llama, each with a sliding window.
struct OtherFamily {
  std::string name;
  const model::Architecture* architecture;
};
std::vector<OtherFamily> other_families() {
  std::vector<OtherFamily> families;
  for (const model::Architecture& architecture : model::architectures()) {
    if (architecture.qkv_bias)
      families.push_back({"biases of q, k and v and a sliding window", &architecture});
    if (architecture.qk_norms) families.push_back({"norms of heads and a sliding window", &architecture});
  }
  return families;
}

model::LoraConfig adapters_with_dropout() { return lora_check_config(8, 0.1); }

/// A comparison of two devices.
struct Case {
  std::string name;
  DeviceCheckOptions options;
};

/// Of the CPU with the reference.
std::vector<Case> cpu_cases() {
  std::vector<Case> cases = {{"CPU against the reference in float64", {}}};
  for (const auto& family : other_families()) {
    cases.push_back({fmt::format("CPU, {}, against the reference in float64", family.name),
                     {.architecture = family.architecture, .window = kCheckWindow}});
  }
  cases.push_back({"CPU with products in FP8 against the reference",
                   fp8_check_options(DType::float32, {.scales = model::Fp8Scales::tensor})});
  cases.push_back({"CPU with products in FP8 and scales of blocks against the reference",
                   fp8_check_options(DType::float32, {.scales = model::Fp8Scales::block})});
  cases.push_back(
      {"CPU, adapters with dropout, against the reference in float64", {.lora = adapters_with_dropout()}});
  for (Case& of_cpu : cases) of_cpu.options.judge_dtype = DType::float64;
  return cases;
}

/// Of the GPUs, one of each rank, with CPUs. Collective.
std::vector<Case> gpu_cases(comm::World& world, const device::GpuProperties& gpu) {
  std::vector<Case> cases;
  const auto add = [&](const std::string& what, const DeviceCheckOptions& options) {
    cases.push_back({fmt::format("GPU in {}, {}, against the CPU", to_string(options.dtype), what), options});
  };
  for (const DType dtype : {DType::float32, DType::bfloat16})
    add("adapters with dropout", {.dtype = dtype, .lora = adapters_with_dropout()});
  for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
    for (const std::int64_t head_dim : {64, 128})
      add(fmt::format("heads of {}", head_dim), {.dtype = dtype, .head_dim = head_dim});
  }
  for (const auto& family : other_families()) {
    add(family.name, {.dtype = DType::bfloat16, .architecture = family.architecture, .window = kCheckWindow});
  }
  // Ranks may have different GPUs, and a comparison is one of all.
  std::int64_t lacking[] = {!device::has_fp8_products(gpu.major, gpu.minor), !gpu.fp8_blocks};
  world.max(std::span(lacking));
  for (const auto scales : {model::Fp8Scales::tensor, model::Fp8Scales::block}) {
    if (lacking[0] != 0 || (scales == model::Fp8Scales::block && lacking[1] != 0)) continue;
    for (const DType gradient : {DType::float8_e5m2, DType::float8_e4m3fn}) {
      add(fmt::format("products in FP8 with gradients in {} and scales of each {}", to_string(gradient),
                      word_of(scales)),
          fp8_check_options(DType::bfloat16, {gradient, scales}));
    }
  }
  return cases;
}

}  // namespace

bool CheckResult::passed() const {
  return std::all_of(tensors.begin(), tensors.end(), [](const auto& tensor) { return tensor.passed(); });
}

CheckResult check(comm::World& world, comm::ComputeChoice choice, const Log& log) {
  choice.threads = comm::threads_per_rank(world, choice.threads);
  const comm::Compute compute = comm::open_compute(world, choice, log);
  CheckResult result;
  result.devices =
      world.all_gather(fmt::format("{}: {}", world.topology().host, compute.device().describe()));
  for (const Case& of_cpu : cpu_cases()) {
    add(result, world, of_cpu.name, on_all(world, [&] {
          return compare_devices(*compute.host, *device::make_reference_device(), of_cpu.options);
        }));
  }
  if (compute.on_gpu()) {
    for (const Case& of_gpu : gpu_cases(world, compute.gpu_properties)) {
      add(result, world, of_gpu.name,
          on_all(world, [&] { return compare_devices(*compute.gpu, *compute.host, of_gpu.options); }));
    }
    for (const std::int64_t head_dim : {64, 128}) {
      add(result, world, fmt::format("GPU in bfloat16, heads of {}, in pieces against the whole", head_dim),
          on_all(world, [&] {
            return compare_pieces(*compute.gpu,
                                  {.dtype = DType::bfloat16, .head_dim = head_dim, .seq_len = kPiecesSeqLen});
          }));
    }
  }
  add(result, world, compute.on_gpu() ? "NCCL" : "MPI", check_collectives(compute.world(), compute.device()));
  return result;
}

}  // namespace llampi::selfcheck
