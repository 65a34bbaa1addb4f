// quire run: a chat in the terminal, or one answer where input or output is none.
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <string_view>

#include "api/service.h"
#include "base/log.h"
#include "base/utf8.h"
#include "chat.h"
#include "commands.h"
#include "line_editor.h"
#include "model_api.h"

namespace quire::apps {
namespace {

constexpr size_t kMaxInput = 16 << 20;
constexpr std::string_view kFence = "\"\"\"";
constexpr const char* kHelp = R"(/system TEXT      the system message; without TEXT: none
/set NAME VALUE   a parameter of the requests, like /set temperature 0; without VALUE: its default again
/set              what is set
/clear            forget the conversation
/help             this
/exit             leave; so does Ctrl-D
A text of several lines stands between """ and """, or has a backslash at the end of each line but the last.
Ctrl-C ends an answer.
)";

std::atomic<bool> interrupted = false;
static_assert(std::atomic<bool>::is_always_lock_free);

// Nothing that a model writes may steer the terminal.
std::string for_terminal(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const bool second_set =
        byte == 0xC2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xA0;  // U+0080 to U+009F
    if (second_set) ++i;
    if (second_set || byte == 0x7f || (byte < 0x20 && byte != '\n' && byte != '\t')) {
      out += "\xEF\xBF\xBD";
    } else {
      out += text[i];
    }
  }
  return out;
}

// Writes an answer as it comes; reasoning is dim on a terminal, and left out elsewhere.
class Printer {
 public:
  explicit Printer(bool terminal) : terminal_(terminal) {}

  void operator()(bool reasoning, std::string_view text) {
    if (!terminal_ && reasoning) return;
    if (terminal_ && reasoning != dim_) std::fputs(reasoning ? "\x1b[2m" : "\x1b[0m\n\n", stdout);
    dim_ = terminal_ && reasoning;
    const std::string shown = terminal_ ? for_terminal(text) : std::string(text);
    std::fwrite(shown.data(), 1, shown.size(), stdout);
    std::fflush(stdout);
  }
  void end() {
    if (dim_) std::fputs("\x1b[0m", stdout);
    std::fputc('\n', stdout);
    std::fflush(stdout);
    dim_ = false;
  }

 private:
  bool terminal_;
  bool dim_ = false;
};

void say_usage(const ChatUsage& usage) {
  const auto rest = static_cast<double>(usage.completion_tokens - usage.first_tokens);
  fmt::print(stderr, "prompt {} tokens ({} cached), {:.2f} s to the first token; answer {} tokens{}\n",
             usage.prompt_tokens, usage.cached_tokens, usage.first_seconds, usage.completion_tokens,
             rest > 0 && usage.rest_seconds > 0 ? fmt::format(", {:.1f} tokens/s", rest / usage.rest_seconds) : "");
}

Result<void> answer(Chat& chat, const std::string& question, bool verbose) {
  Printer printer(isatty(STDOUT_FILENO) == 1);
  const auto done =
      chat.ask(question, [&](bool reasoning, std::string_view text) { printer(reasoning, text); }, interrupted);
  printer.end();
  if (!done) return std::unexpected(done.error());
  if (verbose) say_usage(done->usage);
  return {};
}

void complain(const Error& error) { fmt::print(stderr, "{}\n", one_line(error.message)); }

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t");
  return begin == std::string_view::npos ? "" : text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

// False: the user wants to leave.
bool command(Chat& chat, std::string_view line) {
  const std::string_view name = line.substr(0, line.find_first_of(" \t"));
  const std::string_view rest = trimmed(line.substr(name.size()));
  if (name == "/exit" || name == "/quit" || name == "/bye") return false;
  if (name == "/system") {
    chat.set_system(std::string(rest));
  } else if (name == "/clear") {
    chat.clear();
  } else if (name == "/help" || name == "/?") {
    fmt::print("{}", kHelp);
  } else if (name == "/set" && rest.empty()) {
    for (const auto& [key, value] : chat.settings()) fmt::print("{} {}\n", key, value);
  } else if (name == "/set") {
    const std::string_view key = rest.substr(0, rest.find_first_of(" \t"));
    if (auto set = chat.set(std::string(key), std::string(trimmed(rest.substr(key.size())))); !set)
      complain(set.error());
  } else {
    fmt::print(stderr, "there is no {}; /help shows what there is\n", in_quotes(name));
  }
  return true;
}

