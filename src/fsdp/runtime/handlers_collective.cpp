// SPDX-License-Identifier: Apache-2.0
// Between ranks: parameters are gathered, gradients reduced and their partial sums added.
#include "fsdp/runtime/handlers.hpp"
#include "llampi/comm/comm.hpp"

namespace llampi::fsdp {
namespace {

/// In place, the result replaces what it is of.
Accumulate accumulate_of(const Call& call) {
  const bool in_place = call[Slot::input].data == call[Slot::output].data;
  return call.access(Slot::output) == Access::both && !in_place ? Accumulate::yes : Accumulate::no;
}

/// What travels as it is: groups know no blocks.
Tensor as_words(Tensor tensor) {
  if (tensor.dtype != DType::int8_blocks) return tensor;
  return {tensor.data, DType::int32, 1, tensor.bytes() / size_of(DType::int32)};
}

}  // namespace

std::unique_ptr<comm::Work> all_reduce_values(const RankContext& rank, Call& call, Tensor values,
                                              comm::ReduceOp op) {
  call.announce();
  return rank.group_of(call.action)
      .all_reduce(values, values, op, Accumulate::no, call[Slot::workspace], call.action.stream);
}

void add_collectives(HandlerTable& handlers, const RankContext& rank) {
  handlers.add(Op::unshard, [&rank](Call& call) {
    call.announce();
    return rank.shards.all_gather(as_words(call[Slot::input]), as_words(call[Slot::output]),
                                  call.action.stream);
  });
  handlers.add(Op::reduce, [&rank](Call& call) {
    call.announce();
    return rank.shards.reduce_scatter(call[Slot::input], call[Slot::output], accumulate_of(call),
                                      call[Slot::workspace], call.action.stream);
  });
  handlers.add(
      Op::add, on_its_stream([&rank](Call& call) {
        rank.device.run(device::op::Add{.source = call[Slot::input], .destination = call[Slot::output]});
      }));
  handlers.add(Op::all_reduce, [&rank](Call& call) {
    call.announce();
    return rank.replicas.all_reduce(call[Slot::input], call[Slot::output], comm::ReduceOp::sum,
                                    accumulate_of(call), call[Slot::workspace], call.action.stream);
  });
  handlers.add(Op::reduce_scatter, [&rank](Call& call) {
    call.announce();
    return rank.replicas.reduce_scatter(call[Slot::input], call[Slot::output], accumulate_of(call),
                                        call[Slot::workspace], call.action.stream);
  });
  handlers.add(Op::all_gather, [&rank](Call& call) {
    call.announce();
    return rank.replicas.all_gather(call[Slot::input], call[Slot::output], call.action.stream);
  });
}

}  // namespace llampi::fsdp
