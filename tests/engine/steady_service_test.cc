// The same through the server: the sinks of the API hand the network thread its tokens without allocating.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "api/service.h"
#include "net/server.h"
#include "net/test_client.h"
#include "quire/engine.h"
#include "support/allocation_count.h"
#include "support/core_harness.h"

namespace quire::test {
namespace {

constexpr uint64_t kAnswers = 4;
// Tokens of each answer when the count begins and ends; long before the answers end, as this thread may have to wait
// for a processor.
constexpr uint64_t kFrom = 100, kTo = 200;

std::string stream_request() {
  const std::string body = R"({"prompt":[5,6,7],"n":4,"seed":3,"stream":true,"ignore_eos":true,"max_tokens":440})";
  return "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\n\r\n" + body;
}

// Threads that are not the engine's leave themselves out; the text threads have nothing to do while tokens flow.
TEST(SteadyService, StreamsToClientsWithoutAllocatingOnTheEnginesThreads) {
  leave_out_this_thread();
  auto engine =
      Engine::load({.model = golden_dir() + "/llama_untied", .kv_cache_bytes = size_t{16} << 20, .threads = 2});
  ASSERT_TRUE(engine);
  auto server = net::Server::listen({.port = 0, .stop_on_signals = false});
  ASSERT_TRUE(server);
  api::Service service({.served_model_names = {"m"}});
  std::thread io([&] {
    leave_out_this_thread();
    (*server)->run(service.handler());
  });
  service.open(api::backend_of(**engine));

  net::TestClient client((*server)->port());
  ASSERT_TRUE(client.send(stream_request()));
  const auto all_have = [&](uint64_t tokens) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while ((*engine)->stats().generation_tokens < kAnswers * tokens && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::yield();
    }
    return (*engine)->stats().running == static_cast<int>(kAnswers);
  };
  EXPECT_TRUE(all_have(kFrom));
  start_count();
  EXPECT_TRUE(all_have(kTo));
  stop_count();
  EXPECT_EQ(counted_allocations(), 0);
  EXPECT_NE(client.read_until("[DONE]").find("[DONE]"), std::string::npos);

  (*server)->stop();
  io.join();
  service.close();
  engine->reset();
}

}  // namespace
}  // namespace quire::test
