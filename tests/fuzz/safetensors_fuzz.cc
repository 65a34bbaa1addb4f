// No bytes may make the safetensors parsers crash, read past them, or hand out a tensor whose data is not its shape's.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "weights/format.h"
#include "weights/safetensors_parse.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  (void)quire::weights::parse_shard_index({reinterpret_cast<const char*>(data), size});
  const auto tensors = quire::weights::parse_safetensors(std::as_bytes(std::span(data, size)));
  if (!tensors) return 0;
  for (const auto& entry : *tensors) {
    if (!entry.unreadable.empty()) continue;
    const auto elements = static_cast<size_t>(entry.tensor.elements());
    QUIRE_CHECK(elements <= size);
    std::vector<float> out(elements);
    quire::weights::dequantise(entry.tensor.format, entry.tensor.data, out);
  }
  return 0;
}
