// No bytes may make the GGUF parser crash, read past them, or hand out a value or tensor that does.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "weights/format.h"
#include "weights/gguf_parse.h"

namespace {

void widen_first_blocks(const quire::weights::Tensor& tensor) {
  const auto& info = quire::weights::format_info(tensor.format);
  const size_t blocks = std::min<size_t>(4, tensor.data.size() / static_cast<size_t>(info.block_bytes));
  std::vector<float> out(blocks * static_cast<size_t>(info.block_elements));
  quire::weights::dequantise(tensor.format, tensor.data.last(blocks * static_cast<size_t>(info.block_bytes)), out);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto part = quire::weights::parse_gguf(std::as_bytes(std::span(data, size)));
  if (!part) return 0;
  for (const auto& entry : part->entries) {
    (void)to_string(entry), (void)to_integer(entry), (void)to_number(entry), (void)to_boolean(entry);
    (void)to_strings(entry), (void)to_floats(entry), (void)to_integers(entry);
  }
  for (const auto& entry : part->tensors)
    if (entry.unreadable.empty()) widen_first_blocks(entry.tensor);
  return 0;
}
