// Takes a stream of server-sent events apart (WHATWG HTML, 9.2): bytes in, the data of each event out.
//
// Bytes may be cut anywhere. Lines end with LF, CR or CRLF; fields other than `data` and comments are passed over; an
// event that the stream's end cuts never comes out. No more than `max_event_bytes` are held.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace quire::net {

class SseParser {
 public:
  explicit SseParser(size_t max_event_bytes) : max_event_bytes_(max_event_bytes) {}

  // Calls `event` for each event that is complete now. False, and nothing more comes out, if one is too large.
  bool feed(std::string_view bytes, const std::function<void(std::string_view data)>& event);

 private:
  void end_line(const std::function<void(std::string_view data)>& event);

  size_t max_event_bytes_;
  std::string line_;
  std::string data_;  // with a line break behind each of its lines
  bool first_line_ = true;
  bool after_cr_ = false;
  bool failed_ = false;
};

}  // namespace quire::net
