// Times the masks of constrained answers: mask_bench MODEL.gguf. For each grammar an answer that follows it is spelt by
// the model's own tokenizer, and the mask before every token is timed, in CPU time.
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <string>
#include <vector>

#include "text/grammar.h"
#include "text/load.h"

namespace quire::text {
namespace {

double microseconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) * 1e-3;
}

// Of all threads: the compiler has some of its own.
double process_seconds() {
  timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

template <class T>
T must(Result<T> result) {
  if (result) return std::move(*result);
  fmt::print(stderr, "{}\n", result.error().message);
  std::exit(1);
}

struct Case {
  const char* name;
  GrammarKind kind;
  std::string text;
  std::string answer;
};

std::vector<Case> cases() {
  const std::string schema = R"({"type":"array","items":{"type":"object","properties":{
    "id":{"type":"integer"},"title":{"type":"string"},"kind":{"enum":["bug","feature","question"]},
    "labels":{"type":"array","items":{"type":"string"}},"done":{"type":"boolean"},
    "by":{"type":"object","properties":{"name":{"type":"string"},"mail":{"type":"string"}},"required":["name","mail"],
    "additionalProperties":false}},"required":["id","title","kind","labels","done","by"],"additionalProperties":false}})";
  const char* kinds[] = {"bug", "feature", "question"};
  std::string records, free;
  for (int i = 0; i < 30; ++i) {
    records += fmt::format(
        R"({}{{"id":{},"title":"The {}th thing that went wrong on a Tuesday, at length","kind":"{}",)"
        R"("labels":["parser","needs a closer look"],"done":{},"by":{{"name":"Ada Lovelace","mail":"ada{}@example.org"}}}})",
        i == 0 ? "" : ", ", i * 37, i, kinds[i % 3], i % 2 == 0, i);
    free += fmt::format(R"({}"key {}": [{}.5, null, {{"deep": "some words and \"more\" of them"}}])",
                        i == 0 ? "" : ", ", i, i);
  }
  std::string lines, sum = "1";
  for (int i = 0; i < 60; ++i) {
    lines += fmt::format("2026-11-{:02} {:02}:00 level={} the door number {} was opened\n", 1 + i % 28, i % 24,
                         i % 2 == 0 ? "info" : "warn", i);
    sum += fmt::format(" + ({} * x{} - 7)", i * 13, i);
  }
  return {
      {"JSON schema", GrammarKind::kJsonSchema, schema, "[" + records + "]"},
      {"any JSON object", GrammarKind::kJsonSchema, R"({"type":"object"})", "{" + free + "}"},
      {"regex", GrammarKind::kRegex, R"((\d{4}-\d{2}-\d{2} \d{2}:\d{2} level=(info|warn|error) [a-z0-9 ]+\n)+)", lines},
      {"Lark", GrammarKind::kLark,
       "start: product ((\" + \" | \" - \") product)*\nproduct: atom (\" * \" atom)*\n"
       "atom: /[0-9]+/ | /[a-z][a-z0-9]*/ | \"(\" start \")\"",
       sum}};
}

void time_case(const Case& c, const Tokenizer& tokenizer, const GrammarCompiler& compiler) {
  const double begin = process_seconds();
  const auto constraint = must(compiler.compile({c.kind, c.text, c.name}));
  const double compiled = process_seconds() - begin;
  const auto matcher = must(constraint->start());
  std::vector<uint32_t> mask(mask_words(constraint->vocab_size()));
  std::vector<double> times;
  for (const TokenId token : must(tokenizer.encode(c.answer, {.add_special = false}))) {
    const double start = microseconds();
    const Result<void> filled = matcher->fill(mask);
    const Result<bool> accepted = matcher->accept(token);
    times.push_back(microseconds() - start);
    if (!filled) must<bool>(std::unexpected(filled.error()));
    must(accepted);
  }
  std::ranges::sort(times);
  const auto at = [&](double part) { return times[static_cast<size_t>(part * static_cast<double>(times.size() - 1))]; };
  double sum = 0;
  for (const double t : times) sum += t;
  fmt::print(
      "{:16} {:5} tokens, compiled in {:5.1f} ms; us a token: p50 {:6.1f}, mean {:6.1f}, p99 {:7.1f}, max {:7.1f}\n",
      c.name, times.size(), compiled * 1e3, at(0.5), sum / static_cast<double>(times.size()), at(0.99), at(1));
}

int run(const std::string& path) {
  const auto file = must(weights::GgufFile::open(path));
  const auto text = must(load_text(*file));
  if (!text) {
    fmt::print(stderr, "{} has no tokenizer\n", path);
    return 1;
  }
  const Tokenizer& tokenizer = text->tokenizer;
  const double begin = process_seconds();
  const GrammarCompiler compiler(tokenizer, tokenizer.end_tokens(), tokenizer.vocab_size());
  must(compiler.compile({GrammarKind::kRegex, "a", "warm-up"}));
  fmt::print("{} tokens, trie built in {:.2f} s\n", tokenizer.vocab_size(), process_seconds() - begin);
  for (const Case& c : cases()) time_case(c, tokenizer, compiler);
  return 0;
}

}  // namespace
}  // namespace quire::text

int main(int argc, char** argv) {
  if (argc != 2) {
    fmt::print(stderr, "mask_bench MODEL.gguf\n");
    return 2;
  }
  return quire::text::run(argv[1]);
}
