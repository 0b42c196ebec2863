#include "llampi/comm/from_rank_0.hpp"

#include "llampi/core/error.hpp"

namespace llampi::comm {
namespace {

constexpr char kText = 't', kUserMistake = 'u', kOther = 'e';

std::string run(const std::function<std::string()>& work) {
  try {
    return kText + work();
  } catch (const UserError& error) {
    return kUserMistake + std::string(error.what());
  } catch (const std::exception& error) {
    return kOther + std::string(error.what());
  }
}

}  // namespace

std::string from_rank_0(World& world, const std::function<std::string()>& work) {
  const std::string answer = world.broadcast(world.rank() == 0 ? run(work) : "", 0);
  std::string text = answer.substr(1);
  if (answer.front() == kUserMistake) throw UserError(text);
  if (answer.front() == kOther) throw CommonError(text);
  return text;
}

}  // namespace llampi::comm
