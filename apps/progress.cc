#include "progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <utility>

#include "base/log.h"

namespace quire::apps {

std::function<void(double)> progress_bar(std::string title) {
  const bool terminal = isatty(STDERR_FILENO) == 1;
  return [title = std::move(title), terminal, shown = -1](double part) mutable {
    const int percent = static_cast<int>(part * 100);
    if (percent == shown || (!terminal && percent / 25 == shown / 25 && shown >= 0)) return;
    shown = percent;
    if (!terminal) return log::info(fmt::format("{}: {} %", title, percent));
    std::fprintf(stderr, "\r%s [%-40.*s] %3d %%%s", title.c_str(), percent * 40 / 100,
                 "########################################", percent, percent == 100 ? "\n" : "");
  };
}

}  // namespace quire::apps