// A question of one or more lines.
Line read_question(LineEditor& editor) {
  Line line = editor.read(">>> ");
  if (line.kind != Line::Kind::kText) return line;
  const bool fenced = line.text.starts_with(kFence);
  std::string text = fenced ? line.text.substr(kFence.size()) : line.text;
  const auto goes_on = [&] { return fenced ? !text.ends_with(kFence) : text.ends_with('\\'); };
  while (goes_on()) {
    if (!fenced) text.pop_back();
    line = editor.read("... ");
    if (line.kind != Line::Kind::kText) return line;
    text += '\n' + line.text;
  }
  if (fenced) text.resize(text.size() - kFence.size());
  return {.kind = Line::Kind::kText, .text = std::move(text)};
}

std::filesystem::path history_file() {
  const char* state = std::getenv("XDG_STATE_HOME");
  const char* home = std::getenv("HOME");
  if (state != nullptr && *state == '/') return std::filesystem::path(state) / "quire" / "history";
  if (home == nullptr || *home == '\0') return {};
  return std::filesystem::path(home) / ".local" / "state" / "quire" / "history";
}

void converse(Chat& chat, const RunFlags& flags) {
  struct sigaction action = {};
  action.sa_handler = [](int) { interrupted = true; };
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  fmt::print("{}: /help shows what there is\n", name_of(flags.model));
  LineEditor editor(history_file());
  for (;;) {
    const Line line = read_question(editor);
    if (line.kind == Line::Kind::kEnd) return;
    if (line.kind == Line::Kind::kInterrupted) {
      if (line.text.empty()) fmt::print("Ctrl-D or /exit leaves\n");
      continue;
    }
    if (trimmed(line.text).empty()) continue;
    if (line.text.starts_with('/')) {
      if (!command(chat, line.text)) return;
      continue;
    }
    interrupted = false;
    if (auto done = answer(chat, line.text, flags.verbose); !done) complain(done.error());
  }
}

Result<std::string> read_input() {
  std::string text(kMaxInput + 1, '\0');
  std::cin.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(std::cin.gcount()));
  if (text.size() > kMaxInput)
    return fail(ErrorKind::kInvalidRequest, fmt::format("standard input has more than {} bytes", kMaxInput));
  while (text.ends_with('\n') || text.ends_with('\r')) text.pop_back();
  return text;
}

// The text of a pipe goes before the prompt, as in `quire run MODEL "Say it shorter:" < text`.
Result<std::string> question_of(const RunFlags& flags) {
  if (isatty(STDIN_FILENO) == 1 && !flags.prompt.empty()) return flags.prompt;
  auto input = read_input();
  if (!input) return input;
  if (input->empty() && flags.prompt.empty())
    return fail(ErrorKind::kInvalidRequest, "there is no prompt: give one as an argument or on standard input");
  return flags.prompt.empty() || input->empty() ? *input + flags.prompt : *input + "\n\n" + flags.prompt;
}

Result<void> apply_settings(Chat& chat, const RunFlags& flags) {
  chat.set_system(flags.system);
  for (const std::string& setting : flags.settings) {
    const size_t equals = setting.find('=');
    if (equals == std::string::npos || equals + 1 == setting.size())
      return fail(ErrorKind::kInvalidRequest, fmt::format("--set: must be NAME=VALUE, not {}", in_quotes(setting)));
    if (auto set = chat.set(setting.substr(0, equals), setting.substr(equals + 1)); !set)
      return fail(ErrorKind::kInvalidRequest, fmt::format("--set: {}", set.error().message));
  }
  return {};
}

}  // namespace

int run(const RunFlags& flags) {
  log::leave_out_info();
  const bool conversation = flags.prompt.empty() && isatty(STDIN_FILENO) == 1 && isatty(STDOUT_FILENO) == 1;
  TaskQueue tasks;
  const auto prepared = prepare(flags.model);
  if (!prepared) return report(prepared.error());
  api::Service service(
      {.served_model_names = {name_of(flags.model)}, .sampling_defaults = prepared->sampling_defaults});
  Chat chat(service.handler(), tasks);
  if (auto applied = apply_settings(chat, flags); !applied) return report(applied.error());
  Result<std::string> question;
  if (!conversation) question = question_of(flags);
  if (!question) return report(question.error());

  auto model = ModelApi::load(*prepared);
  if (!model) return report(model.error());
  service.open((*model)->backend());
  Result<void> done;
  if (conversation) {
    converse(chat, flags);
  } else {
    done = answer(chat, *question, flags.verbose);
  }
  service.close();
  return done ? 0 : report(done.error());
}

}  // namespace quire::apps
