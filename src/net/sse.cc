#include "net/sse.h"

#include <algorithm>
#include <utility>

namespace quire::net {

bool SseParser::feed(std::string_view bytes, const std::function<void(std::string_view data)>& event) {
  while (!failed_ && !bytes.empty()) {
    if (after_cr_ && bytes.front() == '\n') bytes.remove_prefix(1);
    after_cr_ = false;
    const size_t end = bytes.find_first_of("\r\n");
    const std::string_view piece = bytes.substr(0, end);
    failed_ = line_.size() + data_.size() + piece.size() > max_event_bytes_;
    if (failed_) break;
    line_ += piece;
    bytes.remove_prefix(piece.size());
    if (bytes.empty()) break;
    after_cr_ = bytes.front() == '\r';
    bytes.remove_prefix(1);
    end_line(event);
  }
  return !failed_;
}

void SseParser::end_line(const std::function<void(std::string_view data)>& event) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  std::string_view line = line_;
  if (std::exchange(first_line_, false) && line.starts_with(kByteOrderMark)) line.remove_prefix(kByteOrderMark.size());
  if (line.empty()) {
    if (!data_.empty()) event(std::string_view(data_).substr(0, data_.size() - 1));
    data_.clear();
  } else if (line.substr(0, line.find(':')) == "data") {
    line.remove_prefix(std::min(line.size(), std::string_view("data:").size()));
    if (line.starts_with(' ')) line.remove_prefix(1);
    data_ += line;
    data_ += '\n';
  }
  line_.clear();
}

}  // namespace quire::net
