#include <cstdio>

#include "commands.h"

namespace quire::apps {

int report(const Error& error) {
  std::fprintf(stderr, "quire: %s\n", error.message.c_str());
  return error.kind == ErrorKind::kInternal ? 1 : 2;
}

}  // namespace quire::apps

int main(int argc, char** argv) {
  using quire::apps::Command;
  const auto command = quire::apps::parse(argc, argv);
  if (!command) return quire::apps::report(command.error());
  switch (command->kind) {
    case Command::Kind::kServe:
      return quire::apps::serve(command->serve);
    case Command::Kind::kInspect:
      return quire::apps::inspect(command->inspect);
    case Command::Kind::kBench:
      return quire::apps::bench(command->bench);
    case Command::Kind::kShown:
      return 0;
  }
  return 0;
}
