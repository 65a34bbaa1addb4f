// Progress on standard error, for people: a bar on a terminal, one line a quarter elsewhere.
#pragma once

#include <functional>
#include <string>

namespace quire::apps {

// To be called with the part that is done, from 0 to 1.
std::function<void(double)> progress_bar(std::string title);

}  // namespace quire::apps
