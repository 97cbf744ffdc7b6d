// Collective operations between the processes that train one model, on
// LibTorch's c10d: Gloo, and NCCL for GPU tensors if LibTorch was built with it
// (otherwise GPU tensors are copied through CPU memory). If one process fails,
// all others end soon with an error that names it (heartbeat.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "aft/train/distributed/launch_environment.h"

namespace aft::train {

class Heartbeat;

/// Every process must call the same functions in the same order, with
/// contiguous tensors of the same shape and type on the same type of device.
/// Not thread-safe. Functions throw PeerError; after that only the destructor
/// may be called.
class Group {
 public:
  /// Waits for all processes of the environment. `timeout` is in seconds, above
  /// 0. A process that is alive but does not join an exchange is given ten
  /// times as long. on_stuck is called from another thread, with the error
  /// message, if the group has been broken for `timeout` and this process, busy
  /// elsewhere, has called no function that would throw the error. Throws
  /// PeerError; std::runtime_error if this process itself cannot listen for
  /// connections.
  Group(const LaunchEnvironment& environment, double timeout,
        std::function<void(const std::string&)> on_stuck = {});
  /// Unless leave() was called, tells the others that this process has ended.
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int rank() const { return environment_.rank; }
  int size() const { return environment_.size; }

  /// Replaces x by its sum over all processes, bit-identical in each.
  void sum(at::Tensor x);
  /// Starts a sum and returns its number without waiting. x must not be
  /// accessed until finish().
  int64_t begin_sum(at::Tensor x);
  /// Waits for a sum. Call in the order in which the sums were started.
  void finish(int64_t number);
  /// Replaces x by rank 0's x.
  void broadcast(at::Tensor x);
  /// Returns rank 0's text.
  std::string broadcast(const std::string& text);
  /// Whether `mine` is true in any process.
  bool any(bool mine);

  /// Waits for all processes, then closes the connections.
  void leave();
  /// Tells the others why this process ends.
  void fail(const std::string& why);

 private:
  struct Exchanges;
  LaunchEnvironment environment_;
  std::shared_ptr<Heartbeat> heartbeat_;
  std::unique_ptr<Exchanges> exchanges_;
  bool left_ = false;
};

}  // namespace aft::train
