// A bottleneck residual network in plain loops over doubles, as reference for
// ResNet.
#pragma once

#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "aft/models/resnet.h"

namespace aft::models {

/// An image or feature map [C][H][W] in one vector.
struct Map {
  int64_t C, H, W;
  std::vector<double> x;
  Map(int64_t c, int64_t h, int64_t w) : C(c), H(h), W(w), x(c * h * w) {}
  double& at(int64_t c, int64_t h, int64_t w) { return x[(c * H + h) * W + w]; }
  double get(int64_t c, int64_t h, int64_t w) const {
    return x[(c * H + h) * W + w];
  }
};
using Batch = std::vector<Map>;

/// The network in plain loops, from its parameters by name.
class Plain {
 public:
  Plain(const ResNet& model, bool training) : training_(training) {
    for (const auto& p : model->named_parameters()) all_[p.key()] = p.value();
    for (const auto& p : model->named_buffers()) all_[p.key()] = p.value();
  }

  Batch conv(const Batch& in, const std::string& name, int64_t stride) {
    const torch::Tensor w =
        all_.at(name + ".weight").detach().to(torch::kDouble).contiguous();
    const auto a = w.accessor<double, 4>();
    const int64_t K = w.size(2), pad = (K - 1) / 2;
    Batch out;
    for (const Map& x : in) {
      Map y(w.size(0), (x.H + 2 * pad - K) / stride + 1,
            (x.W + 2 * pad - K) / stride + 1);
      for (int64_t o = 0; o < y.C; ++o)
        for (int64_t h = 0; h < y.H; ++h)
          for (int64_t v = 0; v < y.W; ++v) {
            double sum = 0;
            for (int64_t c = 0; c < x.C; ++c)
              for (int64_t i = 0; i < K; ++i)
                for (int64_t j = 0; j < K; ++j) {
                  const int64_t r = h * stride + i - pad,
                                s = v * stride + j - pad;
                  if (r >= 0 && r < x.H && s >= 0 && s < x.W)
                    sum += a[o][c][i][j] * x.get(c, r, s);
                }
            y.at(o, h, v) = sum;
          }
      out.push_back(y);
    }
    return out;
  }

  Batch norm(Batch in, const std::string& name) {
    const auto number = [&](const char* what, int64_t c) {
      return all_.at(name + what)[c].item<double>();
    };
    for (int64_t c = 0; c < in[0].C; ++c) {
      double mean = number(".running_mean", c), var = number(".running_var", c);
      if (training_) {
        double n = 0, sum = 0, squares = 0;
        for (const Map& x : in)
          for (int64_t i = 0; i < x.H * x.W; ++i)
            sum += x.x[c * x.H * x.W + i], n += 1;
        mean = sum / n;
        for (const Map& x : in)
          for (int64_t i = 0; i < x.H * x.W; ++i)
            squares += std::pow(x.x[c * x.H * x.W + i] - mean, 2);
        var = squares / n;
      }
      const double g = number(".weight", c), b = number(".bias", c);
      for (Map& x : in)
        for (int64_t i = 0; i < x.H * x.W; ++i) {
          double& y = x.x[c * x.H * x.W + i];
          y = (y - mean) / std::sqrt(var + 1e-5) * g + b;
        }
    }
    return in;
  }

  static Batch relu(Batch in) {
    for (Map& x : in)
      for (double& y : x.x) y = std::max(y, 0.0);
    return in;
  }

  static Batch pool(const Batch& in) {
    Batch out;
    for (const Map& x : in) {
      Map y(x.C, (x.H - 1) / 2 + 1, (x.W - 1) / 2 + 1);
      for (int64_t c = 0; c < y.C; ++c)
        for (int64_t h = 0; h < y.H; ++h)
          for (int64_t w = 0; w < y.W; ++w) {
            double most = -1e300;
            for (int64_t r = 2 * h - 1; r <= 2 * h + 1; ++r)
              for (int64_t s = 2 * w - 1; s <= 2 * w + 1; ++s)
                if (r >= 0 && r < x.H && s >= 0 && s < x.W)
                  most = std::max(most, x.get(c, r, s));
            y.at(c, h, w) = most;
          }
      out.push_back(y);
    }
    return out;
  }

  torch::Tensor forward(const torch::Tensor& images, bool small,
                        const std::array<int64_t, 4>& blocks) {
    const torch::Tensor input = images.to(torch::kDouble).contiguous();
    Batch x;
    for (int64_t b = 0; b < input.size(0); ++b) {
      x.emplace_back(3, input.size(2), input.size(3));
      std::copy_n(input[b].data_ptr<double>(), x.back().x.size(),
                  x.back().x.begin());
    }
    x = relu(norm(conv(x, "conv1", small ? 1 : 2), "bn1"));
    if (!small) x = pool(x);
    for (int stage = 1; stage <= 4; ++stage)
      for (int64_t i = 0; i < blocks.at(stage - 1); ++i) {
        const std::string at =
            "layer" + std::to_string(stage) + "." + std::to_string(i) + ".";
        const int64_t stride = stage > 1 && i == 0 ? 2 : 1;
        Batch y = relu(norm(conv(x, at + "conv1", 1), at + "bn1"));
        y = relu(norm(conv(y, at + "conv2", stride), at + "bn2"));
        y = norm(conv(y, at + "conv3", 1), at + "bn3");
        if (i == 0)
          x = norm(conv(x, at + "downsample.0", stride), at + "downsample.1");
        for (size_t b = 0; b < y.size(); ++b)
          for (size_t k = 0; k < y[b].x.size(); ++k) y[b].x[k] += x[b].x[k];
        x = relu(y);
      }
    const torch::Tensor w = all_.at("fc.weight").detach().to(torch::kDouble),
                        bias = all_.at("fc.bias").detach().to(torch::kDouble);
    torch::Tensor out =
        torch::zeros({input.size(0), w.size(0)}, torch::kDouble);
    for (int64_t b = 0; b < input.size(0); ++b)
      for (int64_t k = 0; k < w.size(0); ++k) {
        double sum = bias[k].item<double>();
        for (int64_t c = 0; c < x[b].C; ++c) {
          double mean = 0;
          for (int64_t i = 0; i < x[b].H * x[b].W; ++i)
            mean += x[b].x[c * x[b].H * x[b].W + i];
          sum += w[k][c].item<double>() * mean /
                 static_cast<double>(x[b].H * x[b].W);
        }
        out[b][k] = sum;
      }
    return out;
  }

 private:
  std::map<std::string, torch::Tensor> all_;
  bool training_;
};

}  // namespace aft::models
