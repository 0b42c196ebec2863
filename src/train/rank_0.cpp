#include "train/rank_0.hpp"

#include "llampi/core/error.hpp"

namespace llampi {
namespace {

constexpr char kText = 't', kUserError = 'u', kError = 'e';

std::string run(const std::function<std::string()>& work) {
  try {
    return kText + work();
  } catch (const UserError& error) {
    return kUserError + std::string(error.what());
  } catch (const std::exception& error) {
    return kError + std::string(error.what());
  }
}

}  // namespace

std::string from_rank_0(World& world, const std::function<std::string()>& work) {
  const std::string answer = world.broadcast(world.rank() == 0 ? run(work) : "", 0);
  std::string text = answer.substr(1);
  if (answer.front() == kUserError) throw UserError(text);
  if (answer.front() == kError) throw CommonError(text);
  return text;
}

}  // namespace llampi
