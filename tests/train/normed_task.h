// A task whose forward pass updates running statistics.
#pragma once

#include <torch/torch.h>

#include "aft/nn/batch_norm.h"
#include "aft/train/trainer.h"

namespace aft::train {

/// Small, but with everything that a checkpoint holds.
class NormedTask : public Task {
 public:
  NormedTask() {
    torch::manual_seed(3);
    net_->push_back(
        torch::nn::Linear(torch::nn::LinearOptions(3, 4).bias(false)));
    net_->push_back(nn::BatchNorm(nn::BatchNormOptions(4)));
  }
  torch::nn::Module& model() override { return *net_; }
  torch::Tensor loss(int64_t first, int64_t count, uint64_t) override {
    const torch::Tensor x = torch::arange(first, first + 3 * count).sin();
    return (net_->forward(x.view({count, 3})) - 1).pow(4).mean();
  }
  using Task::validate;
  Validation validate(int, int) override {
    torch::NoGradGuard no_grad;
    const double loss = this->loss(100, 9, 0).item<double>();
    return {loss, loss, {}};
  }
  int64_t tokens() const override { return 1; }

 private:
  torch::nn::Sequential net_;
};

}  // namespace aft::train
