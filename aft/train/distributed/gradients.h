// Sums the gradients of a model over all processes, in buckets. Each bucket is
// sent as soon as backward has filled it, so communication overlaps with
// computation.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "aft/train/distributed/group.h"

namespace aft::train {

class Gradients {
 public:
  /// The .grad of each parameter becomes a view into a bucket of about
  /// `bucket_bytes` and must remain so: zero gradients in place instead of
  /// dropping them. `model` and `group` must outlive this object.
  Gradients(const torch::nn::Module& model, Group& group,
            int64_t bucket_bytes = 4 << 20);
  ~Gradients();
  Gradients(const Gradients&) = delete;
  Gradients& operator=(const Gradients&) = delete;

  /// Call before the last backward pass of a step, which completes the
  /// gradients of this process. That pass must reach each parameter once.
  void expect();
  /// Call after that pass. The gradients are then summed over all processes,
  /// bit-identical in each. Throws PeerError. A parameter that no process
  /// reaches in the first step has no gradient from then on; reaching it later
  /// throws c10::Error.
  void finish();

  /// Bytes that each process contributes per step.
  int64_t bytes() const;

 private:
  struct Bucket {
    torch::Tensor values;
    std::vector<size_t> slots;
    int64_t left = 0;    // parameters that backward has not reached yet
    int64_t number = 0;  // of the exchange, see Group::begin_sum
  };
  struct Slot {
    torch::Tensor parameter;
    size_t bucket = 0;
    bool reached = false, unused = false;
    std::shared_ptr<torch::autograd::Node> accumulator;  // owns the hook
  };
  void reached(size_t slot);
  void send_ready(bool all);

  Group& group_;
  std::vector<Slot> slots_;
  std::vector<Bucket> buckets_;
  size_t next_ = 0;  // bucket to send; the same order in all processes
  bool expecting_ = false, first_ = true;
};

}  // namespace aft::train
