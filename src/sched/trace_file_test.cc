#include "sched/trace_file.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <fstream>

namespace quire::sched {
namespace {

std::string error_of(std::string_view line) {
  const auto request = parse_trace_line(line, 7);
  return request ? "accepted" : request.error().message;
}

std::vector<TokenId> prompt_of(std::string_view line, uint64_t number = 1) {
  const auto request = parse_trace_line(line, number);
  EXPECT_TRUE(request) << request.error().message;
  return request ? expand_tokens(request->prompt, 1 << 20) : std::vector<TokenId>{};
}

TEST(TraceLine, HasAllFields) {
  const auto request = parse_trace_line(
      R"({"arrival": 0.25, "prompt": [5, 6, {"segment": "s", "tokens": 3}, 7, {"tokens": 2}], "output": [8, 9],
          "cache_salt": "tenant", "priority": -2})",
      1);
  ASSERT_TRUE(request) << request.error().message;
  EXPECT_EQ(request->arrival_ns, 250'000'000);
  EXPECT_EQ(count_tokens(request->prompt), 8);
  const auto prompt = expand_tokens(request->prompt, 100);
  EXPECT_EQ(prompt[0], 5);
  EXPECT_EQ(prompt[1], 6);
  EXPECT_EQ(prompt[5], 7);
  EXPECT_EQ(expand_tokens(request->output, 100), (std::vector<TokenId>{8, 9}));
  EXPECT_EQ(request->cache_salt, "tenant");
  EXPECT_EQ(request->priority, -2);
}

TEST(TraceLine, SegmentsOfOneNameShareTheirBeginning) {
  const auto longer = prompt_of(R"({"arrival": 0, "prompt": [{"segment": "a", "tokens": 30}], "output": 1})", 1);
  const auto shorter = prompt_of(R"({"arrival": 0, "prompt": [{"segment": "a", "tokens": 10}], "output": 1})", 2);
  const auto other = prompt_of(R"({"arrival": 0, "prompt": [{"segment": "b", "tokens": 10}], "output": 1})", 2);
  EXPECT_TRUE(std::equal(shorter.begin(), shorter.end(), longer.begin()));
  EXPECT_NE(other, shorter);
}

TEST(TraceLine, TokensWithoutANameAreItsOwn) {
  constexpr const char* kLine = R"({"arrival": 0, "prompt": [{"tokens": 9}, {"tokens": 9}], "output": 9})";
  const auto first = prompt_of(kLine, 1);
  EXPECT_EQ(prompt_of(kLine, 1), first);
  EXPECT_NE(prompt_of(kLine, 2), first);
  EXPECT_NE(std::vector(first.begin(), first.begin() + 9), std::vector(first.begin() + 9, first.end()));
  const auto short_form = parse_trace_line(R"({"arrival": 0, "prompt": 9, "output": 9})", 1);
  ASSERT_TRUE(short_form);
  EXPECT_NE(expand_tokens(short_form->prompt, 9), expand_tokens(short_form->output, 9));
}

TEST(TraceLine, SaysWhatIsWrong) {
  const struct {
    const char* line;
    const char* message;
  } cases[] = {
      {"", "malformed JSON at byte 1"},
      {"{", "malformed JSON"},
      {R"({"arrival": 1e999, "prompt": 1, "output": 1})", "out of range"},
      {R"({"arrival": 0, "arrival": 9, "prompt": 1, "output": 1})", "\"arrival\" stands twice"},
      {R"({"arrival": 0, "prompt": [[[[[1]]]]], "output": 1})", "nested"},
      {"[1]", "must be a JSON object"},
      {"{}", "\"arrival\" is missing"},
      {R"({"arrival": 0, "output": 1})", "\"prompt\" is missing"},
      {R"({"arrival": 0, "prompt": 1})", "\"output\" is missing"},
      {R"({"arrival": "0", "prompt": 1, "output": 1})", "\"arrival\" must be a number of seconds"},
      {R"({"arrival": -1, "prompt": 1, "output": 1})", "\"arrival\" must be"},
      {R"({"arrival": 1e300, "prompt": 1, "output": 1})", "\"arrival\" must be"},
      {R"({"arrival": 0, "prompt": [], "output": 1})", "\"prompt\" must be a number of tokens, or a list"},
      {R"({"arrival": 0, "prompt": 0, "output": 1})", "must be 1 to 1099511627776"},
      {R"({"arrival": 0, "prompt": 1.5, "output": 1})", "\"prompt\" must be a number of tokens"},
      {R"({"arrival": 0, "prompt": "x", "output": 1})", "\"prompt\" must be a number of tokens"},
      {R"({"arrival": 0, "prompt": [-1], "output": 1})", "token ids are 0 to 2147483647, not -1"},
      {R"({"arrival": 0, "prompt": [2147483648], "output": 1})", "not 2147483648"},
      {R"({"arrival": 0, "prompt": [18446744073709551615], "output": 1})", "not 18446744073709551615"},
      {R"({"arrival": 0, "prompt": [null], "output": 1})", "must hold token ids"},
      {R"({"arrival": 0, "prompt": [[1]], "output": 1})", "must hold token ids"},
      {R"({"arrival": 0, "prompt": [{"segment": "a"}], "output": 1})", "must hold token ids"},
      {R"({"arrival": 0, "prompt": [{"tokens": 4, "x": 1}], "output": 1})", "must hold token ids"},
      {R"({"arrival": 0, "prompt": [{"segment": 3, "tokens": 4}], "output": 1})", "name must be a string"},
      {R"({"arrival": 0, "prompt": [{"tokens": 1e3}], "output": 1})", "must be 1 to"},
      {R"({"arrival": 0, "prompt": 1, "output": 18446744073709551615})", "must be 1 to"},
      {R"({"arrival": 0, "prompt": 1, "output": 1, "cache_salt": 3})", "\"cache_salt\" must be a string"},
      {R"({"arrival": 0, "prompt": 1, "output": 1, "priority": 18446744073709551615})", "\"priority\" must be"},
      {R"({"arrival": 0, "prompt": 1, "output": 1, "model": "x"})", "unknown key \"model\""},
  };
  for (const auto& c : cases) {
    EXPECT_NE(error_of(c.line).find(c.message), std::string::npos) << c.line << ": " << error_of(c.line);
    EXPECT_TRUE(error_of(c.line).starts_with("line 7: ")) << error_of(c.line);
  }
}

