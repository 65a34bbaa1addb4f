#include "net/wire.h"

#include <fmt/format.h>

#include <array>
#include <chrono>
#include <iterator>

namespace quire::net {
namespace {

void append_header(std::string& out, std::string_view name, std::string_view value) {
  out += name;
  out += ": ";
  for (const char c : value) {
    const auto byte = static_cast<unsigned char>(c);
    out += byte < 0x20 || byte == 0x7f ? ' ' : c;
  }
  out += "\r\n";
}

}  // namespace

std::string_view reason_of(int status) {
  switch (status) {
    case 100:
      return "Continue";
    case 200:
      return "OK";
    case 304:
      return "Not Modified";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 413:
      return "Content Too Large";
    case 415:
      return "Unsupported Media Type";
    case 417:
      return "Expectation Failed";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 503:
      return "Service Unavailable";
    default:
      return "Status";
  }
}

std::string http_date(long long unix_seconds) {
  using namespace std::chrono;
  constexpr std::array<std::string_view, 7> kDays = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  constexpr std::array<std::string_view, 12> kMonths = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                                        "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  const sys_seconds time{seconds{unix_seconds}};
  const sys_days day = floor<days>(time);
  const year_month_day date{day};
  const hh_mm_ss clock{time - day};
  return fmt::format("{}, {:02} {} {:04} {:02}:{:02}:{:02} GMT", kDays[weekday{day}.c_encoding()], unsigned{date.day()},
                     kMonths[unsigned{date.month()} - 1], int{date.year()}, clock.hours().count(),
                     clock.minutes().count(), clock.seconds().count());
}

void append_head(std::string& out, const api::HttpResponse& response, const HeadOptions& options) {
  fmt::format_to(std::back_inserter(out), "HTTP/1.1 {} {}\r\n", response.status, reason_of(response.status));
  append_header(out, "Server", "quire");
  if (!options.date.empty()) append_header(out, "Date", options.date);
  append_header(out, "Content-Type", response.content_type);
  for (const auto& [name, value] : response.headers) append_header(out, name, value);
  if (options.framing == Framing::kLength) append_header(out, "Content-Length", std::to_string(response.body.size()));
  if (options.framing == Framing::kChunked) append_header(out, "Transfer-Encoding", "chunked");
  append_header(out, "Connection", options.keep_alive ? "keep-alive" : "close");
  out += "\r\n";
}

void append_chunk(std::string& out, std::string_view piece) {
  if (piece.empty()) return;
  fmt::format_to(std::back_inserter(out), "{:x}\r\n", piece.size());
  out += piece;
  out += "\r\n";
}

}  // namespace quire::net
