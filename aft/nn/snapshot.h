// Remembers the weights that something was computed from.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <atomic>
#include <memory>
#include <vector>

namespace aft::nn {

/// Tells whether what was computed from weights (packed layers, constants) can
/// be used instead of them: while gradients are off and the weights are as they
/// were, in the same memory and not written since. They are not after they were
/// loaded, converted, moved or cloned. Once asked with gradients on, it is
/// never valid again, because optimisers write through Tensor::data(), which
/// torch does not count as a change. Not noticed are other such writes without
/// a pass with gradients. Keeps the memory of the weights alive. Copies are the
/// same snapshot.
class Snapshot {
 public:
  Snapshot() = default;
  /// Undefined tensors are allowed.
  explicit Snapshot(const std::vector<at::Tensor>& weights)
      : state_(std::make_shared<State>()) {
    for (const at::Tensor& w : weights)
      state_->weights.push_back({w.defined() ? w.detach() : w, version(w)});
  }
  /// weights: the same as for the constructor, as they are now. Thread-safe.
  bool valid(const std::vector<at::Tensor>& weights) const {
    if (!state_) return false;
    if (at::GradMode::is_enabled()) state_->ended = true;
    if (state_->ended || weights.size() != state_->weights.size()) return false;
    for (size_t i = 0; i < weights.size(); ++i)
      if (!same(weights[i], state_->weights[i])) return false;
    return true;
  }

 private:
  struct Weight {
    at::Tensor tensor;
    int64_t version;
  };
  struct State {
    std::vector<Weight> weights;
    std::atomic<bool> ended{false};
  };
  /// -1: not counted, as in inference mode. Such weights are never valid.
  static int64_t version(const at::Tensor& w) {
    if (!w.defined()) return 0;
    return w.is_inference() ? -1 : static_cast<int64_t>(w._version());
  }
  static bool same(const at::Tensor& now, const Weight& then) {
    if (!now.defined() || !then.tensor.defined())
      return now.defined() == then.tensor.defined();
    return then.version >= 0 && version(now) == then.version &&
           now.scalar_type() == then.tensor.scalar_type() &&
           now.device() == then.tensor.device() &&
           now.data_ptr() == then.tensor.data_ptr() &&
           now.sizes() == then.tensor.sizes() &&
           now.strides() == then.tensor.strides();
  }

  std::shared_ptr<State> state_;
};

}  // namespace aft::nn
