#include "aft/train/distributed/heartbeat.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <thread>
#include <utility>

namespace aft::train {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kBeat(500);
constexpr int64_t kBeats = 4;  // a rank without a beat for this long is silent
constexpr int kPatience = 10;  // timeouts before a live rank counts as late

std::string string_of(const std::vector<uint8_t>& bytes) {
  return {bytes.begin(), bytes.end()};
}
std::vector<uint8_t> bytes_of(const std::string& text) {
  return {text.begin(), text.end()};
}

std::string beat_key(int rank) { return "beat/" + std::to_string(rank); }
std::string place_key(int rank) { return "place/" + std::to_string(rank); }

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

constexpr char kSilent[] = " does not respond: dead, hanging or disconnected";
constexpr char kUnreachable[] = " can no longer be reached";

std::string silence(const std::vector<int>& ranks) {
  return named(ranks) +
         (ranks.size() == 1 ? kSilent
                            : " do not respond: dead, hanging or disconnected");
}

bool only_here(const std::string& address) {
  return address.compare(0, 4, "127.") == 0 || address == "::1";
}

}  // namespace

Heartbeat::Heartbeat(const LaunchEnvironment& environment, milliseconds timeout,
                     Store store,
                     std::function<void(const std::string&)> on_stuck)
    : environment_(environment),
      timeout_(timeout),
      store_(std::move(store)),
      on_stuck_(std::move(on_stuck)) {}

std::string Heartbeat::observer() const {
  return " (seen by rank " + std::to_string(environment_.rank) + ")";
}

// ---- startup and shutdown ---------------------------------------------------

void Heartbeat::gather(const std::string& address) {
  const std::shared_ptr<std::string> why = std::make_shared<std::string>();
  const std::shared_ptr<PendingOperation> pending =
      begin([this, address, why] { *why = join(address); });
  {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_for(lock, timeout_ + 2 * kBeats * kBeat,
                      [&] { return pending->done; });
    if (!pending->done)
      throw PeerError(host_of(environment_) + kSilent + observer());
    if (!pending->error.empty())
      throw PeerError(host_of(environment_) + kUnreachable);
    if (!why->empty()) throw PeerError(*why);
    answered_ = Clock::now();
  }
  std::thread([self = shared_from_this()] { self->run(); }).detach();
  if (on_stuck_)
    std::thread([self = shared_from_this()] { self->run_watchdog(); }).detach();
}

/// Returns why the group cannot form; "" if it has formed.
std::string Heartbeat::join(const std::string& address) {
  const std::string own =
      address + " " + std::to_string(getpid()) + " " +
      std::to_string(Clock::now().time_since_epoch().count());
  const std::string there = string_of(store_->compareSet(
      place_key(environment_.rank), bytes_of(""), bytes_of(own)));
  if (there != own)
    return "rank " + std::to_string(environment_.rank) +
           " has already joined at " + place_of(environment_) +
           ": two processes were given the same rank";
  beat(0);
  std::vector<std::string> keys;
  for (int r = 0; r < environment_.size; ++r) keys.push_back(beat_key(r));
  std::string why;
  const Clock::time_point end = Clock::now() + timeout_;
  for (;;) {
    if (const std::string fault = reported_fault(); !fault.empty())
      return fault;
    if (store_->check(keys)) break;
    if (Clock::now() >= end) {
      std::vector<int> missing;
      for (int r = 0; r < environment_.size; ++r)
        if (!store_->check({beat_key(r)})) missing.push_back(r);
      why = named(missing) + (missing.size() == 1 ? " has" : " have") +
            " not joined at " + place_of(environment_) + " within " +
            std::to_string(timeout_.count() / 1000) + " s";
      break;
    }
    std::this_thread::sleep_for(milliseconds(20));
  }
  if (why.empty() && !address.empty() && !only_here(address)) {
    const std::string first = string_of(store_->get(place_key(0)));
    const std::string its = first.substr(0, first.find(' '));
    if (only_here(its))
      why = "rank 0 can only be reached from its own machine, at " + its +
            ": set MASTER_ADDR to its address or GLOO_SOCKET_IFNAME to its "
            "network interface";
  }
  if (why.empty()) return "";
  report_fault(why);
  wait_for_readers();
  const std::lock_guard<std::mutex> lock(mutex_);
  return fault_;
}

/// Gives the others time to read the reported fault. Rank 0 waits longest,
/// since the store ends with it.
void Heartbeat::wait_for_readers() const {
  std::this_thread::sleep_for(environment_.rank == 0 ? kBeats * kBeat : kBeat);
}

