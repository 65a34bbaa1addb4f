// What every boundary of Quire returns instead of throwing: a value or an Error.
//
// An Error carries a kind, which decides the HTTP status and the exit code, and a message a user can act on: what is
// wrong, where, and what would be right. `param` names the request field, flag, tensor or key at fault, if there is
// one.
#pragma once

#include <expected>
#include <string>
#include <utility>

namespace quire {

enum class ErrorKind {
  kInvalidRequest,  // the caller's input is wrong
  kNotFound,        // what was named does not exist
  kExhausted,       // out of queue places, blocks or memory; may work later
  kUnsupported,     // understood, but this build or model cannot do it
  kCorruptFile,     // a file contradicts itself or its format
  kInternal,        // our own fault
};

struct Error {
  ErrorKind kind;
  std::string message;
  std::string param = {};
};

template <class T>
using Result = std::expected<T, Error>;

// The empty success value is `Result<void>{}`; a failure is `return fail(ErrorKind::kNotFound, "...", "model")`.
inline std::unexpected<Error> fail(ErrorKind kind, std::string message, std::string param = {}) {
  return std::unexpected(Error{kind, std::move(message), std::move(param)});
}

}  // namespace quire
