// SPDX-License-Identifier: Apache-2.0
#include "llampi/selfcheck/gpu_check.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include "llampi/comm/agree.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/comm/common_failure.hpp"
#include "selfcheck/device_check.hpp"

namespace llampi::selfcheck {

void check_gpus(comm::World& world, const comm::Compute& compute, const GpuCheckOptions& options,
                const Log& log) {
  if (!compute.on_gpu()) return;
  comm::agree(world, [&] {
    if (options.model != nullptr)
      device::require_gpu_kernels(options.model->head_dim, options.model->hidden_size, options.dtype);
  });
  DeviceCheckOptions small = options.fp8 ? fp8_check_options(options.dtype, *options.fp8)
                                         : DeviceCheckOptions{.dtype = options.dtype};
  small.tf32 = options.tf32;
  std::string more;
  if (options.model != nullptr) {
    small.head_dim = options.model->head_dim;
    small.architecture = &options.model->family();
    if (!options.model->windows.empty()) small.window = kCheckWindow;
    more = fmt::format("{}{}{}", small.architecture->qkv_bias ? ", biases of q, k and v" : "",
                       small.architecture->qk_norms ? ", norms of heads" : "",
                       small.window > 0 ? ", a sliding window" : "");
  }
  if (options.lora) {
    small.lora = lora_check_config(options.lora->rank, options.lora->dropout);
    more += ", adapters";
  }
  const bool in_blocks = options.fp8 && options.fp8->scales == model::Fp8Scales::block;
  const std::string computed =
      fmt::format("{}{}{}{}", to_string(options.dtype), options.fp8 ? " with products in FP8" : "",
                  in_blocks ? " and scales of blocks" : "", more);
  std::string failure;
  std::vector<ComparedTensor> compared;
  try {
    compared = compare_devices(*compute.gpu, *compute.host, small);
    failure = failure_of(compared);
  } catch (const std::exception& error) {
    failure = error.what();
  }
  const auto failures = world.all_gather(failure);
  const auto first = std::find_if(failures.begin(), failures.end(), [](const auto& f) { return !f.empty(); });
  if (first == failures.end()) {
    log.info("GPU self-check passed: {} tensors match the CPU ({})", compared.size(), computed);
    return;
  }
  const int rank = static_cast<int>(first - failures.begin());
  const auto hosts = world.all_gather(fmt::format(
      "{}, {} {}", world.topology().host, compute.gpu_properties.name, compute.gpu_properties.bus_id));
  throw comm::CommonError(fmt::format(
      "the GPU of rank {} ({}) failed its self-check in {}: {}; leave its node out, as the GPU may be faulty; if others fail "
      "too, use run.device = cpu, and please report it with what llampi check and llampi --version print",
      rank, hosts[static_cast<std::size_t>(rank)], computed, *first));
}

}  // namespace llampi::selfcheck
