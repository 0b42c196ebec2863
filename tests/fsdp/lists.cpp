#include "lists.hpp"

namespace llampi {

std::string ListCase::name() const {
  return fmt::format(
      "layers={} tied={} ranks={} {} micro_batches={} backward_prefetch={} forward_prefetch={} limit={} "
      "reshard_after_forward={}",
      layers, tied, ranks, strategy == Strategy::full_shard ? "full_shard" : "no_shard", micro_batches,
      static_cast<int>(backward_prefetch), forward_prefetch, limit, reshard_after_forward);
}

void PrintTo(const ListCase& options, std::ostream* out) { *out << options.name(); }

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
        cases.push_back({.layers = layers, .tied = tied, .ranks = 3, .micro_batches = micro_batches});
        cases.push_back({.layers = layers, .tied = tied, .ranks = 1, .micro_batches = micro_batches});
        cases.push_back(
            {.layers = layers, .tied = tied, .strategy = Strategy::no_shard, .micro_batches = micro_batches});
      }
    }
  }
  return cases;
}

PlanInput Lists::plan_input() const {
  return {.specs = specs,
          .units = units,
          .constants = constants,
          .batch = {2, 16},
          .precision = {},
          .ranks = options.ranks,
          .micro_batches = options.micro_batches,
          .vocabulary = 101};
}

Lists make_lists(const ListCase& options) {
  LlamaConfig config;
  config.vocab_size = 101;
  config.hidden_size = 24;
  config.intermediate_size = 40;
  config.layers = options.layers;
  config.query_heads = 3;
  config.key_value_heads = 1;
  config.head_dim = 8;
  config.max_position_embeddings = 64;
  config.tie_word_embeddings = options.tied;

  Lists lists;
  lists.model = make_llama(config);
  lists.options = options;
  const auto sizes = make_cpu_sizes(1);
  for (const auto& stage : lists.model->stages())
    lists.specs.push_back(stage->spec({2, 16}, DType::float32, *sizes));
  const int shards = options.strategy == Strategy::full_shard ? options.ranks : 1;
  lists.units = wrap_transformer(*lists.model, lists.specs, shards);
  lists.constants = lists.model->constants(16, DType::float32);
  ScheduleOptions schedule{.micro_batches = options.micro_batches,
                           .replicas = options.ranks / shards,
                           .reshard_after_forward = options.reshard_after_forward,
                           .backward_prefetch = options.backward_prefetch,
                           .forward_prefetch = options.forward_prefetch,
                           .limit_all_gathers = options.limit};
  lists.step = compile(lists.specs, lists.units, schedule);
  schedule.forward_only = true;
  schedule.micro_batches = 1;
  lists.evaluation = compile(lists.specs, lists.units, schedule);
  lists.unit_of = unit_of_parameter(lists.units, lists.model->parameters().size());
  return lists;
}

}  // namespace llampi
