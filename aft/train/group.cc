#include "aft/train/group.h"

#include <ATen/ATen.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <vector>

#ifndef USE_C10D_GLOO
#define USE_C10D_GLOO
#endif
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

namespace aft::train {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kBeat(500);
constexpr int kPatience = 10;  // timeouts for one that lives, but does not come

std::string reason(const std::exception& e) {
  if (const auto* error = dynamic_cast<const c10::Error*>(&e))
    return error->what_without_backtrace();
  return e.what();
}

std::string text_of(const std::vector<uint8_t>& bytes) {
  return {bytes.begin(), bytes.end()};
}
std::vector<uint8_t> bytes_of(const std::string& text) {
  return {text.begin(), text.end()};
}

/// "rank 3", "ranks 3 and 5".
std::string named(const std::vector<int>& ranks) {
  std::string out = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i)
    out += (i == 0                  ? ""
            : i + 1 == ranks.size() ? " and "
                                    : ", ") +
           std::to_string(ranks[i]);
  return out;
}

/// Calls f(socket, address) for each address of rank 0 until it says true.
/// False where none does, or the name is unknown.
template <class F>
bool for_addresses(const World& world, int kind, const F& f) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = kind;
  if (getaddrinfo(world.address.c_str(), std::to_string(world.port).c_str(),
                  &hints, &found) != 0)
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

/// The address of this machine that faces rank 0's: other processes reach it
/// there. Empty where the name is unknown.
std::string own_address(const World& world) {
  char host[NI_MAXHOST] = "";
  // Nothing is sent: it only asks for the way.
  for_addresses(world, SOCK_DGRAM, [&](int fd, const addrinfo& a) {
    sockaddr_storage own{};
    socklen_t length = sizeof(own);
    return connect(fd, a.ai_addr, a.ai_addrlen) == 0 &&
           getsockname(fd, reinterpret_cast<sockaddr*>(&own), &length) == 0 &&
           getnameinfo(reinterpret_cast<sockaddr*>(&own), length, host,
                       sizeof(host), nullptr, 0, NI_NUMERICHOST) == 0;
  });
  return host;
}

/// Whether someone listens where all meet. (c10d would say on stderr that
/// nobody does yet.)
bool listens(const World& world) {
  return for_addresses(world, SOCK_STREAM, [](int fd, const addrinfo& a) {
    if (connect(fd, a.ai_addr, a.ai_addrlen) == 0) return true;
    pollfd wait{fd, POLLOUT, 0};
    int error = 0;
    socklen_t length = sizeof(error);
    return errno == EINPROGRESS && poll(&wait, 1, /*ms=*/1000) == 1 &&
           getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0 &&
           error == 0;
  });
}

std::shared_ptr<gloo::transport::Device> device_of(const World& world) {
  using c10d::ProcessGroupGloo;
  if (const char* name = std::getenv("GLOO_SOCKET_IFNAME"))
    return ProcessGroupGloo::createDeviceForInterface(name);
  const std::string own = own_address(world);
  return own.empty() ? ProcessGroupGloo::createDefaultDevice()
                     : ProcessGroupGloo::createDeviceForHostname(own);
}

}  // namespace

/// What outlives a group whose peers hang: the thread that watches them may
/// never come back from a question to rank 0.
struct Group::Shared : std::enable_shared_from_this<Group::Shared> {
  using Work = c10::intrusive_ptr<c10d::Work>;

  World world;
  milliseconds timeout;
  c10::intrusive_ptr<c10d::Store> meeting;  // of the thread that watches
  c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo;
  std::atomic<int64_t> entered{0};  // exchanges that this process has begun
  std::vector<Work> open;           // from number `first_open` on
  int64_t first_open = 0;
  std::thread watcher;

  std::mutex mutex;
  std::condition_variable changed;
  std::string fault;           // why all must end; ""
  Clock::time_point answered;  // when rank 0 last did
  bool stop = false, left = false;
  bool asked = false;       // to look for who is missing,
  std::string last_resort;  // or this, where all seem well

