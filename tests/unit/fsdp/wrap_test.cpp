// SPDX-License-Identifier: Apache-2.0
#include "llampi/fsdp/wrap.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "llampi/core/error.hpp"
#include "llampi/model/llama.hpp"
#include "llampi/model/llama_config.hpp"
#include "unit/fsdp/lists.hpp"
#include "unit/fsdp/shapes.hpp"

namespace llampi::test {
namespace {

using namespace fsdp;

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using Json = nlohmann::json;
using Names = std::vector<std::string>;

/// A model that is nothing but a tree; its one layer uses everything.
class Tree final : public model::Model {
 public:
  explicit Tree(const Json& tree) {
    for (const auto& m : tree.at("modules")) modules_.push_back({m[0], m[1], m[2]});
    for (const auto& p : tree.at("parameters")) add(p[0], p[1], p[2]);
  }
  const std::vector<model::Module>& modules() const override { return modules_; }
  const std::vector<model::Parameter>& parameters() const override { return parameters_; }
  const std::vector<std::unique_ptr<model::Layer>>& layers() const override { return layers_; }
  std::vector<model::BufferSpec> constants(std::int64_t, DType) const override { return {}; }
  void fill_constant(int, const model::BufferSpec&, void*) const override {}
  std::string block_type() const override { return "Block"; }
  std::int64_t vocabulary() const override { return 0; }

 private:
  void add(std::string name, std::vector<std::int64_t> shape, int module) {
    model::Parameter parameter;
    parameter.name = std::move(name);
    parameter.shape = std::move(shape);
    parameter.module = module;
    parameters_.push_back(std::move(parameter));
  }
  std::vector<model::Module> modules_;
  std::vector<model::Parameter> parameters_;
  std::vector<std::unique_ptr<model::Layer>> layers_;
};

std::vector<model::LayerSpec> specs_of(const model::Model& model) {
  const auto sizes = device::make_cpu_sizes(1);
  std::vector<model::LayerSpec> specs;
  for (const auto& layer : model.layers()) specs.push_back(layer->spec({2, 16}, DType::float32, *sizes));
  if (!specs.empty()) return specs;
  specs.emplace_back();
  for (int p = 0; p < static_cast<int>(model.parameters().size()); ++p)
    specs.back().parameters.push_back({.parameter = p});
  return specs;
}

WrapOptions by_size(std::int64_t min_params) {
  return {.policy = WrapPolicy::size, .min_params = min_params};
}
WrapOptions by_modules(Names modules) {
  return {.policy = WrapPolicy::modules, .modules = std::move(modules)};
}
const WrapOptions kTransformer{.policy = WrapPolicy::transformer};
const WrapOptions kNone{.policy = WrapPolicy::none};

Names names(const std::vector<Unit>& units) {
  Names result;
  for (const auto& unit : units) result.push_back(unit.name);
  return result;
}

/// Names of the parameters of the unit `name`; empty if there is none.
Names members(const model::Model& model, const std::vector<Unit>& units, const std::string& name) {
  Names result;
  for (const auto& unit : units) {
    if (unit.name != name) continue;
    for (const auto& p : unit.parameters) result.push_back(model.parameters()[p.parameter].name);
  }
  return result;
}

struct Wrapped {
  std::unique_ptr<model::Model> model;
  std::vector<Unit> units;

