#include "sched/trace_file.h"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/strict_json.h"

namespace quire::sched {
namespace {

using nlohmann::json;

constexpr int64_t kMostTokens = int64_t{1} << 40;  // of a piece
constexpr double kMostSeconds = 3e9;
constexpr size_t kMostSaltBytes = 4096;
constexpr int kMostDepth = 4;

// Keys of named segments and of tokens that only one request has never meet but by chance.
uint64_t key_of_name(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325U;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  return hash;
}

uint64_t own_key(uint64_t line, size_t place) { return ~key_of_name(fmt::format("{} {}", line, place)); }

class Line {
 public:
  explicit Line(uint64_t number) : number_(number) {}

  Result<TraceRequest> parse(std::string_view text) {
    if (auto strict = check_strict_json(text, kMostDepth); !strict) return wrong(strict.error().message);
    const json object = json::parse(text);
    if (!object.is_object()) return wrong("it must be a JSON object");
    TraceRequest request;
    bool has_arrival = false, has_prompt = false, has_output = false;
    for (const auto& [key, value] : object.items()) {
      Result<void> ok;
      if (key == "arrival") {
        ok = arrival(value, request);
        has_arrival = true;
      } else if (key == "prompt") {
        ok = pieces(key, value, request.prompt);
        has_prompt = true;
      } else if (key == "output") {
        ok = pieces(key, value, request.output);
        has_output = true;
      } else if (key == "cache_salt") {
        ok = salt(value, request);
      } else if (key == "priority") {
        ok = priority(value, request);
      } else {
        return wrong(fmt::format("unknown key \"{}\"; known are arrival, prompt, output, cache_salt, priority", key));
      }
      if (!ok) return std::unexpected(ok.error());
    }
    if (!has_arrival) return wrong("\"arrival\" is missing");
    if (!has_prompt) return wrong("\"prompt\" is missing");
    if (!has_output) return wrong("\"output\" is missing");
    return request;
  }

 private:
  std::unexpected<Error> wrong(std::string_view what) const {
    return fail(ErrorKind::kInvalidRequest, fmt::format("line {}: {}", number_, what));
  }

  Result<void> arrival(const json& value, TraceRequest& request) const {
    const double seconds = value.is_number() ? value.get<double>() : -1;
    if (!(seconds >= 0 && seconds <= kMostSeconds))
      return wrong(fmt::format("\"arrival\" must be a number of seconds, 0 to {:.0f}", kMostSeconds));
    request.arrival_ns = std::llround(seconds * 1e9);
    return {};
  }

  // A number of tokens that no other request has, or a list of ids and segments.
  Result<void> pieces(const std::string& key, const json& value, std::vector<TokenPiece>& out) const {
    const size_t first_place = key == "output" ? size_t{1} << 32 : 0;
    if (value.is_number_integer()) return segment(key, value, own_key(number_, first_place), out);
    if (!value.is_array() || value.empty())
      return wrong(fmt::format("\"{}\" must be a number of tokens, or a list of token ids and segments", key));
    for (size_t i = 0; i < value.size(); ++i) {
      const json& piece = value[i];
      if (piece.is_number_integer()) {
        if (piece < 0 || piece > INT32_MAX)
          return wrong(fmt::format("\"{}\": token ids are 0 to {}, not {}", key, INT32_MAX, piece.dump()));
        if (out.empty() || !std::holds_alternative<std::vector<TokenId>>(out.back()))
          out.emplace_back(std::vector<TokenId>{});
        std::get<std::vector<TokenId>>(out.back()).push_back(piece.get<TokenId>());
        continue;
      }
      if (auto ok = object_segment(key, piece, own_key(number_, first_place + i), out); !ok) return ok;
    }
    return {};
  }

  Result<void> object_segment(const std::string& key, const json& piece, uint64_t own,
                              std::vector<TokenPiece>& out) const {
    const bool named = piece.is_object() && piece.contains("segment");
    if (!piece.is_object() || !piece.contains("tokens") || piece.size() != (named ? 2 : 1))
      return wrong(
          fmt::format("\"{}\" must hold token ids, {{\"tokens\": N}} and {{\"segment\": NAME, \"tokens\": N}}", key));
    if (!named) return segment(key, piece["tokens"], own, out);
    if (!piece["segment"].is_string()) return wrong(fmt::format("\"{}\": a segment's name must be a string", key));
    return segment(key, piece["tokens"], key_of_name(piece["segment"].get_ref<const std::string&>()), out);
  }

