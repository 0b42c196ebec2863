// SPDX-License-Identifier: Apache-2.0
#include "llampi/comm/failure.hpp"

#include "llampi/comm/comm.hpp"
#include "llampi/comm/common_failure.hpp"

namespace llampi::comm {

void Failure::rethrow(const std::string& where) const {
  const std::string text = where.empty() ? message : where + ": " + message;
  switch (kind) {
    case Kind::config: {
      auto parts = config;
      if (!where.empty()) parts.where = parts.where.empty() ? where : where + ": " + parts.where;
      throw ConfigError(parts);
    }
    case Kind::user:
      throw UserError(text);
    case Kind::other:
      throw CommonError(text);
    case Kind::none:
      break;
  }
  throw Error("internal error: nothing failed");
}

Failure current_failure(const World& world) {
  const std::string& host = world.topology().host;
  try {
    throw;
  } catch (const ConfigError& error) {
    return {Failure::Kind::config, host, error.what(), error.parts()};
  } catch (const UserError& error) {
    return {Failure::Kind::user, host, error.what(), {}};
  } catch (const std::exception& error) {
    return {Failure::Kind::other, host, error.what(), {}};
  } catch (...) {
    return {Failure::Kind::other, host, "an exception of unknown type", {}};
  }
}

}  // namespace llampi::comm