  Names names() const { return test::names(units); }
  Names members(const std::string& unit) const { return test::members(*model, units, unit); }
};

Wrapped wrap_small(const WrapOptions& options, int layers = 2, bool tied = false, int shards = 2) {
  auto lists = make_lists({.layers = layers, .tied = tied});
  auto units = wrap(*lists.model, lists.specs, options, shards);
  return {std::move(lists.model), std::move(units)};
}

// What every policy promises.

struct Policy {
  std::string name;
  WrapOptions options;
};

std::vector<Policy> policies() {
  std::vector<Policy> all = {{"transformer", kTransformer}, {"none", kNone}};
  for (const std::int64_t n : {0, 1, 25, 193, 577, 961, 1537, 2425, 2881, 4465, 13417, 1'000'000'000})
    all.push_back({fmt::format("size {}", n), by_size(n)});
  const std::vector<Names> lists = {{"LlamaDecoderLayer"},
                                    {"LlamaAttention", "LlamaMLP"},
                                    {"LlamaDecoderLayer", "LlamaAttention", "LlamaMLP"},
                                    {"Linear"},
                                    {"Embedding", "lm_head"},
                                    {"LlamaRMSNorm"},
                                    {"(k|up)_proj"},
                                    {"layers\\.\\d*[02468]\\."}};
  for (const auto& list : lists)
    all.push_back({fmt::format("modules {}", fmt::join(list, " ")), by_modules(list)});
  return all;
}

void expect_each_parameter_once(const model::Model& model, const std::vector<Unit>& units) {
  std::vector<int> count(model.parameters().size());
  for (const auto& unit : units) {
    EXPECT_FALSE(unit.parameters.empty()) << unit.name;
    for (const auto& p : unit.parameters) ++count[p.parameter];
  }
  for (std::size_t p = 0; p < count.size(); ++p) EXPECT_EQ(count[p], 1) << model.parameters()[p].name;
}

void expect_groups_adjacent(const model::Model& model, const std::vector<Unit>& units) {
  for (const auto& unit : units) {
    for (std::size_t i = 0; i < unit.parameters.size(); ++i) {
      const auto& p = unit.parameters[i];
      const bool joins = model.parameters()[p.parameter].fused_with_previous;
      if (i == 0) {
        EXPECT_FALSE(joins) << unit.name << " begins with " << model.parameters()[p.parameter].name;
        continue;
      }
      const auto& before = unit.parameters[i - 1];
      EXPECT_GT(p.parameter, before.parameter) << unit.name;
      if (!joins) continue;
      EXPECT_EQ(before.parameter + 1, p.parameter) << unit.name;
      EXPECT_EQ(before.offset + before.elements, p.offset) << unit.name;
    }
  }
}

void expect_order_of_first_use(const std::vector<model::LayerSpec>& specs, const std::vector<Unit>& units,
                               std::size_t parameters) {
  const auto unit_of = unit_of_parameter(units, parameters);
  std::vector<int> met;
  for (const auto& spec : specs) {
    for (const auto& use : spec.parameters) {
      const int unit = unit_of[use.parameter];
      if (std::find(met.begin(), met.end(), unit) == met.end()) met.push_back(unit);
    }
  }
  for (int u = 0; u < static_cast<int>(met.size()); ++u) EXPECT_EQ(met[u], u);
  EXPECT_EQ(met.size(), units.size());
}

void expect_promises(const model::Model& model, const std::vector<Unit>& units, int shards) {
  expect_each_parameter_once(model, units);
  expect_groups_adjacent(model, units);
  expect_order_of_first_use(specs_of(model), units, model.parameters().size());
  auto unique = names(units);
  std::sort(unique.begin(), unique.end());
  EXPECT_EQ(std::adjacent_find(unique.begin(), unique.end()), unique.end()) << "a name twice";
  for (const auto& unit : units) EXPECT_EQ(unit.shards, shards);
}

TEST(Wrap, EveryPolicyKeepsItsPromisesOnSmallModels) {
  for (const auto& policy : policies()) {
    for (const int layers : {1, 3}) {
      for (const bool tied : {false, true}) {
        for (const int shards : {1, 3}) {
          SCOPED_TRACE(fmt::format("{}, {} layers, tied {}, {} shards", policy.name, layers, tied, shards));
          const auto wrapped = wrap_small(policy.options, layers, tied, shards);
          expect_promises(*wrapped.model, wrapped.units, shards);
        }
      }
    }
  }
}

TEST(Wrap, EveryPolicyKeepsItsPromisesOnThe8BShape) {
  const auto model = model::make_llama(shape_8b());
  const auto specs = specs_of(*model);
  auto all = policies();
  all.push_back({"size 100000000", WrapOptions{.policy = WrapPolicy::size}});
  for (const auto& policy : all) {
    SCOPED_TRACE(policy.name);
    expect_promises(*model, wrap(*model, specs, policy.options, 8), 8);
  }
}

// transformer

TEST(WrapTransformer, OneUnitPerBlockAndOnePerSide) {
  const auto lists = make_lists({.layers = 2});
  ASSERT_EQ(lists.units.size(), 4U);
  EXPECT_EQ(lists.units[0].name, "model.embed_tokens");
  EXPECT_EQ(lists.units[1].name, "model.layers.0");
  EXPECT_EQ(lists.units[2].name, "model.layers.1");
  EXPECT_EQ(lists.units[1].parameters.size(), 9U);
  EXPECT_EQ(lists.units[3].parameters.size(), 2U) << "final norm and head";
}

TEST(WrapTransformer, TiedHeadSharesTheUnitOfTheEmbedding) {
  const auto lists = make_lists({.layers = 2, .tied = true});
  ASSERT_EQ(lists.units.size(), 3U);
  EXPECT_EQ(lists.units[0].parameters.size(), 2U) << "embedding and final norm";
}

TEST(WrapTransformer, EveryParameterIsInExactlyOneUnit) {
  for (const bool tied : {false, true}) {
    const auto lists = make_lists({.layers = 3, .tied = tied});
    std::vector<int> count(lists.model->parameters().size());
    for (const auto& unit : lists.units) {
      for (const auto& p : unit.parameters) ++count[static_cast<std::size_t>(p.parameter)];
    }
    for (const int c : count) EXPECT_EQ(c, 1);
  }
}

TEST(WrapTransformer, NamesTheSidesAfterTheirFirstParameter) {
  EXPECT_THAT(wrap_small(kTransformer).names(),
              ElementsAre("model.embed_tokens", "model.layers.0", "model.layers.1", "model.norm"));
  EXPECT_THAT(wrap_small(kTransformer, 2, true).names(),
              ElementsAre("model.embed_tokens", "model.layers.0", "model.layers.1"));
}

TEST(WrapTransformer, AModelWithoutBlocksIsOneUnit) {
  const Tree tree(Json::parse(
      R"({"modules": [["", "Net", -1], ["a", "Linear", 0]], "parameters": [["a.weight", [3], 1]]})"));
  const auto units = wrap(tree, specs_of(tree), kTransformer, 2);
  EXPECT_THAT(names(units), ElementsAre("a"));
}

TEST(WrapTransformer, AParameterUsedOnBothSidesDrawsAllOfTheRootTogether) {
  const Tree tree(Json::parse(R"({"modules": [["", "Net", -1], ["layer", "Block", 0]],
      "parameters": [["early", [3], 0], ["shared", [3], 0], ["layer.w", [3], 1], ["late", [3], 0]]})"));
  const auto specs_using = [](const std::vector<std::vector<int>>& layers) {
    std::vector<model::LayerSpec> specs(layers.size());
    for (std::size_t s = 0; s < layers.size(); ++s) {
      for (const int p : layers[s]) specs[s].parameters.push_back({.parameter = p});
    }
    return specs;
  };
  const auto tied = wrap(tree, specs_using({{0, 1}, {2}, {3, 1}}), kTransformer, 2);
  EXPECT_THAT(names(tied), ElementsAre("root", "layer"));
  EXPECT_THAT(members(tree, tied, "root"), ElementsAre("early", "shared", "late"));
  EXPECT_EQ(wrap(tree, specs_using({{0, 1}, {2}, {3}}), kTransformer, 2).size(), 3U);
}

// size

TEST(WrapSize, PyTorchsDefaultOnThe8BShapeWrapsTheMlps) {
  const auto model = model::make_llama(shape_8b());
  const auto units = wrap(*model, specs_of(*model), {.policy = WrapPolicy::size}, 8);
  ASSERT_EQ(units.size(), 35U) << "an MLP has 176 million elements, an attention 42 million";
  EXPECT_EQ(units[0].name, "model.embed_tokens");
  EXPECT_EQ(units[1].name, "model") << "all attention parts and norms";
  EXPECT_EQ(units[1].parameters.size(), 32U * 6 + 1);
  EXPECT_EQ(units[2].name, "model.layers.0.mlp");
  EXPECT_EQ(units[2].parameters.size(), 3U);
  EXPECT_EQ(units[34].name, "lm_head");
}

TEST(WrapSize, TheThresholdItselfIsEnough) {
  const std::int64_t block =
      4464;  // of lists.cpp: 4 x 24 x 24 with one of three key and value heads, 3 x 24 x 40, norms
  EXPECT_THAT(wrap_small(by_size(block)).names(), Contains("model.layers.0"));
  EXPECT_THAT(wrap_small(by_size(block + 1)).names(), ElementsAre("model", "root"));
}

TEST(WrapSize, AThresholdAboveTheModelGivesTheRootAlone) {
  EXPECT_THAT(wrap_small(by_size(1'000'000)).names(), ElementsAre("root"));
}

// modules

TEST(WrapModules, NestedUnitsLeaveTheBlockItsNorms) {
  const auto wrapped = wrap_small(by_modules({"LlamaDecoderLayer", "LlamaAttention", "LlamaMLP"}));
  EXPECT_THAT(wrapped.names(),
              ElementsAre("root", "model.layers.0", "model.layers.0.self_attn", "model.layers.0.mlp",
                          "model.layers.1", "model.layers.1.self_attn", "model.layers.1.mlp"));
  EXPECT_THAT(wrapped.members("root"),
              ElementsAre("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"));
  EXPECT_THAT(
      wrapped.members("model.layers.1"),
      ElementsAre("model.layers.1.input_layernorm.weight", "model.layers.1.post_attention_layernorm.weight"));
  EXPECT_THAT(
      wrapped.members("model.layers.1.self_attn"),
      ElementsAre("model.layers.1.self_attn.q_proj.weight", "model.layers.1.self_attn.k_proj.weight",
                  "model.layers.1.self_attn.v_proj.weight", "model.layers.1.self_attn.o_proj.weight"));
}

TEST(WrapModules, PatternsAreSearchedInNames) {
  const auto mlps = wrap_small(by_modules({"layers\\.\\d+\\.mlp$"}));
  EXPECT_THAT(mlps.names(), ElementsAre("root", "model.layers.0.mlp", "model.layers.1.mlp"));
  const auto second = wrap_small(by_modules({"^model\\.layers\\.1$", "Embedding"}));
  EXPECT_THAT(second.names(), ElementsAre("model.embed_tokens", "root", "model.layers.1"));
}

TEST(WrapModules, ProjectionsThatAreOneMatrixGoToTheUnitOfTheFirst) {
  const auto each = wrap_small(by_modules({"Linear"}), 1);
  const std::string attention = "model.layers.0.self_attn.", mlp = "model.layers.0.mlp.";
  EXPECT_THAT(each.names(), ElementsAre("root", attention + "q_proj", attention + "o_proj", mlp + "gate_proj",
                                        mlp + "down_proj", "lm_head"));
  EXPECT_THAT(
      each.members(attention + "q_proj"),
      ElementsAre(attention + "q_proj.weight", attention + "k_proj.weight", attention + "v_proj.weight"));
  EXPECT_THAT(each.members(mlp + "gate_proj"), ElementsAre(mlp + "gate_proj.weight", mlp + "up_proj.weight"));

  const auto later = wrap_small(by_modules({"[kv]_proj"}), 1);
  EXPECT_THAT(later.names(), ElementsAre("root")) << "q is in the root's unit, so k and v are as well";
}

TEST(WrapModules, TiedHeadHasNoUnitOfItsOwn) {
  EXPECT_THAT(wrap_small(by_modules({"lm_head", "LlamaDecoderLayer"}), 1, true).names(),
              ElementsAre("root", "model.layers.0"));
  EXPECT_THAT(wrap_small(by_modules({"lm_head", "Embedding"}), 1, true).names(),
              ElementsAre("model.embed_tokens", "root"));
}

TEST(WrapModules, TheWholeModelByNameIsTheRoot) {
  EXPECT_THAT(wrap_small(by_modules({"LlamaForCausalLM"})).names(), ElementsAre("root"));
}

std::string message_of(const WrapOptions& options) {
  try {
    wrap_small(options);
  } catch (const UserError& error) {
    return error.what();
  }
  return "no UserError";
}

TEST(Wrap, MistakesAreAnsweredWithWhatIsKnown) {
  const auto unknown = message_of(by_modules({"LlamaMLP", "LlamaMlp"}));
  EXPECT_THAT(unknown, HasSubstr("'LlamaMlp' of wrap.modules"));
  EXPECT_THAT(unknown, HasSubstr("LlamaDecoderLayer, LlamaRMSNorm, LlamaAttention, Linear, LlamaMLP"));
  EXPECT_THAT(message_of(by_modules({})), HasSubstr("needs class names"));
  EXPECT_THAT(message_of(by_modules({"LlamaMLP", ""})), HasSubstr("empty entry"));
  EXPECT_THAT(message_of(by_modules({"layers\\.(0"})), HasSubstr("not a regular expression"));
  EXPECT_THAT(message_of(by_size(-1)), HasSubstr("wrap.min_params = -1 is negative"));
}

// none

TEST(WrapNone, IsOneUnitWithEverything) {
  for (const bool tied : {false, true}) {
    const auto wrapped = wrap_small(kNone, 3, tied);
    EXPECT_THAT(wrapped.names(), ElementsAre("root"));
    EXPECT_EQ(wrapped.units[0].parameters.size(), wrapped.model->parameters().size());
  }
}

// What PyTorch chooses (make_wrap_fixtures.py).

using Elements = std::map<std::string, std::int64_t>;  // per unit

/// The name of the unit of each parameter if PyTorch's wrapped modules are taken as they are: the longest one
/// that contains the parameter's name.
Names owners(const model::Model& model, const Json& wrapped) {
  Names result;
  for (const auto& parameter : model.parameters()) {
    std::string owner;
    for (const auto& unit : wrapped) {
      const auto name = unit[0].get<std::string>();
      if (parameter.name.starts_with(name + ".") && name.size() > owner.size()) owner = name;
    }
    result.push_back(owner);
  }
  return result;
}

Elements sum(const model::Model& model, const Names& owner) {
  Elements result;
  for (std::size_t p = 0; p < owner.size(); ++p)
    result[owner[p].empty() ? "root" : owner[p]] += model.parameters()[p].elements();
  return result;
}

Elements as_in_pytorch(const Json& units) {
  Elements result;
  for (const auto& unit : units) {
    const auto name = unit[0].get<std::string>();
    if (unit[1] != 0) result[name.empty() ? "root" : name] = unit[1];
  }
  return result;
}

TEST(WrapAgainstPyTorch, ChoosesTheSameModules) {
  std::ifstream file(LLAMPI_TEST_DATA "/unit/fsdp/wrap_fixtures.json");
  const auto fixtures = Json::parse(file);
  std::map<std::string, int> cases;
  for (const auto& fixture : fixtures.at("cases")) {
    SCOPED_TRACE(fixture.dump().substr(0, 600));
    std::unique_ptr<model::Model> model;
    if (fixture.contains("tree")) {
      model = std::make_unique<Tree>(fixture["tree"]);
    } else {
      model = model::make_llama(model::LlamaConfig::parse(fixture.at("config").dump(), "fixture"));
    }
    const auto policy = fixture.at("policy").get<std::string>();
    ++cases[fixture.contains("tree") ? "tree" : policy];
    const auto options =
        policy == "size" ? by_size(fixture.at("min_params")) : by_modules(fixture.at("modules"));

    auto expected = owners(*model, fixture.at("units"));
    ASSERT_EQ(sum(*model, expected), as_in_pytorch(fixture.at("units")))
        << "the test's own reading of the fixture";
    for (std::size_t p = 1; p < expected.size(); ++p) {
      if (model->parameters()[p].fused_with_previous) expected[p] = expected[p - 1];
    }

    Names chosen(expected.size(), "none");
    for (const auto& unit : wrap(*model, specs_of(*model), options, 1)) {
      for (const auto& p : unit.parameters) chosen[p.parameter] = unit.name == "root" ? "" : unit.name;
    }
    EXPECT_EQ(chosen, expected);
  }
  EXPECT_GE(cases["size"], 50);
  EXPECT_GE(cases["modules"], 10);
  EXPECT_GE(cases["tree"], 9);
}

// The table.

TEST(FormatUnits, HasALinePerUnitAndTotals) {
  const auto wrapped = wrap_small(kTransformer, 2, false, 3);
  // Embedding 101 x 24 = 2424: three shards of 832 are 2496. Head with norm: 24, 40 unused, 2424 more: three
  // of 832.
  const auto text = format_units(*wrapped.model, wrapped.units);
  const auto lines = std::count(text.begin(), text.end(), '\n');
  EXPECT_EQ(lines, 1 + 4 + 1);
  EXPECT_THAT(text, testing::ContainsRegex("model.embed_tokens +1 +2424 +9.47 KiB +832 +72\n"));
  EXPECT_THAT(text, testing::ContainsRegex("model.norm +2 +2448 +9.56 KiB +832 +48\n"));
  EXPECT_THAT(text, testing::ContainsRegex("4 units, shards each: 3 +21 +13800 "));
}

}  // namespace
}  // namespace llampi::test
