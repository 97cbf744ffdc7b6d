// AdamW in one pass over memory, the learning rate, and the norm of all
// gradients.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace aft::train {

/// The learning rate against the step (the first is 1): linear up to `peak` at
/// `warmup`, then
///   rsqrt     peak sqrt(warmup / step), the Transformer's
///   cosine    down to `floor` at `steps`
///   constant  peak
/// or, as DeiT has it,
///   deit      the same for all steps of an epoch: `warmup` steps linear from
///             `first`, then the cosine of the whole run, as if it had begun
///             with it
struct Schedule {
  std::string kind;
  double peak = 0;
  int64_t warmup = 0;
  double floor = 0;
  int64_t steps = 1;
  double first = 0;   ///< deit
  int64_t epoch = 1;  ///< deit: steps of an epoch

  /// Throws std::invalid_argument for another kind.
  double at(int64_t step) const;
};

struct AdamWOptions {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
  double decay = 0.1;  ///< of the weights of linear layers and convolutions
};

/// Float or double parameters on the CPU take one fused pass; others ATen
/// calls.
class AdamW {
 public:
  AdamW(const torch::nn::Module& model, const AdamWOptions& options);

  /// One step, the `step`-th (from 1), after scaling all gradients to a norm of
  /// at most `clip` (0: no clipping). Parameters without a gradient stay.
  /// Returns the norm before clipping; where that is not finite nothing is
  /// changed.
  double step(double lr, double clip, int64_t step);
  /// The norm of all gradients.
  double norm() const;
  void zero_grad();

  /// Moments by name: "m.<parameter>", "v.<parameter>".
  std::vector<std::pair<std::string, torch::Tensor>> state() const;
  /// Whether the parameter of that name decays.
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
