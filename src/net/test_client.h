// A client socket for tests of the server. For tests alone.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <string_view>
#include <utility>

namespace quire::net {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

// A blocking client socket that gives up after some seconds.
class TestClient {
 public:
  explicit TestClient(uint16_t port, int receive_buffer = 0) : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    if (receive_buffer > 0) ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof(receive_buffer));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = ::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  }
  ~TestClient() { close(); }
  TestClient(const TestClient&) = delete;
  TestClient& operator=(const TestClient&) = delete;

  bool connected() const { return connected_; }
  void close() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }
  bool send(std::string_view data) {
    while (!data.empty()) {
      const ssize_t n = ::send(fd_, data.data(), data.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      data.remove_prefix(static_cast<size_t>(n));
    }
    return true;
  }
  // Reads until `text` has come (and returns all so far), the connection ends, or `patience` is over.
  std::string read_until(std::string_view text, Clock::duration patience = 10s) {
    const auto end = Clock::now() + patience;
    while (received_.find(text) == std::string::npos && Clock::now() < end && read_some(end)) {
    }
    return received_;
  }
  std::string read_all(Clock::duration patience = 10s) {
    const auto end = Clock::now() + patience;
    while (Clock::now() < end && read_some(end)) {
    }
    return received_;
  }
  // The server has closed the connection.
  bool ended() const { return ended_; }
  void forget() { received_.clear(); }

 private:
  bool read_some(Clock::time_point end) {
    pollfd waiting{.fd = fd_, .events = POLLIN, .revents = 0};
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()).count();
    if (::poll(&waiting, 1, static_cast<int>(std::max<long long>(left, 0))) <= 0) return false;
    char data[65536];
    const ssize_t n = ::recv(fd_, data, sizeof(data), 0);
    ended_ = n <= 0;
    if (ended_) return false;
    received_.append(data, static_cast<size_t>(n));
    return true;
  }

  int fd_;
  bool connected_ = false;
  bool ended_ = false;
  std::string received_;
};

}  // namespace quire::net
