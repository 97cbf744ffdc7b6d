// Who of a group still lives, and who is to blame when something does not come.
//
// A thread of its own shows a sign of life twice a second where all meet, and
// reads there whether someone has failed, and whether the next rank still shows
// one: each is looked after, also while nobody waits. Who waits for half of
// `timeout` has it look for all that show none for the other half; the first
// that finds one tells all.
//
// A second thread looks whether the process itself comes to hear of it.
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

#include "aft/train/meeting.h"

namespace aft::train {

/// An exchange never ends by c10d's own clock: that of Watch names who is late.
constexpr std::chrono::hours kNever(24 * 365);
constexpr char kExchange[] = "an exchange between the processes";

/// What is waited for, and what became of it.
struct Outcome {
  bool done = false;
  std::string error;  // "": none
};

/// Held by shared_ptr: the thread may never come back from a question to a rank
/// 0 that hangs, and is then left alone.
class Watch : public std::enable_shared_from_this<Watch> {
 public:
  using Clock = std::chrono::steady_clock;
  using milliseconds = std::chrono::milliseconds;

  /// on_stuck: see Group.
  Watch(const World& world, milliseconds timeout, Store store,
        std::function<void(const std::string&)> on_stuck = {});

  /// Takes the place of its rank, which is at this address ("": not known),
  /// waits for the others, and begins to watch. Throws PeerError.
  void gather(const std::string& address);

  std::shared_ptr<Outcome> expect() const {
    return std::make_shared<Outcome>();
  }
  /// From any thread.
  void came(Outcome& outcome, const std::string& error);
  /// Until it has come; `what` failed where it came with an error. Throws
  /// PeerError, which names who is to blame.
  void wait(const Outcome& outcome, const std::string& what);
  /// f() in a thread of its own, which is left alone where a peer never comes.
  /// Throws PeerError as wait() does.
  void in_thread(const std::string& what, const std::function<void()>& f) {
    wait(*begin(f), what);
  }
  /// One more exchange of all has begun here.
  void enter() { ++entered_; }
  /// Throws PeerError where someone has failed.
  void check();

  /// Tells the others why this process ends, and gives them the time to hear
  /// it. Only the first one counts.
  void fail(const std::string& why);
  /// After the last exchange. False: some did not say that they left too.
  bool leave();

 private:
  struct Beat {
    int64_t count = 0, entered = 0;
  };
  std::shared_ptr<Outcome> begin(const std::function<void()>& f);
  std::string come(const std::string& address);
  void run();
  void guard();
  void beat(int64_t count);
  Beat beat_of(int rank);
  void look_after_next(int64_t count);
  std::vector<Beat> beats();
  void answer();
  std::string lost();
  bool judge(const std::vector<Beat>& before, const std::vector<Beat>& now);
  void blame(std::unique_lock<std::mutex>& lock, const std::string& why,
             bool late);
  void set_fault(const std::string& why);
  void tell(const std::string& why);
  std::string said();
  void linger() const;
  void see_off();
  std::string seen() const;

  const World world_;
  const milliseconds timeout_;
  const Store store_;
  const std::function<void(const std::string&)> on_stuck_;
  std::atomic<int64_t> entered_{0};

  int64_t next_count_ = 0, next_since_ = 0;  // of the next rank's last beat

  std::mutex mutex_;
  std::condition_variable changed_;
  std::string fault_;           // why all must end; ""
  Clock::time_point answered_;  // when the store last did
  bool stop_ = false, leaving_ = false, finished_ = false, failed_ = false;
  // The question to the thread: who is missing?
  int64_t look_ = 0;         // its number
  bool asked_ = false;       // it is open
  bool urgent_ = false;      // something broke: two seconds must be enough
  bool late_ = false;        // patience with the living is at its end too
  std::string last_resort_;  // what to say where all seem well
};

}  // namespace aft::train
