// A TraceFile reads requests for the simulator from a file of JSON lines, one request a line (docs/simulate.md):
//
//   {"arrival": 0.5, "prompt": [{"segment": "system", "tokens": 300}, 17, 4711], "output": 40}
//
// It reads as it goes and keeps one line at most. Every line that is not understood is an error with its number.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>

#include "quire/error.h"
#include "sched/simulator.h"

namespace quire::sched {

inline constexpr size_t kMaxTraceLine = size_t{16} << 20;  // bytes

// One line of a trace. `number` (from 1) is for errors, and keeps tokens apart that no other request has.
Result<TraceRequest> parse_trace_line(std::string_view line, uint64_t number);

class TraceFile {
 public:
  // kNotFound if it cannot be read.
  static Result<TraceFile> open(const std::filesystem::path& path);
  TraceFile(TraceFile&&) noexcept;
  ~TraceFile();

  // The next request; nullopt at the end.
  Result<std::optional<TraceRequest>> next();

 private:
  struct Reader;
  explicit TraceFile(std::unique_ptr<Reader> reader);
  std::unique_ptr<Reader> reader_;
};

}  // namespace quire::sched
