#include "api/reply.h"

#include <fmt/format.h>

#include "base/sha256.h"

namespace quire::api {

void append_event(std::string& out, std::string_view name, std::string_view data) {
  for (const std::string_view part :
       {std::string_view("event: "), name, std::string_view("\ndata: "), data, std::string_view("\n\n")})
    out += part;
}

std::string call_id(std::string_view call_key, int answer, int call) {
  const std::string text = fmt::format("{}/{}/{}", call_key, answer, call);
  const Sha256Digest digest = sha256(std::as_bytes(std::span(text)));
  constexpr std::string_view kLetters = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  std::string id;
  for (size_t i = 0; i < 9; ++i) id += kLetters[std::to_integer<size_t>(digest[i]) % kLetters.size()];
  return id;
}

}  // namespace quire::api
