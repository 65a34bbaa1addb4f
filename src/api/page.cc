#include "api/page.h"

#include "api/page_files.h"

namespace quire::api {

std::optional<HttpResponse> find_page_file(std::string_view path) {
  for (const PageFile& file : kPageFiles) {
    if (file.path != path) continue;
    return HttpResponse{.headers = {{"Cache-Control", "no-cache"},
                                    {"Content-Security-Policy", "default-src 'self'; frame-ancestors 'none'"},
                                    {"X-Content-Type-Options", "nosniff"}},
                        .content_type = std::string(file.content_type),
                        .body = std::string(file.text)};
  }
  return std::nullopt;
}

}  // namespace quire::api