  Result<void> segment(const std::string& key, const json& tokens, uint64_t segment_key,
                       std::vector<TokenPiece>& out) const {
    if (!tokens.is_number_integer() || tokens < 1 || tokens > kMostTokens)
      return wrong(fmt::format("\"{}\": a number of tokens must be 1 to {}", key, kMostTokens));
    out.emplace_back(Segment{segment_key, tokens.get<int64_t>()});
    return {};
  }

  Result<void> salt(const json& value, TraceRequest& request) const {
    if (!value.is_string() || value.get_ref<const std::string&>().size() > kMostSaltBytes)
      return wrong(fmt::format("\"cache_salt\" must be a string of at most {} bytes", kMostSaltBytes));
    request.cache_salt = value.get<std::string>();
    return {};
  }

  Result<void> priority(const json& value, TraceRequest& request) const {
    const double number = value.is_number_integer() ? value.get<double>() : NAN;
    if (!(number >= INT32_MIN && number <= INT32_MAX)) return wrong("\"priority\" must be an integer of 32 bits");
    request.priority = value.get<int>();
    return {};
  }

  uint64_t number_;
};

}  // namespace

Result<TraceRequest> parse_trace_line(std::string_view line, uint64_t number) { return Line(number).parse(line); }

struct TraceFile::Reader {
  explicit Reader(std::filesystem::path file_path) : path(std::move(file_path)) {}
  ~Reader() {
    if (file != nullptr) std::fclose(file);
  }

  // False at the end of the file.
  Result<bool> next_line() {
    line.clear();
    while (true) {
      if (begin == end) {
        begin = 0;
        end = std::fread(buffer.data(), 1, buffer.size(), file);
        if (end == 0 && std::ferror(file) != 0)
          return fail(ErrorKind::kNotFound, fmt::format("{}: {}", path.string(), std::strerror(errno)));
        if (end == 0) return !line.empty();
      }
      const char* start = buffer.data() + begin;
      const auto* newline = static_cast<const char*>(std::memchr(start, '\n', end - begin));
      const size_t length = newline == nullptr ? end - begin : static_cast<size_t>(newline - start);
      if (line.size() + length > kMaxTraceLine)
        return fail(ErrorKind::kInvalidRequest,
                    fmt::format("line {}: it is longer than {} bytes", number + 1, kMaxTraceLine));
      line.append(start, length);
      begin += length + (newline == nullptr ? 0 : 1);
      if (newline != nullptr) return true;
    }
  }

  std::filesystem::path path;
  std::FILE* file = nullptr;
  std::array<char, 1 << 16> buffer;
  size_t begin = 0, end = 0;  // of what is in the buffer and not taken yet
  std::string line;
  uint64_t number = 0;
  int64_t last_arrival_ns = 0;
};

TraceFile::TraceFile(std::unique_ptr<Reader> reader) : reader_(std::move(reader)) {}
TraceFile::TraceFile(TraceFile&&) noexcept = default;
TraceFile::~TraceFile() = default;

Result<TraceFile> TraceFile::open(const std::filesystem::path& path) {
  auto reader = std::make_unique<Reader>(path);
  reader->file = std::fopen(path.c_str(), "rb");
  if (reader->file == nullptr)
    return fail(ErrorKind::kNotFound, fmt::format("trace {}: {}", path.string(), std::strerror(errno)));
  return TraceFile(std::move(reader));
}

Result<std::optional<TraceRequest>> TraceFile::next() {
  auto read = reader_->next_line();
  if (!read) return std::unexpected(read.error());
  if (!*read) return std::nullopt;
  auto request = parse_trace_line(reader_->line, ++reader_->number);
  if (!request) return std::unexpected(request.error());
  if (request->arrival_ns < reader_->last_arrival_ns)
    return fail(ErrorKind::kInvalidRequest,
                fmt::format("line {}: it arrives before line {}; lines must be in the order of their arrival",
                            reader_->number, reader_->number - 1));
  reader_->last_arrival_ns = request->arrival_ns;
  return std::optional(std::move(*request));
}

}  // namespace quire::sched
