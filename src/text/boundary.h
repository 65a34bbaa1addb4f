// Values across the C boundary of quire-text: borrowed strings in, owned bytes and statuses out. Internal to this room.
#pragma once

#include <string>
#include <string_view>

#include "quire/error.h"
#include "quire_text.h"

namespace quire::text {

inline quire_text_str borrow(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

inline std::string take(quire_text_bytes bytes) {
  std::string text(reinterpret_cast<const char*>(bytes.data), bytes.size);
  quire_text_free_bytes(bytes);
  return text;
}

// The failure that a status other than QUIRE_TEXT_OK and its message stand for.
inline std::unexpected<Error> failure(int32_t status, quire_text_bytes message) {
  const ErrorKind kind = [status] {
    switch (status) {
      case QUIRE_TEXT_INVALID_INPUT:
      case QUIRE_TEXT_TOO_LARGE:
        return ErrorKind::kInvalidRequest;
      case QUIRE_TEXT_CORRUPT_FILE:
        return ErrorKind::kCorruptFile;
      case QUIRE_TEXT_UNSUPPORTED:
        return ErrorKind::kUnsupported;
      default:
        return ErrorKind::kInternal;
    }
  }();
  return fail(kind, take(message));
}

}  // namespace quire::text
