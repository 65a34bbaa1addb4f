#include <cstdio>
#include <exception>

#include "base/utf8.h"
#include "commands.h"

namespace quire::apps {

int report(const Error& error) {
  std::fprintf(stderr, "quire: %s\n", one_line(in_flags(error).message).c_str());
  return error.kind == ErrorKind::kInternal ? 1 : 2;
}

namespace {

int start(int argc, char** argv) {
  const auto command = parse(argc, argv);
  if (!command) return report(command.error());
  switch (command->kind) {
    case Command::Kind::kServe:
      return serve(command->serve);
    case Command::Kind::kRun:
      return run(command->run);
    case Command::Kind::kInspect:
      return inspect(command->inspect);
    case Command::Kind::kBench:
      return bench(command->bench);
    case Command::Kind::kBenchServe:
      return bench_serve(command->bench_serve);
    case Command::Kind::kSimulate:
      return simulate(command->simulate);
    case Command::Kind::kVerify:
      return verify(command->verify);
    case Command::Kind::kShown:
      return 0;
  }
  return 0;
}

}  // namespace
}  // namespace quire::apps

int main(int argc, char** argv) {
  try {
    return quire::apps::start(argc, argv);
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "quire: internal error: %s\n", failure.what());
    return 1;
  }
}
