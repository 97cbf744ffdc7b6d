// The matrix products of a model's linear layers: a lower bound on its work.
#pragma once

#include <ATen/ATen.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>

#include <vector>

namespace aft::bench {

/// Runs only the matrix products of a training step: for each linear layer the
/// output, the input gradient and the weight gradient. They are written to
/// preallocated memory, which layers of the same shape share.
class MatrixProducts {
 public:
  MatrixProducts(torch::nn::Module& model, int64_t tokens) {
    for (const auto& m : model.modules()) {
      const auto* linear = m->as<torch::nn::Linear>();
      if (!linear) continue;
      const int64_t in = linear->weight.size(1), out = linear->weight.size(0);
      flops_ += 6 * static_cast<double>(tokens) * static_cast<double>(in) *
                static_cast<double>(out);
      Layer* same = nullptr;
      for (Layer& l : layers_)
        if (l.w.size(0) == out && l.w.size(1) == in) same = &l;
      if (same) {
        ++same->count;
        continue;
      }
      layers_.push_back({at::randn({tokens, in}), at::randn({out, in}),
                         at::randn({tokens, out}), at::empty({tokens, in}),
                         at::empty({out, in}), 1});
    }
  }
  void run() {
    at::NoGradGuard no_grad;
    for (Layer& l : layers_) {
      for (int i = 0; i < l.count; ++i) {
        at::mm_out(l.y, l.x, l.w.t());
        at::mm_out(l.dx, l.y, l.w);
        at::mm_out(l.dw, l.y.t(), l.x);
      }
    }
  }
  double flops() const { return flops_; }

 private:
  struct Layer {
    at::Tensor x, w, y, dx, dw;
    int count;  // of layers of this shape
  };
  std::vector<Layer> layers_;
  double flops_ = 0;
};

}  // namespace aft::bench