  std::string where() const {
    return world.address + ":" + std::to_string(world.port);
  }
  std::string beat_key(int rank) const {
    return "beat/" + std::to_string(rank);
  }

  void set_fault(const std::string& why) {
    const std::lock_guard<std::mutex> lock(mutex);
    if (fault.empty()) fault = why;
    changed.notify_all();
  }
  /// The same for all: the first that tells it is right.
  void tell(const std::string& why) {
    const std::vector<uint8_t> said =
        meeting->compareSet("fault", bytes_of(""), bytes_of(why));
    set_fault(text_of(said));
  }

  struct Beat {
    int64_t count = 0, entered = 0;
  };
  void beat(int64_t count) {
    meeting->set(
        beat_key(world.rank),
        bytes_of(std::to_string(count) + " " + std::to_string(entered.load())));
  }
  std::vector<Beat> beats() {
    std::vector<Beat> out(static_cast<size_t>(world.size));
    for (int r = 0; r < world.size; ++r) {
      const std::string text = text_of(meeting->get(beat_key(r)));
      char* end = nullptr;
      out[static_cast<size_t>(r)].count = std::strtoll(text.c_str(), &end, 10);
      out[static_cast<size_t>(r)].entered = std::strtoll(end, nullptr, 10);
    }
    return out;
  }

  /// The thread that watches.
  void watch() {
    try {
      std::vector<Beat> first;  // what there was when it was asked for
      for (int64_t count = 1, since = 0;; ++count) {
        beat(count);
        const std::string said =
            text_of(meeting->compareSet("fault", bytes_of(""), bytes_of("")));
        if (!said.empty()) return set_fault(said);
        bool looking = false;
        {
          std::unique_lock<std::mutex> lock(mutex);
          answered = Clock::now();
          changed.wait_for(lock, kBeat,
                           [&] { return stop || (asked && first.empty()); });
          if (stop) return;
          looking = asked;
        }
        if (!looking) continue;
        if (first.empty()) {
          first = beats(), since = count;
        } else if (count >= since + 4) {
          if (judge(first, beats())) return;
          first.clear();
        }
      }
    } catch (const std::exception& e) {
      set_fault("rank 0, at " + where() + ", has gone");
    }
  }

  /// Who is to blame, from signs of life two seconds apart. False: nobody yet.
  bool judge(const std::vector<Beat>& before, const std::vector<Beat>& now) {
    std::vector<int> silent, late;
    for (int r = 0; r < world.size; ++r) {
      const size_t i = static_cast<size_t>(r);
      if (before[i].count == now[i].count) silent.push_back(r);
      if (now[i].entered < entered.load()) late.push_back(r);
    }
    std::string last;
    {
      const std::lock_guard<std::mutex> lock(mutex);
      last = last_resort;
      if (silent.empty() && last.empty()) {  // all live: wait on
        asked = false;
        return false;
      }
    }
    if (!silent.empty()) {
      tell(named(silent) + (silent.size() == 1 ? " does" : " do") +
           " not answer: dead, hanging or cut off (seen by rank " +
           std::to_string(world.rank) + ")");
    } else if (!late.empty()) {
      tell(named(late) +
           (late.size() == 1 ? " lives, but has" : " live, but have") +
           " not come to an exchange for " +
           std::to_string(kPatience * timeout.count() / 1000) +
           " s (seen by rank " + std::to_string(world.rank) + ")");
    } else {
      tell(last);
    }
    return true;
  }

  /// Has the watcher find out; waits for its answer; throws.
  [[noreturn]] void blame(const std::string& otherwise) {
    std::unique_lock<std::mutex> lock(mutex);
    asked = true, last_resort = otherwise;
    changed.notify_all();
    changed.wait_for(lock, 10 * kBeat, [&] { return !fault.empty(); });
    // Nobody answers who could say: the watcher waits for rank 0.
    if (fault.empty())
      fault = "rank 0, at " + where() + ", does not answer: dead, hanging or " +
              "cut off (seen by rank " + std::to_string(world.rank) + ")";
    throw PeerError(fault);
  }

