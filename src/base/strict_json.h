// JSON of files that people write for us: bounded depth, no key twice, and every fault told in words.
#pragma once

#include <string_view>

#include "quire/error.h"

namespace quire {

// What passes can be parsed without a fault. Else kCorruptFile, without naming the file: "malformed JSON at byte N", a
// number out of range, a key that stands twice in one object, or more than `max_depth` levels of nesting.
Result<void> check_strict_json(std::string_view text, int max_depth);

}  // namespace quire