void Heartbeat::fail(const std::string& why) {
  bool known = false;
  std::string fault;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (failed_ || leaving_) return;
    failed_ = true, known = !fault_.empty();
    if (!known)
      fault_ = "rank " + std::to_string(environment_.rank) + ": " + why;
    fault = fault_;
    changed_.notify_all();
  }
  if (!known) {
    const std::shared_ptr<PendingOperation> told =
        begin([this, fault] { report_fault(fault); });
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_for(lock, 10 * kBeat, [&] { return told->done; });
  }
  if (!known || environment_.rank == 0) wait_for_readers();
  const std::lock_guard<std::mutex> lock(mutex_);
  stop_ = true;
  changed_.notify_all();
}

bool Heartbeat::leave() {
  std::unique_lock<std::mutex> lock(mutex_);
  stop_ = leaving_ = true;
  changed_.notify_all();
  return changed_.wait_for(lock, 3 * kBeats * kBeat, [&] { return finished_; });
}

/// Rank 0 leaves last: the others use its store until they have left.
void Heartbeat::wait_for_leaving() {
  const Clock::time_point end = Clock::now() + 2 * kBeats * kBeat;
  int64_t gone = store_->add("left", 1);
  while (environment_.rank == 0 && gone < environment_.size &&
         Clock::now() < end) {
    std::this_thread::sleep_for(milliseconds(5));
    gone = store_->add("left", 0);
  }
}

// ---- faults -----------------------------------------------------------------

void Heartbeat::set_fault(const std::string& why) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (fault_.empty()) fault_ = why;
  changed_.notify_all();
}

/// Reports a fault. The first report wins, so all processes agree on it.
void Heartbeat::report_fault(const std::string& why) {
  set_fault(
      string_of(store_->compareSet("fault", bytes_of(""), bytes_of(why))));
}

std::string Heartbeat::reported_fault() {
  return string_of(store_->compareSet("fault", bytes_of(""), bytes_of("")));
}

void Heartbeat::check() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!fault_.empty()) throw PeerError(fault_);
}

// ---- background threads -----------------------------------------------------

void Heartbeat::record_answer() {
  const std::lock_guard<std::mutex> lock(mutex_);
  answered_ = Clock::now();
}

/// Describes the host of the store after a failed request: unreachable if the
/// request failed at once, silent if it timed out in c10d.
std::string Heartbeat::describe_lost_store() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return Clock::now() - answered_ > timeout_ ? kSilent + observer()
                                             : kUnreachable;
}

void Heartbeat::beat(int64_t count) {
  store_->set(
      beat_key(environment_.rank),
      bytes_of(std::to_string(count) + " " + std::to_string(entered_.load())));
}

Heartbeat::Beat Heartbeat::beat_of(int rank) {
  const std::string text = string_of(store_->get(beat_key(rank)));
  char* end = nullptr;
  Beat out;
  out.count = std::strtoll(text.c_str(), &end, 10);
  out.entered = std::strtoll(end, nullptr, 10);
  record_answer();
  return out;
}

std::vector<Heartbeat::Beat> Heartbeat::beats() {
  std::vector<Beat> out;
  for (int r = 0; r < environment_.size; ++r) out.push_back(beat_of(r));
  return out;
}

/// Called at beat `count` of this process. Time is counted in beats, so that a
/// process that was suspended does not report others as failed.
void Heartbeat::check_next_rank(int64_t count) {
  const int next = (environment_.rank + 1) % environment_.size;
  const Beat now = beat_of(next);
  if (now.count != next_count_) next_count_ = now.count, next_since_ = count;
  if (count - next_since_ > std::max(2 * kBeats, timeout_ / kBeat))
    report_fault(silence({next}) + observer());
}

void Heartbeat::run() {
  bool leaving = false;
  try {
    std::vector<Beat> before;  // beats when the request was made
    int64_t since = 0, look = 0;
    for (int64_t count = 1;; ++count) {
      beat(count);
      if (const std::string fault = reported_fault(); !fault.empty()) {
        set_fault(fault);
        break;
      }
      record_answer();
      check_next_rank(count);
      int64_t span = kBeats;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait_for(lock, kBeat,
                          [&] { return stop_ || search_number_ != look; });
        if (stop_) {
          leaving = leaving_;
          break;
        }
        if (search_number_ != look) look = search_number_, before.clear();
        if (!search_pending_) continue;
        if (!urgent_) span = std::max(span, timeout_ / 2 / kBeat);
      }
      if (before.empty()) {
        before = beats(), since = count;
      } else if (count >= since + span) {
        if (report_failed_ranks(before, beats())) break;
        before.clear();
      }
    }
    if (leaving) wait_for_leaving();
  } catch (const std::exception&) {
    // After the last exchange, a lost store does not matter.
    if (!leaving) set_fault(host_of(environment_) + describe_lost_store());
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  finished_ = true;
  changed_.notify_all();
}

