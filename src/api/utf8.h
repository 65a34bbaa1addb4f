// UTF-8 as RFC 3629 defines it: no overlong forms, no surrogates, nothing beyond U+10FFFF.
#pragma once

#include <cstddef>
#include <string_view>

namespace quire::api {

// Bytes of the well-formed character at the start of `text`, 1 to 4; 0 if there is none.
size_t utf8_character_length(std::string_view text);

// Characters in well-formed `text`.
size_t utf8_count(std::string_view text);

}  // namespace quire::api
