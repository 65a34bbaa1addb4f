// Times loading: load_bench MODEL [none|int8|int4]. Opens the checkpoint once and loads its weights five times, on as
// many threads as there are cores: wall time, and the CPU time that all threads took, in bytes of the file a second.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <string_view>
#include <vector>

#include "base/cpu.h"
#include "engine/loaded_model.h"

namespace quire {
namespace {

double cpu_seconds() {
  timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

int bench(const EngineOptions& options) {
  auto opened = engine::open_model(options);
  if (!opened) {
    fmt::print(stderr, "{}\n", opened.error().message);
    return 1;
  }
  const auto size = static_cast<double>(opened->file_bytes);
  for (int run = 0; run < 5; ++run) {
    Allocator allocator;
    ThreadPool pool(usable_cores());
    const auto start = std::chrono::steady_clock::now();
    const double cpu = cpu_seconds();
    const auto model =
        model::load_weights(opened->spec, *opened->checkpoint.tensors, opened->profile, {allocator, pool});
    if (!model) {
      fmt::print(stderr, "{}\n", model.error().message);
      return 1;
    }
    const double wall = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    fmt::print("{:.0f} MB in the file, {:.0f} in memory: {:.2f} GB/s, {:.2f} GB/s of CPU time, {} threads\n",
               size / 1e6, static_cast<double>(model->weight_bytes) / 1e6, size / wall / 1e9,
               size / (cpu_seconds() - cpu) / 1e9, pool.size());
  }
  return 0;
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  const std::string_view method = argc > 2 ? argv[2] : "none";
  if (argc < 2 || argc > 3 || (method != "none" && method != "int8" && method != "int4")) {
    fmt::print(stderr, "load_bench MODEL [none|int8|int4]\n");
    return 2;
  }
  quire::EngineOptions options;
  options.model = argv[1];
  if (method == "int8") options.quantization = quire::Quantization::kInt8;
  if (method == "int4") options.quantization = quire::Quantization::kInt4;
  return quire::bench(options);
}
