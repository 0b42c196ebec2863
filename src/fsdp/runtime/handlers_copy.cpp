// SPDX-License-Identifier: Apache-2.0
// Between host memory and the device: as many inputs as outputs, each to its own.
#include "fsdp/runtime/handlers.hpp"
#include "llampi/comm/comm.hpp"

namespace llampi::fsdp {
namespace {

void upload(const RankContext& rank, const Call& call) {
  const auto from = call.all(Slot::input), to = call.all(Slot::output);
  if (call.action.payload == CopyPayload::inputs) {  // wherever the caller has them
    const auto& placed = call.run.micro_batches[static_cast<std::size_t>(call.action.micro_batch)];
    rank.device.upload(to.front(), placed.values.data(), call.action.stream);
    return;
  }
  for (std::size_t k = 0; k < from.size(); ++k) rank.device.upload(to[k], from[k].data, call.action.stream);
}

void download(const RankContext& rank, const Call& call) {
  const auto from = call.all(Slot::input), to = call.all(Slot::output);
  for (std::size_t k = 0; k < from.size(); ++k) rank.device.download(to[k].data, from[k], call.action.stream);
}

}  // namespace

void add_copies(HandlerTable& handlers, const RankContext& rank) {
  handlers.add(Op::h2d, on_its_stream([&rank](Call& call) { upload(rank, call); }));
  handlers.add(Op::d2h, on_its_stream([&rank](Call& call) { download(rank, call); }));
}

}  // namespace llampi::fsdp
