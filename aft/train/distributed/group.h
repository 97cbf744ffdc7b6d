// Processes that train one model together, on LibTorch's c10d: Gloo, and NCCL
// for tensors on GPUs where LibTorch has it (elsewhere they go through memory
// of the CPU). What goes wrong with one ends all, soon, and with its name
// (watch.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "aft/train/world.h"

namespace aft::train {

class Watch;

/// Every process calls the same functions in the same order, with tensors of
/// the same shape and type, contiguous, on the same kind of device. Not for
/// several threads.
/// Functions throw PeerError, after which only the destructor may be called.
class Group {
 public:
  /// Waits for all processes of the world; timeout in seconds, above 0. A
  /// process that lives but does not come to an exchange is given ten times as
  /// long. on_stuck: called, from another thread, where the group has been
  /// broken for `timeout` and this process, at work, has called no function
  /// that would throw it; with what that would have said. Throws PeerError;
  /// std::runtime_error where this process itself cannot be met.
  Group(const World& world, double timeout,
        std::function<void(const std::string&)> on_stuck = {});
  /// Without leave() before it, tells the others that this process has ended.
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int rank() const { return world_.rank; }
  int size() const { return world_.size; }

  /// x becomes the sum over all processes, to the bit the same in each.
  void sum(at::Tensor x);
  /// Begins it, and goes on; x must not be touched until finish(). Returns its
  /// number.
  int64_t begin_sum(at::Tensor x);
  /// Waits for it. Numbers in the order of their beginning.
  void finish(int64_t number);
  /// x becomes rank 0's.
  void broadcast(at::Tensor x);
  /// Rank 0's text.
  std::string broadcast(const std::string& text);
  /// Whether any process says so.
  bool any(bool mine);

  /// Waits for all, and then ends the connections.
  void leave();
  /// Tells the others why this process ends.
  void fail(const std::string& why);

 private:
  struct Exchanges;
  World world_;
  std::shared_ptr<Watch> watch_;
  std::unique_ptr<Exchanges> exchanges_;
  bool left_ = false;
};

}  // namespace aft::train
