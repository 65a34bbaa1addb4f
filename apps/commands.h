// The commands of `quire`. Each returns the process's exit code: 0, 1 for a failure while running, 2 for what the user
// must change.
#pragma once

#include "flags.h"

namespace quire::apps {

int serve(const ServeFlags& flags);
int run(const RunFlags& flags);
int inspect(const InspectFlags& flags);
int bench(const BenchFlags& flags);
int bench_serve(const BenchServeFlags& flags);
int simulate(const SimulateFlags& flags);
int verify(const VerifyFlags& flags);

// Prints "quire: message" on standard error and returns the exit code of the error's kind.
int report(const Error& error);

}  // namespace quire::apps
