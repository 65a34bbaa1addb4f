// quire verify: asks a server again for an answer that was saved, and says whether it is the same.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/utf8.h"
#include "commands.h"
#include "read_file.h"
#include "server_access.h"

namespace quire::apps {
namespace {

// Its members stay in the order in which they came, which a chat template may show.
using json = nlohmann::ordered_json;

constexpr size_t kLargestFile = 64 << 20;
constexpr size_t kShown = 60;  // bytes of a value that differs

constexpr int kDeepest = 128;  // as the server takes

// What may differ between answers to equal requests: names and times of the exchange, and what the cache did for it.
constexpr std::array<std::string_view, 7> kOfTheExchange = {"id",           "created", "created_at", "model",
                                                            "completed_at", "usage",   "quire"};

// Whether the member is of the answer itself, or the name of one of its items: what stands deeper is the model's.
bool is_of_the_exchange(std::string_view place, std::string_view key) {
  if (place.empty()) return std::ranges::find(kOfTheExchange, key) != kOfTheExchange.end();
  const bool item =
      (place.starts_with("output/") || place.starts_with("content/")) && place.find('/') == place.rfind('/');
  return item && key == "id";
}

// Discarded where it is no JSON, or nested too deeply.
json parse_bounded(const std::string& text) {
  bool deep = false;
  const auto within = [&](int depth, json::parse_event_t, json&) {
    deep = deep || depth > kDeepest;
    return !deep;
  };
  json value = json::parse(text, within, false);
  return deep ? json(json::value_t::discarded) : value;
}

Result<json> read_object(const std::filesystem::path& path, std::string_view what) {
  auto text = read_file(path, kLargestFile);
  if (!text) return std::unexpected(text.error());
  json value = parse_bounded(*text);
  if (value.is_object()) return value;
  const bool stream = text->starts_with("data:") || text->starts_with("event:");
  return fail(ErrorKind::kInvalidRequest,
              fmt::format("{}: the {} must be a JSON object{}", path.string(), what,
                          stream ? "; a stream cannot be verified, save the answer without \"stream\"" : ""));
}

std::string_view text_of(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? std::string_view(found->get_ref<const std::string&>())
                                                     : std::string_view();
}

// The endpoint that gives such answers.
Result<std::string> endpoint_of(const json& answer, const std::filesystem::path& path) {
  const std::string_view object = text_of(answer, "object");
  if (object == "text_completion") return "/v1/completions";
  if (object == "chat.completion") return "/v1/chat/completions";
  if (object == "response") return "/v1/responses";
  if (text_of(answer, "type") == "message") return "/v1/messages";
  if (object == "list" && answer.contains("data")) return "/v1/embeddings";
  return fail(ErrorKind::kInvalidRequest,
              fmt::format("{}: this is no answer of /v1/completions, /v1/chat/completions, /v1/responses, /v1/messages "
                          "or /v1/embeddings",
                          path.string()));
}

std::string shown(const json& value) {
  std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  if (text.size() > kShown) text = text.substr(0, kShown) + "...";
  return one_line(text);
}

// Where two texts part, with what stands there.
std::string parting(const std::string& saved, const std::string& now) {
  const auto at = static_cast<size_t>(std::ranges::mismatch(saved, now).in1 - saved.begin());
  return fmt::format(", byte {}: {} instead of {}", at, shown(now.substr(std::min(at, now.size()))),
                     shown(saved.substr(at)));
}

// Says where the answers differ first, "choices/0/text, byte 3: ...", if they do.
std::optional<std::string> difference(const json& saved, const json& now, const std::string& place) {
  const auto inner = [&](const std::string& key) { return place.empty() ? key : place + "/" + key; };
  if (saved.is_object() && now.is_object()) {
    for (const auto& [key, value] : saved.items()) {
      if (is_of_the_exchange(place, key)) continue;
      if (!now.contains(key)) return inner(key) + " is missing";
      if (auto found = difference(value, now.at(key), inner(key))) return found;
    }
    for (const auto& [key, value] : now.items())
      if (!is_of_the_exchange(place, key) && !saved.contains(key)) return inner(key) + " was not there";
    return std::nullopt;
  }
  if (saved.is_array() && now.is_array()) {
    for (size_t i = 0; i < std::min(saved.size(), now.size()); ++i)
      if (auto found = difference(saved[i], now[i], inner(std::to_string(i)))) return found;
    if (saved.size() != now.size())
      return fmt::format("{} has {} entries instead of {}", place, now.size(), saved.size());
    return std::nullopt;
  }
  if (saved == now) return std::nullopt;
  if (saved.is_string() && now.is_string()) return place + parting(saved.get<std::string>(), now.get<std::string>());
  return fmt::format("{}: {} instead of {}", place, shown(now), shown(saved));
}

// Whether the request leaves its seed to the server, which then does not know it again.
bool lacks_a_seed(const json& request) {
  const auto temperature = request.find("temperature");
  const bool greedy = temperature != request.end() && temperature->is_number() && temperature->get<double>() == 0;
  return !greedy && !request.contains("seed");
}

Result<json> ask(const VerifyFlags& flags, const std::string& endpoint, const json& request) {
  auto client = client_of(flags.server);
  if (!client) return std::unexpected(client.error());
  auto headers = key_header();
  if (!headers) return std::unexpected(headers.error());
  const auto answer = (*client)->fetch(
      {.method = "POST", .target = endpoint, .headers = std::move(*headers), .body = request.dump(), .done = {}});
  if (!answer) return std::unexpected(answer.error());
  if (answer->status != 200)
    return fail(ErrorKind::kInvalidRequest, fmt::format("{}: {}", endpoint, refusal_text(*answer)));
  json body = parse_bounded(answer->body);
  if (!body.is_object())
    return fail(ErrorKind::kInvalidRequest,
                fmt::format("{} answers no JSON object: {}", endpoint, in_quotes(answer->body)));
  return body;
}

}  // namespace

int verify(const VerifyFlags& flags) {
  auto request = read_object(flags.request, "request");
  if (!request) return report(request.error());
  const auto saved = read_object(flags.response, "response");
  if (!saved) return report(saved.error());
  const auto endpoint = endpoint_of(*saved, flags.response);
  if (!endpoint) return report(endpoint.error());
  request->erase("stream");
  request->erase("stream_options");
  if (flags.seed) (*request)["seed"] = *flags.seed;
  const auto now = ask(flags, *endpoint, *request);
  if (!now) return report(now.error());
  const std::string_view was = text_of(*saved, "system_fingerprint"), is = text_of(*now, "system_fingerprint");
  if (was != is) {
    fmt::print("another model or contract: its fingerprint is {}, the saved answer's {}\n", shown(is), shown(was));
    return 1;
  }
  const auto found = difference(*saved, *now, "");
  if (!found) {
    fmt::print("the same answer, of {}\n", is.empty() ? *endpoint : std::string(is));
    return 0;
  }
  fmt::print("another answer: {}\n", *found);
  if (lacks_a_seed(*request))
    fmt::print("the request has no seed: give the one of the answer's header X-Quire-Seed as --seed\n");
  return 1;
}

}  // namespace quire::apps
