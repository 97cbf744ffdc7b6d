// Rendezvous, exchanges, and failures of peers. Ranks are threads here;
// tests/cli/peer_test.py kills processes.
#include "aft/train/distributed/group.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <future>
#include <thread>

#include "aft/train/distributed/heartbeat.h"
#include "tests/train/ranks.h"

namespace aft::train {
namespace {

using std::chrono::steady_clock;

double seconds_since(steady_clock::time_point t) {
  return std::chrono::duration<double>(steady_clock::now() - t).count();
}

TEST(Group, SumsAndBroadcasts) {
  for (const int N : {1, 2, 4}) {
    SCOPED_TRACE(N);
    in_ranks(N, 20, [N](Group& g) {
      EXPECT_EQ(g.size(), N);
      torch::Tensor x = torch::full({1000}, g.rank() + 1.0);
      g.sum(x);
      EXPECT_EQ(x[999].item<double>(), N * (N + 1) / 2);
      torch::Tensor y = torch::full({3}, g.rank(), torch::kLong);
      g.broadcast(y);
      EXPECT_EQ(y.sum().item<int64_t>(), 0);
      EXPECT_EQ(g.broadcast(g.rank() == 0 ? "from rank 0" : ""), "from rank 0");
      EXPECT_EQ(g.broadcast(std::string()), "");
      EXPECT_TRUE(g.any(g.rank() == N - 1));
      EXPECT_FALSE(g.any(false));
      g.leave();
    });
  }
}

TEST(Group, OverlappingSumsAreBitIdenticalInAllRanks) {
  std::vector<torch::Tensor> all(4);
  in_ranks(4, 20, [&](Group& g) {
    torch::manual_seed(7);  // shared by the threads: any values
    std::vector<torch::Tensor> x;
    std::vector<int64_t> numbers;
    for (int i = 0; i < 5; ++i) {
      x.push_back(torch::rand({10007}) * 1e3 - g.rank());
      numbers.push_back(g.begin_sum(x.back()));
    }
    for (const int64_t n : numbers) g.finish(n);
    all[static_cast<size_t>(g.rank())] = torch::cat(x);
    g.leave();
  });
  for (const torch::Tensor& x : all) EXPECT_TRUE(torch::equal(x, all[0]));
}

TEST(Group, FailureEndsAllRanksWithItsMessage) {
  const auto begin = steady_clock::now();
  in_ranks(3, 30, [](Group& g) {
    if (g.rank() == 1) return g.fail("out of cheese");
    torch::Tensor x = torch::ones({10});
    try {
      for (;;) g.sum(x);
    } catch (const PeerError& e) {
      EXPECT_STREQ(e.what(), "rank 1: out of cheese");
    }
  });
  EXPECT_LT(seconds_since(begin), 25);  // not the timeout
}

TEST(Group, NamesARankThatEndsEarly) {
  in_ranks(3, 30, [](Group& g) {
    if (g.rank() == 2) return;
    torch::Tensor x = torch::ones({10});
    try {
      for (;;) g.sum(x);
    } catch (const PeerError& e) {
      EXPECT_STREQ(e.what(), "rank 2: ended early");
    }
  });
}

TEST(Group, NamesARankThatIsAliveButLate) {
  in_ranks(2, 1, [](Group& g) {
    torch::Tensor x = torch::ones({10});
    g.sum(x);
    if (g.rank() == 1) {
      std::this_thread::sleep_for(std::chrono::seconds(20));
    }
    try {
      g.sum(x);
      g.sum(x);
      FAIL();
    } catch (const PeerError& e) {
      EXPECT_NE(std::string(e.what()).find(
                    "rank 1 is alive but has not joined an exchange"),
                std::string::npos)
          << e.what();
    }
  });
}

TEST(Group, WaitsForASlowRank) {
  in_ranks(2, 1, [](Group& g) {
    if (g.rank() == 1) std::this_thread::sleep_for(std::chrono::seconds(3));
    torch::Tensor x = torch::ones({10});
    g.sum(x);
    EXPECT_EQ(x[0].item<double>(), 2);
    g.leave();
  });
}

TEST(Group, NamesRanksThatNeverJoin) {
  LaunchEnvironment environment;
  environment.size = 3, environment.port = free_port();
  try {
    Group g(environment, 1);
    FAIL();
  } catch (const PeerError& e) {
    EXPECT_NE(std::string(e.what()).find("ranks 1 and 2 have not joined at "
                                         "127.0.0.1:"),
              std::string::npos)
        << e.what();
  }
  environment.rank = 1;
  try {
    Group g(environment, 1);
    FAIL();
  } catch (const PeerError& e) {
    const std::string said = e.what();
    EXPECT_EQ(said.find("rank 0, at 127.0.0.1:"), 0u) << said;
    EXPECT_NE(said.find(", cannot be reached"), std::string::npos) << said;
  }
}

/// The error of rank 0 when its group cannot form.
std::string refusal(const LaunchEnvironment& environment, double timeout) {
  try {
    Group g(environment, timeout);
  } catch (const PeerError& e) {
    return e.what();
  }
  return "no error";
}

/// Another rank, up to the point before it connects.
std::shared_ptr<Heartbeat> watch_of(LaunchEnvironment environment, int rank,
                                    int seconds) {
  environment.rank = rank;
  const std::chrono::milliseconds timeout(1000 * seconds);
  return std::make_shared<Heartbeat>(environment, timeout,
                                     meet(environment, false, timeout));
}

TEST(Group, NamesARankThatDiesWhileConnecting) {
  LaunchEnvironment environment;
  environment.size = 2, environment.port = free_port();
  const auto begin = steady_clock::now();
  std::string said;
  std::thread first([&] { said = refusal(environment, 2); });
  LaunchEnvironment other = environment;
  other.rank = 1;
  const Store store = meet(other, false, std::chrono::seconds(20));
  store->set("beat/1", {'0', ' ', '0'});  // its last heartbeat
  first.join();
  EXPECT_NE(said.find("rank 1 does not respond"), std::string::npos) << said;
  EXPECT_LT(seconds_since(begin), 15);  // ten timeouts are 20
}

/// An unrelated program that listens on a port.
int listening(uint16_t port) {
  const int fd = bound(port);
  EXPECT_EQ(listen(fd, 16), 0);
  return fd;
}

TEST(Group, NamesARankZeroThatListensWithoutResponding) {
  LaunchEnvironment environment;
  environment.rank = 1, environment.size = 2, environment.port = free_port();
  const int fd = listening(environment.port);
  const auto begin = steady_clock::now();
  const std::string said = refusal(environment, 1);
  EXPECT_EQ(said.find("rank 0, at 127.0.0.1:"), 0u) << said;
  EXPECT_NE(said.find("does not respond"), std::string::npos) << said;
  EXPECT_LT(seconds_since(begin), 15);
  // Not closed: a thread of c10d, which catches no exceptions, reads from it.
  EXPECT_GE(fd, 0);
}

TEST(Group, ReportsAFailureWhileConnecting) {
  LaunchEnvironment environment;
  environment.size = 2, environment.port = free_port();
  std::string said;
  std::thread first([&] { said = refusal(environment, 30); });
  const auto begin = steady_clock::now();
  const auto watch = watch_of(environment, 1, 20);
  watch->gather("127.0.0.1");
  watch->fail("no such interface");
  first.join();
  EXPECT_EQ(said, "rank 1: no such interface");
  EXPECT_LT(seconds_since(begin), 15);
}

/// A rank with a local failure throws that error, not PeerError.
TEST(Group, RankThatCannotListenThrowsItsOwnError) {
  LaunchEnvironment environment;
  environment.size = 2, environment.port = free_port();
  const int fd = listening(environment.port);
  const auto own_fault = [&] {
    try {
      Group(environment, 1);
    } catch (const PeerError& e) {
      return std::string("a peer's: ") + e.what();
    } catch (const std::exception& e) {
      return reason(e);
    }
    return std::string("none");
  };
  EXPECT_EQ(own_fault().find("rank 0 cannot listen at 127.0.0.1:"), 0u)
      << own_fault();
  close(fd);
}

/// A busy process that is not waiting is notified by on_stuck.
TEST(Group, BusyRankIsNotifiedOfAFailure) {
  std::promise<std::string> said;
  std::promise<void> met;
  LaunchEnvironment environment;
  environment.size = 2, environment.port = free_port();
  std::thread other([environment, &met]() mutable {
    environment.rank = 1;
    Group g(environment, 2);
    g.any(false);
    met.get_future().wait();  // and ends early
  });
  Group g(environment, 2, [&](const std::string& why) { said.set_value(why); });
  g.any(false);
  met.set_value();
  other.join();
  std::future<std::string> told = said.get_future();
  ASSERT_EQ(told.wait_for(std::chrono::seconds(30)), std::future_status::ready);
  EXPECT_EQ(told.get(), "rank 1: ended early");
  EXPECT_THROW(g.any(false), PeerError);
}

TEST(Group, BusyRankIsNotStuckWhileOthersLive) {
  in_ranks(
      2, 1,
      [](Group& g) {
        std::this_thread::sleep_for(std::chrono::seconds(5));
        g.any(false);
        g.leave();
      },
      [](const std::string& why) { ADD_FAILURE() << why; });
}

TEST(Group, RejectsDuplicateRanks) {
  LaunchEnvironment environment;
  environment.size = 2, environment.port = free_port();
  std::string said;
  std::thread first([&] { said = refusal(environment, 3); });
  const auto watch = watch_of(environment, 0, 3);
  while (!meet(environment, false, std::chrono::seconds(3))->check({"beat/0"}))
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  try {
    watch->gather("127.0.0.1");
    FAIL() << "no error";
  } catch (const PeerError& e) {
    EXPECT_NE(
        std::string(e.what()).find("rank 0 has already joined at 127.0.0.1:"),
        std::string::npos)
        << e.what();
  }
  first.join();
  EXPECT_NE(said.find("rank 1 has not joined"), std::string::npos) << said;
}

TEST(Group, RejectsAnUnreachableAddress) {
  LaunchEnvironment environment;
  environment.size = 2, environment.port = free_port();
  std::string said;
  std::thread first([&] { said = refusal(environment, 10); });
  const auto watch = watch_of(environment, 1, 10);
  EXPECT_THROW(watch->gather("192.0.2.7"), PeerError);
  first.join();
  EXPECT_NE(
      said.find("rank 0 can only be reached from its own machine, at 127."),
      std::string::npos)
      << said;
  EXPECT_NE(said.find("GLOO_SOCKET_IFNAME"), std::string::npos) << said;
}

}  // namespace
}  // namespace aft::train
