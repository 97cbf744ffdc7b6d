// Ranks of one group as threads of one process.
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <thread>
#include <vector>

#include "aft/train/distributed/group.h"

namespace aft::train {

/// A socket bound to `port` on the loopback interface. If port is 0, chooses a
/// free port and stores it in `port`.
inline int bound(uint16_t& port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
  EXPECT_EQ(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)), 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  socklen_t length = sizeof(address);
  auto* any = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(bind(fd, any, length), 0);
  EXPECT_EQ(getsockname(fd, any, &length), 0);
  port = ntohs(address.sin_port);
  return fd;
}

/// A port that the system assigns to no other process during the lifetime of
/// this one, and on which a process can still listen.
inline uint16_t free_port() {
  uint16_t port = 0;
  bound(port);
  return port;
}

/// Runs each rank in a thread; an exception fails the test.
inline void in_ranks(
    int N, double timeout, const std::function<void(Group&)>& body,
    const std::function<void(const std::string&)>& on_stuck = {}) {
  LaunchEnvironment environment;
  environment.size = N, environment.port = free_port();
  std::vector<std::thread> threads;
  for (int r = 0; r < N; ++r) {
    environment.rank = environment.local_rank = r;
    threads.emplace_back([environment, timeout, &body, &on_stuck] {
      try {
        Group group(environment, timeout, on_stuck);
        body(group);
      } catch (const std::exception& e) {
        ADD_FAILURE() << "rank " << environment.rank << ": " << e.what();
      }
    });
  }
  for (std::thread& t : threads) t.join();
}

}  // namespace aft::train
