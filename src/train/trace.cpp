#include "train/trace.hpp"

#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>

namespace llampi {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

Observer Trace::observer() {
  return [this](const Action& action, int index, Moment moment) {
    if (moment == Moment::begin) {
      const double time = now();
      open_.resize(std::max(open_.size(), static_cast<std::size_t>(index) + 1));
      open_[static_cast<std::size_t>(index)] = records_.size();
      records_.push_back({action, time, time});
    } else {
      records_[open_[static_cast<std::size_t>(index)]].end = now();
    }
  };
}

void Trace::write(const std::filesystem::path& file) {
  auto events = nlohmann::json::array();
  events.push_back({{"name", "process_name"},
                    {"ph", "M"},
                    {"pid", rank_},
                    {"args", {{"name", fmt::format("rank {}", rank_)}}}});
  for (int s = 0; s < kStreams; ++s) {
    events.push_back({{"name", "thread_name"},
                      {"ph", "M"},
                      {"pid", rank_},
                      {"tid", s},
                      {"args", {{"name", to_string(static_cast<Stream>(s))}}}});
  }
  for (const auto& r : records_) {
    std::string subject;
    if (r.action.stage >= 0) subject = compiled_.specs[static_cast<std::size_t>(r.action.stage)].module;
    if (r.action.unit >= 0) subject = compiled_.units[static_cast<std::size_t>(r.action.unit)].name;
    nlohmann::json args = {{"micro_batch", r.action.micro_batch}};
    if (r.action.unit >= 0) args["unit"] = subject;
    if (r.action.elements > 0) args["elements"] = r.action.elements;
    events.push_back(
        {{"name", subject.empty() ? to_string(r.action.op) : to_string(r.action.op) + (" " + subject)},
         {"cat", to_string(r.action.op)},
         {"ph", "X"},
         {"pid", rank_},
         {"tid", static_cast<int>(r.action.stream)},
         {"ts", r.begin * 1e6},
         {"dur", (r.end - r.begin) * 1e6},
         {"args", args}});
  }
  std::ofstream out(file);
  out << nlohmann::json{{"traceEvents", events}, {"displayTimeUnit", "ms"}}.dump() << "\n";
  out.close();
  if (!out) throw_user_error("cannot write {}; check the path and its permissions", file.string());
  records_.clear();
}

}  // namespace llampi
