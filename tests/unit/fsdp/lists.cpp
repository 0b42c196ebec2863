// SPDX-License-Identifier: Apache-2.0
#include "unit/fsdp/lists.hpp"

#include <regex>

#include "llampi/device/device.hpp"
#include "llampi/model/llama.hpp"
#include "llampi/model/llama_config.hpp"
#include "llampi/model/model.hpp"

namespace llampi::test {

using namespace fsdp;

std::string ListCase::name() const {
  return fmt::format(
      "layers={} tied={} ranks={} {} micro_batches={} backward_prefetch={} forward_prefetch={} limit={} "
      "reshard_after_forward={} shards={} unsharded={} checkpointing={} mixed={} wrap={} offload={}{}{}{} "
      "short_gradient={} frozen={} on_gpus={} fp8={} layers_of_block={} fp8_scales={} sum_order={} state_over_replicas={} "
      "all_reduce_stream={} int8_base={}",
      layers, tied, ranks, to_string(strategy), micro_batches, static_cast<int>(backward_prefetch),
      forward_prefetch, limit, reshard_after_forward, shard_count(), unsharded,
      fsdp::to_string(checkpointing), mixed, to_string(wrap.policy), static_cast<int>(offload.optimizer),
      static_cast<int>(offload.params), static_cast<int>(offload.host_step),
      static_cast<int>(offload.residuals), short_gradient, frozen, on_gpus, fp8, layers_of_block,
      word_of(fp8_scales), word_of(sum_order), state_over_replicas, all_reduce_stream, int8_base);
}

void PrintTo(const ListCase& options, std::ostream* out) { *out << options.name(); }

namespace {

const std::vector<Offload> kOffloads = {{},
                                        {.optimizer = true},
                                        {.optimizer = true, .host_step = true},
                                        {.optimizer = true, .params = true},
                                        {.optimizer = true, .params = true, .host_step = true},
                                        {.residuals = true},
                                        {.optimizer = true, .params = true, .residuals = true}};

std::vector<bool> frozen_parameters(const model::Model& model) {
  const std::regex expression("embed_tokens|layers\\.0\\.|k_proj|q_proj|layernorm");
  std::vector<bool> frozen;
  for (const auto& p : model.parameters()) frozen.push_back(std::regex_search(p.name, expression));
  return frozen;
}

}  // namespace

std::vector<ListCase> list_cases() {
  std::vector<ListCase> cases;
  for (const int layers : {1, 3, 6}) {
    for (const bool tied : {false, true}) {
      for (const int micro_batches : {1, 3}) {
        for (const auto prefetch : {Prefetch::pre, Prefetch::post, Prefetch::none}) {
          for (const int limit : {1, 2, 3}) {
            for (const bool forward : {true, false}) {
              for (const bool reshard : {true, false}) {
                cases.push_back({layers, tied, 2, Strategy::full_shard, micro_batches, prefetch, forward,
                                 limit, reshard});
              }
            }
          }
        }
        for (const BlockCheckpointing& checkpointing :
             {BlockCheckpointing(), BlockCheckpointing(Checkpointing::full),
              BlockCheckpointing(Checkpointing::selective), BlockCheckpointing(Checkpointing::feed_forward),
              BlockCheckpointing(Checkpointing::full, 1, Checkpointing::none)}) {
          for (const int limit : {1, 2}) {
            for (const bool unsharded : {true, false}) {
              for (const int shards : {1, 2, 4}) {
                for (const bool mixed : {false, true}) {
                  cases.push_back({.layers = layers,
                                   .tied = tied,
                                   .ranks = 4,
                                   .micro_batches = micro_batches,
                                   .limit = limit,
                                   .shards = shards,
                                   .unsharded = unsharded,
                                   .checkpointing = checkpointing,
                                   .mixed = mixed});
                }
              }
            }
          }
        }
        const std::vector<WrapOptions> wraps = {
            {.policy = WrapPolicy::none},
            {.policy = WrapPolicy::size, .min_params = 1000},
            {.policy = WrapPolicy::modules, .modules = {"LlamaDecoderLayer", "LlamaAttention", "LlamaMLP"}},
            {.policy = WrapPolicy::modules, .modules = {"Linear"}}};
        for (const auto& wrap : wraps) {
          for (const int limit : {1, 2, 3}) {
            for (const auto checkpointing : {Checkpointing::none, Checkpointing::full}) {
              cases.push_back({.layers = layers,
                               .tied = tied,
                               .micro_batches = micro_batches,
                               .limit = limit,
                               .checkpointing = checkpointing,
                               .wrap = wrap});
            }
          }
        }
        for (const auto& offload : kOffloads) {
          for (const int ranks : {1, 2}) {
            for (const bool mixed : {false, true}) {
              for (const bool frozen : {false, true}) {
                for (const int limit : {1, 2}) {
                  cases.push_back({.layers = layers,
                                   .tied = tied,
                                   .ranks = ranks,
                                   .micro_batches = micro_batches,
                                   .limit = limit,
                                   .checkpointing = limit == 1 ? Checkpointing::full : Checkpointing::none,
                                   .mixed = mixed,
                                   .offload = offload,
                                   .frozen = frozen,
                                   .on_gpus = limit == 2});
                }
              }
            }
          }
        }
        for (const auto& wrap : wraps) {
          for (const auto& offload : kOffloads) {
            for (const bool mixed : {false, true}) {
              cases.push_back({.layers = layers,
                               .tied = tied,
                               .micro_batches = micro_batches,
                               .wrap = wrap,
                               .mixed = mixed,
                               .offload = offload});
            }
          }
        }
        for (const int ranks : {1, 2, 4}) {
          for (const int shards : {1, 2}) {
            if (shards > ranks) continue;
            for (const bool unsharded : {true, false}) {
              for (const bool on_gpus : {true, false}) {
                cases.push_back({.layers = layers,
                                 .tied = tied,
                                 .ranks = ranks,
                                 .micro_batches = micro_batches,
                                 .shards = shards,
                                 .unsharded = unsharded,
                                 .mixed = on_gpus,
                                 .short_gradient = true,
                                 .on_gpus = on_gpus});
              }
            }
          }
        }
        for (const auto& wrap : wraps) {
          cases.push_back(
              {.layers = layers, .tied = tied, .micro_batches = micro_batches, .wrap = wrap, .frozen = true});
        }
        auto fp8_wraps = wraps;
        fp8_wraps.push_back({});
        for (const auto& wrap : fp8_wraps) {
          for (const int shards : {1, 2}) {
            for (const bool on_gpus : {false, true}) {
              cases.push_back({.layers = layers,
                               .tied = tied,
                               .micro_batches = micro_batches,
                               .limit = on_gpus ? 2 : 1,
                               .reshard_after_forward = cases.size() % 3 != 0,
                               .shards = shards,
                               .checkpointing = shards == 1 ? Checkpointing::full : Checkpointing::none,
                               .wrap = wrap,
                               .mixed = on_gpus,
                               .offload = kOffloads[cases.size() % kOffloads.size()],
                               .short_gradient = on_gpus,
                               .frozen = true,
                               .on_gpus = on_gpus,
                               .int8_base = true});
            }
          }
        }
        for (const auto& wrap : fp8_wraps) {
          for (const int shards : {1, 2, 4}) {
            for (const bool on_gpus : {false, true}) {
              constexpr Checkpointing kTurns[] = {Checkpointing::none, Checkpointing::selective,
                                                  Checkpointing::full};
              const Checkpointing checkpointing = kTurns[cases.size() % std::size(kTurns)];
              cases.push_back(
                  {.layers = layers,
                   .tied = tied,
                   .ranks = 4,
                   .micro_batches = micro_batches,
                   .limit = on_gpus ? 2 : 1,
                   .reshard_after_forward = checkpointing != Checkpointing::selective,
                   .shards = shards,
                   .checkpointing = checkpointing,
                   .wrap = wrap,
                   .mixed = on_gpus,
                   .offload = {.optimizer = on_gpus && shards == 2},
                   .frozen = shards != 4,
                   .on_gpus = on_gpus,
                   .fp8 = true,
                   .fp8_scales = cases.size() % 4 == 0 ? model::Fp8Scales::block : model::Fp8Scales::tensor});
            }
          }
        }
        for (const int ranks : {1, 2, 4}) {
          for (int shards = 1; shards <= ranks; shards *= 2) {
            for (const bool unsharded : {false, true}) {
              for (const int accumulated : {micro_batches, 4 * micro_batches}) {
                cases.push_back({.layers = layers,
                                 .tied = tied,
                                 .ranks = ranks,
                                 .micro_batches = accumulated,
                                 .limit = shards,
                                 .shards = shards,
                                 .unsharded = unsharded,
                                 .wrap = wraps[cases.size() % wraps.size()],
                                 .offload = kOffloads[cases.size() % kOffloads.size()],
                                 .frozen = cases.size() % 3 == 0,
                                 .on_gpus = ranks == 1,
                                 .sum_order = SumOrder::tree});
              }
            }
          }
        }
        for (const auto& offload : kOffloads) {
          if (offload.params || offload.residuals) continue;
          for (const int shards : {1, 2}) {
            for (const bool unsharded : {false, true}) {
              for (const auto order : {SumOrder::any, SumOrder::tree}) {
                const bool in_tree = order == SumOrder::tree;
                cases.push_back({.layers = layers,
                                 .tied = tied,
                                 .ranks = 4,
                                 .micro_batches = in_tree ? 4 * micro_batches : micro_batches,
                                 .shards = shards,
                                 .unsharded = unsharded,
                                 .wrap = wraps[cases.size() % wraps.size()],
                                 .mixed = !in_tree && cases.size() % 2 == 0,
                                 .offload = offload,
                                 .frozen = cases.size() % 3 == 0,
                                 .on_gpus = shards == 1,
                                 .sum_order = order,
                                 .state_over_replicas = true});
              }
            }
          }
        }
        for (const BlockCheckpointing& checkpointing :
             {BlockCheckpointing(Checkpointing::full), BlockCheckpointing(Checkpointing::feed_forward),
              BlockCheckpointing(Checkpointing::offload),
              BlockCheckpointing(Checkpointing::offload, 2, Checkpointing::feed_forward)}) {
          cases.push_back({.layers = layers,
                           .tied = tied,
                           .micro_batches = micro_batches,
                           .checkpointing = checkpointing,
                           .offload = {.residuals = true},
                           .layers_of_block = 4});
        }
        for (const bool frozen : {false, true}) {
          for (const bool on_gpus : {false, true}) {
            cases.push_back({.layers = layers,
                             .tied = tied,
                             .micro_batches = micro_batches,
                             .checkpointing = {Checkpointing::offload, 3, Checkpointing::selective},
                             .offload = {.residuals = on_gpus},
                             .frozen = frozen,
                             .on_gpus = on_gpus,
                             .fp8 = on_gpus});
          }
        }
        for (const auto order : {SumOrder::any, SumOrder::tree}) {
          for (const bool unsharded : {false, true}) {
            for (const bool on_gpus : {false, true}) {
              if (layers != 3) continue;
              cases.push_back(
                  {.layers = layers,
                   .tied = tied,
                   .ranks = 4,
                   .micro_batches = micro_batches == 3 && order == SumOrder::tree ? 4 : micro_batches,
                   .shards = 2,
                   .unsharded = unsharded,
                   .on_gpus = on_gpus,
                   .sum_order = order,
                   .all_reduce_stream = true});
            }
          }
        }
        cases.push_back({.layers = layers, .tied = tied, .ranks = 3, .micro_batches = micro_batches});
        cases.push_back({.layers = layers, .tied = tied, .ranks = 1, .micro_batches = micro_batches});
        cases.push_back(
            {.layers = layers, .tied = tied, .strategy = Strategy::no_shard, .micro_batches = micro_batches});
      }
    }
  }
  return cases;
}

Lists make_lists(const ListCase& options, const std::function<void(ProgramSpec&)>& change) {
  model::LlamaConfig config;
  config.vocab_size = 101;
  config.hidden_size = 24;
  config.intermediate_size = 40;
  config.layers = options.layers;
  config.query_heads = 3;
  config.key_value_heads = 1;
  config.head_dim = 8;
  config.max_position_embeddings = 64;
  if (options.fp8 || options.int8_base) {
    config.hidden_size = 32;
    config.intermediate_size = 48;
    config.query_heads = 4;
    config.key_value_heads = 2;
  }
  model::BatchShape batch{2, 16};
  if (options.fp8_scales == model::Fp8Scales::block) {
    config.hidden_size = 128;
    config.intermediate_size = 256;
    config.query_heads = 6;
    config.key_value_heads = 1;
    config.head_dim = 64;
    batch.seq_len = 64;
  }
  config.tie_word_embeddings = options.tied;

  Lists lists;
  const model::Fp8Recipe recipe{.scales = options.fp8_scales};
  lists.model = model::make_llama(config, options.fp8 ? std::optional(recipe) : std::nullopt);
  lists.options = options;
  const auto sizes = device::make_cpu_sizes(1);
  for (const auto& layer : lists.model->layers())
    lists.specs.push_back(layer->spec(batch, DType::float32, *sizes));
  const int shards = options.shard_count();
  lists.units = wrap(*lists.model, lists.specs, options.wrap, shards,
                     {.frozen = options.frozen ? frozen_parameters(*lists.model) : std::vector<bool>(),
                      .int8_base = options.int8_base,
                      .state_parts = options.state_parts()});
  lists.constants = lists.model->constants(batch.seq_len, DType::float32);
  ProgramSpec spec{.parameters = lists.model->parameters(),
                   .specs = lists.specs,
                   .units = lists.units,
                   .constants = lists.constants,
                   .options = {.batch = batch,
                               .micro_batches = options.micro_batches,
                               .backward_prefetch = options.backward_prefetch,
                               .forward_prefetch = options.forward_prefetch,
                               .limit_all_gathers = options.limit,
                               .accumulate_unsharded = options.unsharded,
                               .sum_order = options.sum_order,
                               .all_reduce_stream = options.all_reduce_stream,
                               .checkpointing = options.checkpointing,
                               .precision = options.precision(),
                               .offload = options.offload},
                   .vocabulary = 101,
                   .reshard_after_forward = options.reshard_after_forward,
                   .shards = shards,
                   .replicas = options.ranks / shards,
                   .backend = options.on_gpus ? comm::Backend::nccl : comm::Backend::mpi,
                   .input_buffers = options.micro_batches};
  for (int s = 0; s < static_cast<int>(lists.specs.size()); ++s) {
    const bool block = s > 0 && !lists.last_layer(s);
    spec.blocks.push_back(block ? (s - 1) / options.layers_of_block : -1);
  }
  if (change) change(spec);
  lists.step = build(spec);
  spec.forward_only = true;
  spec.options.micro_batches = 1;
  lists.evaluation = build(spec);
  lists.unit_of = unit_of_parameter(lists.units, lists.model->parameters().size());
  return lists;
}

Lists make_placed_lists(const ListCase& options) {
  Lists lists = make_lists(options);
  place(lists.step);
  place(lists.evaluation);
  return lists;
}

}  // namespace llampi::test
