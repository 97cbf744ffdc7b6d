// Detects dead and hanging processes of a group, and names the failed rank.
//
// A background thread writes a heartbeat to the store twice a second. It also
// reads whether a process has reported a failure and whether the next rank's
// heartbeat still advances, so every rank is monitored even while no rank waits
// for it. A process that has waited for half of `timeout` makes its thread find
// all ranks whose heartbeat stops during the other half. The first process that
// finds one reports it to all.
//
// A second thread checks that the process itself notices a failure (on_stuck).
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "aft/train/distributed/rendezvous.h"

namespace aft::train {

/// The timeout given to c10d: Heartbeat detects late ranks instead, and names
/// them.
constexpr std::chrono::hours kNever(24 * 365);
constexpr char kExchange[] = "an exchange between the processes";

/// An operation that completes in another thread.
struct PendingOperation {
  bool done = false;
  std::string error;  // empty if it succeeded
};

/// Held by shared_ptr: a background thread may block forever in a request to a
/// rank 0 that hangs. It is then abandoned and keeps the object alive.
class Heartbeat : public std::enable_shared_from_this<Heartbeat> {
 public:
  using Clock = std::chrono::steady_clock;
  using milliseconds = std::chrono::milliseconds;

  /// on_stuck: see Group.
  Heartbeat(const LaunchEnvironment& environment, milliseconds timeout,
            Store store, std::function<void(const std::string&)> on_stuck = {});

  /// Registers this rank, reachable at `address` ("": unknown), waits for the
  /// others, and starts monitoring. Throws PeerError.
  void gather(const std::string& address);

  std::shared_ptr<PendingOperation> make_pending() const {
    return std::make_shared<PendingOperation>();
  }
  /// Completes an operation. May be called from any thread.
  void complete(PendingOperation& pending, const std::string& error);
  /// Waits for an operation. `what` names the operation in error messages.
  /// Throws PeerError, which names the failed rank.
  void wait(const PendingOperation& pending, const std::string& what);
  /// Runs f() in a separate thread, which is abandoned if a peer never
  /// responds. Throws PeerError as wait() does.
  void in_thread(const std::string& what, const std::function<void()>& f) {
    wait(*begin(f), what);
  }
  /// Counts one more exchange that this process has joined.
  void enter() { ++entered_; }
  /// Throws PeerError if a process has failed.
  void check();

  /// Tells the others why this process ends, and gives them time to read it.
  /// Only the first call has an effect.
  void fail(const std::string& why);
  /// Call after the last exchange. Returns false if not all processes reported
  /// in time that they have left.
  bool leave();

 private:
  struct Beat {
    int64_t count = 0, entered = 0;
  };
  std::shared_ptr<PendingOperation> begin(const std::function<void()>& f);
  std::string join(const std::string& address);
  void run();
  void run_watchdog();
  void beat(int64_t count);
  Beat beat_of(int rank);
  void check_next_rank(int64_t count);
  std::vector<Beat> beats();
  void record_answer();
  std::string describe_lost_store();
  bool report_failed_ranks(const std::vector<Beat>& before,
                           const std::vector<Beat>& now);
  void find_failed_rank(std::unique_lock<std::mutex>& lock,
                        const std::string& why, bool late);
  void set_fault(const std::string& why);
  void report_fault(const std::string& why);
  std::string reported_fault();
  void wait_for_readers() const;
  void wait_for_leaving();
  std::string observer() const;

  const LaunchEnvironment environment_;
  const milliseconds timeout_;
  const Store store_;
  const std::function<void(const std::string&)> on_stuck_;
  std::atomic<int64_t> entered_{0};

  int64_t next_count_ = 0, next_since_ = 0;  // of the next rank's last beat

  std::mutex mutex_;
  std::condition_variable changed_;
  std::string fault_;           // why all must end; empty if none
  Clock::time_point answered_;  // when the store last answered
  bool stop_ = false, leaving_ = false, finished_ = false, failed_ = false;
  // Request to the background thread to find failed ranks.
  int64_t search_number_ = 0;    // number of the request
  bool search_pending_ = false;  // the request is pending
  bool urgent_ = false;          // something broke: search for two seconds only
  bool late_ = false;            // also report ranks that are alive but late
  std::string fallback_error_;   // error to report if no rank has failed
};

}  // namespace aft::train