TEST(TraceLine, SurvivesAnyBytes) {
  EXPECT_TRUE(rc::check([](const std::string& noise) {
    const auto request = parse_trace_line(noise, 1);
    RC_ASSERT(!request);
    std::string line = R"({"arrival": 0, "prompt": [1, {"segment": "a", "tokens": 3}], "output": 1})";
    line[*rc::gen::inRange<size_t>(0, line.size())] = static_cast<char>(*rc::gen::inRange(0, 256));
    const auto changed = parse_trace_line(line, 1);
    RC_ASSERT(changed || changed.error().message.starts_with("line 1: "));
  }));
  EXPECT_NE(error_of(std::string(100'000, '[')).find("nested"), std::string::npos);
}

class TraceFiles : public testing::Test {
 protected:
  void SetUp() override { path_ = std::filesystem::path(testing::TempDir()) / "trace_file_test.jsonl"; }
  void TearDown() override { std::filesystem::remove(path_); }

  // The arrivals in nanoseconds, then the error if there is one.
  std::string read(std::string_view text) {
    std::ofstream(path_, std::ios::binary) << text;
    auto file = TraceFile::open(path_);
    if (!file) return file.error().message;
    std::string told;
    while (true) {
      auto request = file->next();
      if (!request) return told + request.error().message;
      if (!*request) return told;
      told += fmt::format("{} ", (*request)->arrival_ns);
    }
  }

  std::filesystem::path path_;
};

constexpr std::string_view kFirst = "{\"arrival\": 1e-9, \"prompt\": 1, \"output\": 1}\n";

TEST_F(TraceFiles, AreReadLineByLine) {
  EXPECT_EQ(read(""), "");
  EXPECT_EQ(read(kFirst), "1 ");
  EXPECT_EQ(read(std::string(kFirst) + R"({"arrival": 2e-9, "prompt": 1, "output": 1})"), "1 2 ");
  // Lines across the reader's buffer.
  const std::string padded = std::string(kFirst.substr(0, kFirst.size() - 1)) + std::string(50'000, ' ') + "\n";
  EXPECT_EQ(read(padded + padded + padded), "1 1 1 ");
}

TEST_F(TraceFiles, NameTheLineThatIsWrong) {
  EXPECT_EQ(read(std::string(kFirst) + "\n"), "1 line 2: malformed JSON at byte 1");
  EXPECT_EQ(read(std::string(kFirst) + R"({"arrival": 0, "prompt": 1, "output": 1})"),
            "1 line 2: it arrives before line 1; lines must be in the order of their arrival");
  EXPECT_EQ(read(std::string(kFirst) + std::string(kMaxTraceLine + 1, ' ')),
            "1 line 2: it is longer than 16777216 bytes");
}

TEST_F(TraceFiles, ThatCannotBeReadAreNamed) {
  const auto missing = TraceFile::open("no/such/trace.jsonl");
  ASSERT_FALSE(missing);
  EXPECT_NE(missing.error().message.find("no/such/trace.jsonl"), std::string::npos);
  auto folder = TraceFile::open(testing::TempDir());
  ASSERT_TRUE(folder);
  EXPECT_EQ(folder->next().error().kind, ErrorKind::kNotFound);
}

}  // namespace
}  // namespace quire::sched
