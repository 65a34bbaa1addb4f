// Lines from a terminal, with editing and a history that outlives the program. Wraps libedit. One thread.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

namespace quire::apps {

struct Line {
  enum class Kind { kText, kInterrupted, kEnd };  // Ctrl-C; Ctrl-D on an empty line, or the terminal is gone
  Kind kind = Kind::kEnd;
  std::string text = {};  // without its line break; what stood there when it was interrupted
};

class LineEditor {
 public:
  // The history is read from this file and kept in it, for its owner alone; a file that cannot be had is no error.
  explicit LineEditor(std::filesystem::path history_file);
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  Line read(const std::string& prompt);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire::apps