  /// Waits for an exchange.
  void wait(const Work& work) {
    const auto done = std::make_shared<bool>(false);
    work->getFuture()->addCallback(
        [self = shared_from_this(), done](c10::ivalue::Future&) {
          const std::lock_guard<std::mutex> lock(self->mutex);
          *done = true;
          self->changed.notify_all();
        });
    for (int round = 0;; ++round) {
      {
        std::unique_lock<std::mutex> lock(mutex);
        changed.wait_for(lock, timeout,
                         [&] { return *done || !fault.empty(); });
        if (!*done && !fault.empty()) throw PeerError(fault);
        // The watcher that hears nothing from rank 0 says nothing either.
        const bool deaf = Clock::now() - answered >
                          std::max(std::min(timeout, 10 * kBeat), 3 * kBeat);
        if (!*done && !deaf && round + 1 < kPatience) {
          asked = true;  // and waits on, unless someone is silent
          changed.notify_all();
          continue;
        }
      }
      if (*done && work->isSuccess()) return;
      std::string why = "no answer for too long";
      try {
        if (*done && work->exception())
          std::rethrow_exception(work->exception());
      } catch (const std::exception& e) {
        why = reason(e);
      }
      blame("an exchange between the processes failed (seen by rank " +
            std::to_string(world.rank) + "): " + why);
    }
  }
};

namespace {

/// A way to where all meet.
c10::intrusive_ptr<c10d::Store> meet(const World& world, bool host,
                                     milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = world.port, options.isServer = host;
  options.waitWorkers = false;
  options.timeout = std::max(timeout, 10 * kBeat);
  const std::string where = world.address + ":" + std::to_string(world.port);
  const Clock::time_point end = Clock::now() + timeout;
  while (!host && !listens(world)) {
    if (Clock::now() >= end)
      throw PeerError("rank 0 cannot be reached at " + where);
    std::this_thread::sleep_for(milliseconds(20));
  }
  try {
    return c10::make_intrusive<c10d::PrefixStore>(
        "aft/" + std::to_string(world.restarts),
        c10::make_intrusive<c10d::TCPStore>(world.address, options));
  } catch (const std::exception& e) {
    throw PeerError(host ? "rank 0 cannot listen at " + where + ": " + reason(e)
                         : "rank 0 cannot be reached at " + where + ": " +
                               reason(e));
  }
}

}  // namespace

Group::Group(const World& world, double timeout)
    : world_(world), shared_(std::make_shared<Shared>()) {
  Shared& s = *shared_;
  s.world = world;
  s.timeout = milliseconds(static_cast<int64_t>(1000 * timeout));
  const auto store = meet(world, world.rank == 0 && !world.hosted, s.timeout);
  s.meeting = meet(world, false, s.timeout);
  s.beat(0);
  // Who is missing can be named before they are waited for by Gloo, which
  // cannot.
  const Clock::time_point end = Clock::now() + s.timeout;
  std::vector<int> missing;
  for (;;) {
    missing.clear();
    for (int r = 0; r < world.size; ++r)
      if (!s.meeting->check({s.beat_key(r)})) missing.push_back(r);
    if (missing.empty()) break;
    if (Clock::now() >= end)
      throw PeerError(named(missing) +
                      (missing.size() == 1 ? " has" : " have") +
                      " not come to " + s.where() + " within " +
                      std::to_string(s.timeout.count() / 1000) + " s");
    std::this_thread::sleep_for(milliseconds(20));
  }
  try {
    auto options =
        c10d::ProcessGroupGloo::Options::create(kPatience * s.timeout);
    options->devices.push_back(device_of(world));
    s.gloo = c10::make_intrusive<c10d::ProcessGroupGloo>(store, world.rank,
                                                         world.size, options);
  } catch (const std::exception& e) {
    throw PeerError("rank " + std::to_string(world.rank) +
                    " cannot connect to the others: " + reason(e));
  }
  s.answered = Clock::now();
  s.watcher = std::thread([shared = shared_] { shared->watch(); });
}

