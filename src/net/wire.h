// How an answer looks on the wire in HTTP/1.1 (RFC 9112): text in, text out.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "api/http.h"

namespace quire::net {

enum class Framing {
  kLength,      // Content-Length
  kChunked,     // a stream for HTTP/1.1
  kUntilClose,  // a stream for HTTP/1.0: the end of the connection ends it
};

struct HeadOptions {
  Framing framing = Framing::kLength;
  bool keep_alive = true;
  std::string_view date = {};  // as http_date() says it
};

std::string_view reason_of(int status);
// Seconds since 1970 in the form of RFC 9110, 5.6.7.
std::string http_date(long long unix_seconds);

// Status line and headers, up to and with the empty line. Control characters in header values become blanks.
void append_head(std::string& out, const api::HttpResponse& response, const HeadOptions& options);
// One chunk of a chunked body; nothing for an empty piece, which would end the body.
void append_chunk(std::string& out, std::string_view piece);
inline constexpr std::string_view kLastChunk = "0\r\n\r\n";

}  // namespace quire::net
