#include <string>
#include <vector>

#include "llampi/comm/comm.hpp"

namespace llampi::comm {
namespace {

constexpr char kUserError = 'u';
constexpr char kError = 'e';

/// What went wrong on a rank, as it travels; empty where nothing did.
struct Failure {
  char kind = 0;
  std::string host;
  std::string message;

  bool alike(const Failure& other) const { return kind == other.kind && message == other.message; }
};

std::string pack(char kind, const std::string& host, const std::string& message) {
  return kind + host + '\0' + message;
}

Failure unpack(const std::string& text) {
  if (text.empty()) return {};
  const auto end = text.find('\0');
  return {text[0], text.substr(1, end - 1), text.substr(end + 1)};
}

std::string run(const std::string& host, const std::function<void()>& work) {
  try {
    work();
    return {};
  } catch (const UserError& error) {
    return pack(kUserError, host, error.what());
  } catch (const std::exception& error) {
    return pack(kError, host, error.what());
  } catch (...) {
    return pack(kError, host, "an exception of unknown type");
  }
}

/// The lowest rank that failed in this way, or -1.
int lowest(const std::vector<Failure>& failures, char kind) {
  for (std::size_t rank = 0; rank < failures.size(); ++rank) {
    if (failures[rank].kind == kind) return static_cast<int>(rank);
  }
  return -1;
}

std::string message_of(const std::vector<Failure>& failures, int rank) {
  const Failure& failure = failures[static_cast<std::size_t>(rank)];
  for (const Failure& other : failures) {
    if (!other.alike(failure)) return fmt::format("rank {} on {}: {}", rank, failure.host, failure.message);
  }
  return failure.message;
}

}  // namespace

void agree(World& world, const std::function<void()>& work) {
  std::vector<Failure> failures;
  for (const std::string& text : world.all_gather(run(world.topology().host, work))) {
    failures.push_back(unpack(text));
  }
  if (const int rank = lowest(failures, kUserError); rank >= 0) throw UserError(message_of(failures, rank));
  if (const int rank = lowest(failures, kError); rank >= 0) throw CommonError(message_of(failures, rank));
}

}  // namespace llampi::comm
