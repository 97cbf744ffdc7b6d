// Gradients of a model summed over processes, in buckets, while backward still
// runs: a bucket is sent as soon as backward has filled it.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "aft/train/group.h"

namespace aft::train {

class Gradients {
 public:
  /// The .grad of each parameter becomes a part of a bucket of about
  /// `bucket_bytes`, and stays it: who zeroes gradients must keep them. Both
  /// arguments must live as long as this.
  Gradients(const torch::nn::Module& model, Group& group,
            int64_t bucket_bytes = 4 << 20);
  ~Gradients();
  Gradients(const Gradients&) = delete;
  Gradients& operator=(const Gradients&) = delete;

  /// Before the last backward pass of a step, which completes the gradients of
  /// this process: each parameter is reached once in it.
  void expect();
  /// After it: gradients are those of all processes, summed, to the bit the
  /// same in each. Throws PeerError. A parameter that no process reaches in the
  /// first step has no gradient from then on; c10::Error where it is reached
  /// later.
  void finish();

  /// What a step sends, as each process has it.
  int64_t bytes() const;

 private:
  struct Bucket {
    torch::Tensor values;
    std::vector<size_t> slots;
    int64_t left = 0;    // slots that backward has not reached
    int64_t number = 0;  // of the exchange
  };
  struct Slot {
    torch::Tensor parameter;
    size_t bucket = 0;
    bool reached = false, unused = false;
    std::shared_ptr<torch::autograd::Node> accumulator;  // holds the hook
  };
  void reached(size_t slot);
  void send_ready(bool all);

  Group& group_;
  std::vector<Slot> slots_;
  std::vector<Bucket> buckets_;
  size_t next_ = 0;  // bucket to be sent: in one order in all processes
  bool expecting_ = false, first_ = true;
};

}  // namespace aft::train