/// Checks that this process notices a fault. Time is counted in iterations, as
/// above.
void Heartbeat::run_watchdog() {
  std::unique_lock<std::mutex> lock(mutex_);
  const int64_t most = std::max(kBeats, timeout_ / kBeat);
  for (int64_t broken = 0; broken <= most;) {
    if (changed_.wait_for(lock, kBeat, [&] { return stop_ || failed_; }))
      return;
    const bool silent = Clock::now() - answered_ > timeout_ + kBeats * kBeat;
    broken = silent || !fault_.empty() ? broken + 1 : 0;
  }
  const std::string why =
      fault_.empty() ? host_of(environment_) + kSilent + observer() : fault_;
  lock.unlock();
  on_stuck_(why);
}

/// Finds the failed ranks by comparing two sets of beats. False if there are
/// none yet.
bool Heartbeat::report_failed_ranks(const std::vector<Beat>& before,
                                    const std::vector<Beat>& now) {
  std::vector<int> silent, late;
  for (int r = 0; r < environment_.size; ++r) {
    const size_t i = static_cast<size_t>(r);
    if (before[i].count == now[i].count) silent.push_back(r);
    if (now[i].entered < entered_.load()) late.push_back(r);
  }
  std::string last;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    last = fallback_error_;
    if (!late_) late.clear();
    if (silent.empty() && last.empty()) {  // all are alive: keep waiting
      search_pending_ = urgent_ = false;
      changed_.notify_all();
      return false;
    }
  }
  if (!silent.empty()) {
    report_fault(silence(silent) + observer());
  } else if (!late.empty()) {
    report_fault(
        named(late) +
        (late.size() == 1 ? " is alive but has" : " are alive but have") +
        " not joined an exchange for " +
        std::to_string(kPatience * timeout_.count() / 1000) + " s" +
        observer());
  } else {
    report_fault(last);
  }
  return true;
}

// ---- waiting ----------------------------------------------------------------

void Heartbeat::complete(PendingOperation& pending, const std::string& error) {
  const std::lock_guard<std::mutex> lock(mutex_);
  pending.done = true, pending.error = error;
  changed_.notify_all();
}

/// Runs f() in a detached thread that keeps this object alive: a request to
/// rank 0 may block forever.
std::shared_ptr<PendingOperation> Heartbeat::begin(
    const std::function<void()>& f) {
  const std::shared_ptr<PendingOperation> pending = make_pending();
  std::thread([self = shared_from_this(), pending, f] {
    std::string error;
    try {
      f();
    } catch (const std::exception& e) {
      error = reason(e);
    }
    self->complete(*pending, error);
  }).detach();
  return pending;
}

void Heartbeat::wait(const PendingOperation& pending, const std::string& what) {
  const milliseconds pause = std::min(timeout_ / 4, milliseconds(1000));
  Clock::time_point begin = Clock::now(), last = begin;
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    changed_.wait_for(lock, pause,
                      [&] { return pending.done || !fault_.empty(); });
    if (pending.done && pending.error.empty()) return;
    if (!fault_.empty()) throw PeerError(fault_);
    if (pending.done)
      find_failed_rank(
          lock, what + " failed" + observer() + ": " + pending.error, false);
    // If rank 0 does not answer, the background thread blocks and cannot report
    // it, so answered_ is checked here.
    const Clock::time_point now = Clock::now();
    // Time during which this process was suspended does not count as waiting.
    if (now - last > 2 * pause + kBeat) begin += now - last;
    last = now;
    if (now - answered_ > std::max<Clock::duration>(timeout_, 3 * kBeat)) {
      find_failed_rank(lock, "", false);
      continue;
    }
    if (now - begin >= kPatience * timeout_)
      find_failed_rank(lock, what + observer() + ": timed out", true);
    if (!search_pending_ && now - begin >= timeout_ / 2)
      search_pending_ = true, ++search_number_;
    changed_.notify_all();
  }
}

/// Makes the background thread find the failed rank, and throws what it
/// reports, or else `why`. If `why` is empty, nothing is known to be broken,
/// and the function returns if all ranks answer again.
void Heartbeat::find_failed_rank(std::unique_lock<std::mutex>& lock,
                                 const std::string& why, bool late) {
  search_pending_ = urgent_ = true, late_ = late, fallback_error_ = why,
  ++search_number_;
  changed_.notify_all();
  const Clock::time_point begin = Clock::now();
  // Keep waiting while rank 0 answers: querying many processes takes time.
  for (Clock::time_point now = begin;
       fault_.empty() && search_pending_ &&
       now < begin + std::max(timeout_, 10 * kBeat) &&
       (now < begin + 10 * kBeat || now < answered_ + kBeats * kBeat);
       now = Clock::now())
    changed_.wait_for(lock, kBeat,
                      [&] { return !fault_.empty() || !search_pending_; });
  if (fault_.empty() && why.empty() && answered_ > begin) return;
  if (fault_.empty())
    fault_ = answered_ > begin + kBeat
                 ? why
                 : host_of(environment_) + kSilent + observer();
  throw PeerError(fault_);
}

}  // namespace aft::train
