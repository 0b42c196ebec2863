// SPDX-License-Identifier: Apache-2.0
// What a kind of machine does in a second: a machine file (input/machines/NAME.json), and what it costs a step.
//
// A machine file is a JSON object:
//   name         "h100"
//   description  what was measured, where and when
//   device       "cpu", or a GPU that `llampi plan --device` knows
//   cores        of CPUs: that the figures are of, all ranks of a node together; the figures of GPUs are of one
//   figures      {key: {value, source, note}}: keys as in figures_of_machines(); source is "measured", "data sheet" or
//                "assumed", note says by what. What is not known is left out.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "llampi/core/words.hpp"
#include "llampi/plan/compute_time.hpp"

namespace llampi::plan {

enum class Source : std::uint8_t { measured, data_sheet, assumed };
constexpr auto word_table(Source) {
  return std::to_array<Word<Source>>(
      {{Source::measured, "measured"}, {Source::data_sheet, "data sheet"}, {Source::assumed, "assumed"}});
}

struct Figure {
  double value = 0;
  Source source = Source::assumed;
  std::string note = {};
};

/// A figure that a machine file may have.
struct FigureKind {
  std::string_view key;
  std::string_view meaning;
  Term term = Term::kernels;  ///< whose cost it gives, where `unit` is not 0
  /// The cost of one of the term is unit / value; of an edge value x the cost of its rate, with a unit of -1; of a time value x unit.
  enum class Gives : std::uint8_t { nothing, rate, edge, time } gives = Gives::nothing;
  double unit = 1;
  bool may_be_zero = gives == Gives::edge || gives == Gives::time;
};
std::span<const FigureKind> figures_of_machines();

struct MachineSpeed {
  std::string name;
  std::string description;
  std::string device = "cpu";
  int cores = 0;                               ///< 0: figures are of a GPU
  std::vector<std::optional<Figure>> figures;  ///< as figures_of_machines()
  std::string file;                            ///< that it was read from, for messages

  MachineSpeed();
  /// Null where the file has none. @param key one of figures_of_machines()
  const Figure* find(std::string_view key) const;
  void set(std::string_view key, Figure figure);
  /// @throws UserError that names the file and the figure
  double value(std::string_view key) const;
  double value_or(std::string_view key, double otherwise) const;
};

/// @param file for messages
/// @throws UserError for anything that is not a machine file
MachineSpeed parse_machine(const std::string& text, const std::string& file);
/// With line breaks, as input/machines has them.
std::string to_json(const MachineSpeed& machine);

/// Those that come with the program, by name.
std::vector<std::string> known_machines();
/// One of those, or a file. @throws UserError if it is neither
MachineSpeed read_machine(const std::string& name_or_file);

/// Seconds of one of each term for a rank.
/// @param share of a node's cores that the rank has, where the figures are of cores; else 1
/// @param work what is needed. @throws UserError that names the first figure that the work needs and the file lacks
Terms costs_of(const MachineSpeed& machine, double share, const std::vector<ActionWork>& work);

/// Operations a second of the dtype's dense products, as MFU counts them; 0: not known.
double peak_of(const MachineSpeed& machine, DType dtype);

}  // namespace llampi::plan
