// The matrix products of a model's linear layers: a lower bound on its work.
#pragma once

#include <ATen/ATen.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>

#include <vector>

namespace aft::cli {

/// Runs only the matrix products of a training step: for each linear layer the
/// output, the input gradient and the weight gradient. They are written to
/// preallocated memory, which layers of the same shape share.
class Products {
 public:
  Products(torch::nn::Module& model, int64_t tokens) {
    for (const auto& m : model.modules()) {
      const auto* linear = m->as<torch::nn::Linear>();
      if (!linear) continue;
      const int64_t in = linear->weight.size(1), out = linear->weight.size(0);
      Product* same = nullptr;
      for (Product& p : all_)
        if (p.w.size(0) == out && p.w.size(1) == in) same = &p;
      flops_ += 6 * static_cast<double>(tokens) * static_cast<double>(in) *
                static_cast<double>(out);
      if (same) {
        ++same->count;
        continue;
      }
      all_.push_back({at::randn({tokens, in}), at::randn({out, in}),
                      at::randn({tokens, out}), at::empty({tokens, in}),
                      at::empty({out, in}), 1});
    }
  }
  void run() {
    at::NoGradGuard no_grad;
    for (Product& p : all_) {
      for (int i = 0; i < p.count; ++i) {
        at::mm_out(p.y, p.x, p.w.t());
        at::mm_out(p.dx, p.y, p.w);
        at::mm_out(p.dw, p.y.t(), p.x);
      }
    }
  }
  double flops() const { return flops_; }

 private:
  struct Product {
    at::Tensor x, w, y, dx, dw;
    int count;
  };
  std::vector<Product> all_;
  double flops_ = 0;
};

}  // namespace aft::cli
