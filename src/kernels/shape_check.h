// Checks the numbers of a kernel's shape against what the kernel can do.
#pragma once

#include <initializer_list>
#include <string_view>

#include "quire/error.h"

namespace quire::kernels {

struct ShapeRange {
  const char* name;
  int value, low, high;
};

// kUnsupported, naming kernel, number and what is allowed, for the first that is out of its range.
Result<void> check_ranges(std::string_view kernel, std::initializer_list<ShapeRange> ranges);

}  // namespace quire::kernels
