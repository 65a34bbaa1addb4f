// For std::visit: one callable out of several, by the type of the argument.
#pragma once

namespace quire {

template <class... Fs>
struct Overloaded : Fs... {
  using Fs::operator()...;
};

}  // namespace quire
