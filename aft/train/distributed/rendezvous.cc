#include "aft/train/distributed/rendezvous.h"

#include <c10/util/Exception.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

namespace aft::train {
namespace {

using std::chrono::milliseconds;

/// Calls f(socket, address) for each address of rank 0 until it returns true.
/// False if none does, or if the name cannot be resolved.
template <class F>
bool for_addresses(const LaunchEnvironment& environment, int kind, const F& f) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = kind;
  if (getaddrinfo(environment.address.c_str(),
                  std::to_string(environment.port).c_str(), &hints,
                  &found) != 0)
    return false;
  bool good = false;
  for (const addrinfo* a = found; a && !good; a = a->ai_next) {
    const int fd = socket(a->ai_family, kind | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    good = fd >= 0 && f(fd, *a);
    if (fd >= 0) close(fd);
  }
  freeaddrinfo(found);
  return good;
}

/// Whether the store accepts connections. (c10d would print a warning to stderr
/// if it does not yet.)
bool listens(const LaunchEnvironment& environment) {
  return for_addresses(environment, SOCK_STREAM, [](int fd, const addrinfo& a) {
    if (connect(fd, a.ai_addr, a.ai_addrlen) == 0) return true;
    pollfd wait{fd, POLLOUT, 0};
    int error = 0;
    socklen_t length = sizeof(error);
    return errno == EINPROGRESS && poll(&wait, 1, /*ms=*/1000) == 1 &&
           getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0 &&
           error == 0;
  });
}

}  // namespace

std::string place_of(const LaunchEnvironment& environment) {
  return environment.address + ":" + std::to_string(environment.port);
}

std::string host_of(const LaunchEnvironment& environment) {
  return (environment.hosted ? "torchrun's agent (does its PyTorch version "
                               "match this LibTorch?)"
                             : "rank 0") +
         (", at " + place_of(environment)) + ",";
}

std::string reason(const std::exception& e) {
  if (const auto* error = dynamic_cast<const c10::Error*>(&e))
    return error->what_without_backtrace();
  return e.what();
}

std::string own_address(const LaunchEnvironment& environment) {
  char host[NI_MAXHOST] = "";
  // Connecting a datagram socket sends nothing; it only selects the route.
  for_addresses(environment, SOCK_DGRAM, [&](int fd, const addrinfo& a) {
    sockaddr_storage own{};
    socklen_t length = sizeof(own);
    return connect(fd, a.ai_addr, a.ai_addrlen) == 0 &&
           getsockname(fd, reinterpret_cast<sockaddr*>(&own), &length) == 0 &&
           getnameinfo(reinterpret_cast<sockaddr*>(&own), length, host,
                       sizeof(host), nullptr, 0, NI_NUMERICHOST) == 0;
  });
  return host;
}

Store meet(const LaunchEnvironment& environment, bool host,
           milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = environment.port, options.isServer = host;
  options.waitWorkers = false;
  options.timeout = std::max(timeout, milliseconds(5000));
  const auto end = std::chrono::steady_clock::now() + timeout;
  while (!host && !listens(environment)) {
    if (std::chrono::steady_clock::now() >= end)
      throw PeerError(host_of(environment) + " cannot be reached");
    std::this_thread::sleep_for(milliseconds(20));
  }
  // torchrun's agent keeps its store across restarts, so keys are prefixed with
  // the restart count. A store run by rank 0 is always new, and agents that do
  // not share a store may differ in their counts.
  const std::string attempt =
      environment.hosted ? "aft/" + std::to_string(environment.restarts)
                         : "aft";
  try {
    return c10::make_intrusive<c10d::PrefixStore>(
        attempt,
        c10::make_intrusive<c10d::TCPStore>(environment.address, options));
  } catch (const std::exception& e) {
    if (host)
      throw std::runtime_error("rank 0 cannot listen at " +
                               place_of(environment) + ": " + reason(e));
    throw PeerError(host_of(environment) + " cannot be reached: " + reason(e));
  }
}

}  // namespace aft::train