Group::~Group() {
  Shared& s = *shared_;
  if (!s.watcher.joinable()) return;
  if (!s.left) fail("ended early");
  // Its threads may wait for a peer for ever: they are left alone.
  s.watcher.detach();
  if (!s.left) (void)s.gloo.release();
}

int64_t Group::begin_sum(at::Tensor x) {
  Shared& s = *shared_;
  {
    const std::lock_guard<std::mutex> lock(s.mutex);
    if (!s.fault.empty()) throw PeerError(s.fault);
  }
  std::vector<at::Tensor> tensors{std::move(x)};
  ++s.entered;
  s.open.push_back(s.gloo->allreduce(tensors));
  return s.first_open + static_cast<int64_t>(s.open.size()) - 1;
}

void Group::finish(int64_t number) {
  Shared& s = *shared_;
  while (s.first_open <= number) {
    const Shared::Work work = s.open.front();
    s.open.erase(s.open.begin()), ++s.first_open;
    s.wait(work);
  }
}

void Group::sum(at::Tensor x) { finish(begin_sum(std::move(x))); }

void Group::broadcast(at::Tensor x) {
  Shared& s = *shared_;
  std::vector<at::Tensor> tensors{std::move(x)};
  ++s.entered;
  s.wait(s.gloo->broadcast(tensors));
}

std::string Group::broadcast(const std::string& text) {
  at::Tensor size = at::full({1}, static_cast<int64_t>(text.size()), at::kLong);
  broadcast(size);
  at::Tensor bytes = at::empty({size.item<int64_t>()}, at::kByte);
  if (rank() == 0)
    std::copy(text.begin(), text.end(), bytes.data_ptr<uint8_t>());
  if (bytes.numel() > 0) broadcast(bytes);
  const uint8_t* data = bytes.data_ptr<uint8_t>();
  return {data, data + bytes.numel()};
}

bool Group::any(bool mine) {
  at::Tensor x = at::full({1}, mine ? 1 : 0, at::kLong);
  sum(x);
  return x.item<int64_t>() > 0;
}

void Group::leave() {
  Shared& s = *shared_;
  any(false);
  {
    const std::lock_guard<std::mutex> lock(s.mutex);
    s.stop = s.left = true;
    s.changed.notify_all();
  }
  s.watcher.join();
  // Rank 0 goes last: the others ask it until they have left.
  try {
    const Clock::time_point end = Clock::now() + 10 * kBeat;
    int64_t gone = s.meeting->add("left", 1);
    while (rank() == 0 && gone < size() && Clock::now() < end) {
      std::this_thread::sleep_for(milliseconds(5));
      gone = s.meeting->add("left", 0);
    }
  } catch (const std::exception&) {  // all work is done
  }
  s.gloo.reset();
  s.watcher = std::thread();
}

void Group::fail(const std::string& why) {
  Shared& s = *shared_;
  bool known = false;
  {
    const std::lock_guard<std::mutex> lock(s.mutex);
    known = !s.fault.empty();
    if (!known) s.fault = "rank " + std::to_string(rank()) + ": " + why;
  }
  // In a thread of its own: who asks rank 0 may wait for ever.
  std::thread([shared = shared_, known] {
    try {
      if (!known) shared->tell(shared->fault);
    } catch (const std::exception&) {
    }
  }).detach();
  // Long enough for the others to read it, at rank 0 most of all.
  std::this_thread::sleep_for(rank() == 0 ? 4 * kBeat : kBeat);
}

}  // namespace aft::train
