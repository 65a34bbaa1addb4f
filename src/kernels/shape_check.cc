#include "kernels/shape_check.h"

#include <fmt/format.h>

namespace quire::kernels {

Result<void> check_ranges(std::string_view kernel, std::initializer_list<ShapeRange> ranges) {
  for (const ShapeRange& r : ranges)
    if (r.value < r.low || r.value > r.high)
      return fail(ErrorKind::kUnsupported,
                  fmt::format("{}: {} is {}, must be between {} and {}", kernel, r.name, r.value, r.low, r.high),
                  r.name);
  return {};
}

}  // namespace quire::kernels
