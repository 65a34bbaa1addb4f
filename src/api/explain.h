// The `quire` object of an answer whose request asked for it with {"quire": {"explain": true}}: its times, and what the
// prefix cache did for it. A pure function from values to JSON.
#pragma once

#include <string>

#include "quire/request.h"

namespace quire::api {

std::string explain_json(const RequestTimes& times, const CacheReport& report);

}  // namespace quire::api
