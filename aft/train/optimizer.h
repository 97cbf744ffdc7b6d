// AdamW fused into one pass over memory, learning rate schedules, and the
// global gradient norm.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace aft::train {

/// The learning rate as a function of the step, counted from 1. It rises
/// linearly to `peak` at step `warmup`, then follows
///   rsqrt     peak sqrt(warmup / step), as in the original Transformer
///   cosine    a cosine from `peak` down to `floor` at `steps`
///   constant  peak
/// DeiT's schedule differs in the warmup as well:
///   deit      constant within an epoch; linear from `first` for `warmup`
///             steps, then a cosine over the whole run, as if it had started at
///             step 1
struct Schedule {
  std::string kind;
  double peak = 0;
  int64_t warmup = 0;
  double floor = 0;
  int64_t steps = 1;
  double first = 0;   ///< deit: initial rate
  int64_t epoch = 1;  ///< deit: steps per epoch

  /// Throws std::invalid_argument for an unknown `kind`.
  double at(int64_t step) const;
};

struct AdamWOptions {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
  double decay = 0.1;  ///< of the weights of linear layers and convolutions
};

/// Contiguous float and double parameters on the CPU are updated in one fused
/// pass, all others with ATen calls.
class AdamW {
 public:
  AdamW(const torch::nn::Module& model, const AdamWOptions& options);

  /// Performs step number `step`, counted from 1, after scaling all gradients
  /// to a global norm of at most `clip` (0: no clipping). Parameters without a
  /// gradient are unchanged. Returns the norm before clipping; if it is not
  /// finite, nothing is changed.
  double step(double lr, double clip, int64_t step);
  /// The global norm of all gradients.
  double norm() const;
  void zero_grad();

  /// The moments by name: "m.<parameter>", "v.<parameter>".
  std::vector<std::pair<std::string, torch::Tensor>> state() const;
  /// Whether weight decay applies to the parameter of that name.
  bool decays(const std::string& name) const;

 private:
  struct Slot {
    std::string name;
    torch::Tensor parameter, m, v;
    bool decay;
  };
  AdamWOptions options_;
  std::vector<Slot> slots_;
};

}  // namespace aft::train
