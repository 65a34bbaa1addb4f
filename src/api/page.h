// The chat page: files of page/, which the build embeds.
#pragma once

#include <optional>
#include <string_view>

#include "api/http.h"

namespace quire::api {

// The file at this path ("/" is the page itself), as an answer.
std::optional<HttpResponse> find_page_file(std::string_view path);

}  // namespace quire::api
