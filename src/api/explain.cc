#include "api/explain.h"

#include <cmath>

#include "api/json_writer.h"

namespace quire::api {
namespace {

// To thousandths, which is more than clocks can tell.
double rounded(double value) { return std::round(value * 1e3) / 1e3; }

void write_group(JsonWriter& json, const GroupReport& group) {
  json.begin_object().key("group").value(group.group).key("kind").value(group.kind);
  json.key("hit_tokens").value(group.hit_tokens).key("misses").begin_array();
  for (const CacheMiss& miss : group.misses) {
    json.begin_object().key("from").value(miss.from).key("to").value(miss.to);
    json.key("reason").value(name_of(miss.reason));
    if (miss.evicted_seconds_ago) json.key("evicted_seconds_ago").value(rounded(*miss.evicted_seconds_ago));
    json.end_object();
  }
  json.end_array().end_object();
}

}  // namespace

std::string explain_json(const RequestTimes& times, const CacheReport& report) {
  std::string out;
  JsonWriter json(out);
  json.begin_object();
  json.key("queue_ms").value(rounded(times.queue * 1e3));
  json.key("prefill_ms").value(rounded(times.prefill * 1e3));
  json.key("decode_ms").value(rounded(times.decode * 1e3));
  json.key("minimum_reuse_tokens").value(report.minimum_reuse_tokens);
  json.key("groups").begin_array();
  for (const GroupReport& group : report.groups) write_group(json, group);
  json.end_array().end_object();
  return out;
}

}  // namespace quire::api
