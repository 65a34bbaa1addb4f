#include "line_editor.h"

#include <histedit.h>
#include <sys/stat.h>

#include <clocale>
#include <cstdio>
#include <cwchar>
#include <string_view>
#include <utility>

namespace quire::apps {
namespace {

constexpr int kHistoryLines = 1000;

// Without UTF-8 the editor would take each byte of a character for one.
void choose_utf8() {
  const char* charset = std::setlocale(LC_CTYPE, "");
  if (charset == nullptr || std::string_view(charset).find("UTF-8") == std::string_view::npos)
    std::setlocale(LC_CTYPE, "C.UTF-8");
}

}  // namespace

class LineEditor::Impl {
 public:
  explicit Impl(std::filesystem::path file)
      : file_(std::move(file)), history_(history_init()), edit_(el_init("quire", stdin, stdout, stderr)) {
    HistEvent event;
    history(history_, &event, H_SETSIZE, kHistoryLines);
    history(history_, &event, H_SETUNIQUE, 1);
    history(history_, &event, H_LOAD, file_.c_str());
    el_set(edit_, EL_CLIENTDATA, this);
    el_set(edit_, EL_PROMPT, &prompt);
    el_set(edit_, EL_EDITOR, "emacs");
    el_set(edit_, EL_HIST, history, history_);
    el_source(edit_, nullptr);
    // While a line is edited Ctrl-C is a key: no signal comes in between.
    el_set(edit_, EL_SETTY, "-d", "-isig", nullptr);
    // The wide form keeps the names as they are; the narrow one copies them and never frees the copies.
    el_wset(edit_, EL_ADDFN, L"quire-interrupt", L"give the line up", &interrupt);
    el_set(edit_, EL_BIND, "^C", "quire-interrupt", nullptr);
  }
  ~Impl() {
    el_end(edit_);
    history_end(history_);
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  Line read(const std::string& text) {
    prompt_ = text;
    interrupted_ = false;
    el_resize(edit_);
    // Before the prompt shows: what is typed from then on is the editor's to echo.
    el_set(edit_, EL_PREP_TERM, 1);
    int count = 0;
    const char* line = el_gets(edit_, &count);
    std::string read(line == nullptr || count <= 0 ? "" : std::string(line, static_cast<size_t>(count)));
    if (interrupted_) {
      std::fputs("^C\n", stdout);
      return {.kind = Line::Kind::kInterrupted, .text = std::move(read)};
    }
    if (read.empty()) {
      std::fputc('\n', stdout);
      return {.kind = Line::Kind::kEnd};
    }
    if (read.ends_with('\n')) read.pop_back();
    if (read.find_first_not_of(" \t") != std::string::npos) remember(read);
    return {.kind = Line::Kind::kText, .text = std::move(read)};
  }

 private:
  static Impl* self(EditLine* edit) {
    void* data = nullptr;
    el_get(edit, EL_CLIENTDATA, &data);
    return static_cast<Impl*>(data);
  }
  static char* prompt(EditLine* edit) { return self(edit)->prompt_.data(); }
  static unsigned char interrupt(EditLine* edit, wint_t) {
    self(edit)->interrupted_ = true;
    return CC_NEWLINE;
  }

  void remember(const std::string& line) {
    HistEvent event;
    history(history_, &event, H_ENTER, line.c_str());
    if (file_.empty()) return;
    const mode_t before = ::umask(077);
    std::error_code ignored;
    std::filesystem::create_directories(file_.parent_path(), ignored);
    history(history_, &event, H_SAVE, file_.c_str());
    ::umask(before);
  }

  std::filesystem::path file_;
  History* history_;
  EditLine* edit_;
  std::string prompt_;
  bool interrupted_ = false;
};

LineEditor::LineEditor(std::filesystem::path history_file) {
  choose_utf8();
  impl_ = std::make_unique<Impl>(std::move(history_file));
}
LineEditor::~LineEditor() = default;

Line LineEditor::read(const std::string& prompt) { return impl_->read(prompt); }

}  // namespace quire::apps
