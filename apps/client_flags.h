// Flags of the commands that are clients of a server.
#pragma once

#include <CLI/CLI.hpp>

#include "flags.h"

namespace quire::apps {

void add_bench_serve_flags(CLI::App& app, BenchServeFlags& flags);
void add_verify_flags(CLI::App& app, VerifyFlags& flags);
// What no flag's own check can see; turns the texts of goals into numbers.
Result<void> finish(BenchServeFlags& flags);

}  // namespace quire::apps
