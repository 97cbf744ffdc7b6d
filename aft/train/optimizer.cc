#include "aft/train/optimizer.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <stdexcept>

#include "aft/kernels/pointwise.h"

namespace aft::train {
namespace {

constexpr int64_t kPiece = 1 << 16;  // elements per unit of work of a thread

bool fused(const at::Tensor& p, const at::Tensor& g) {
  return p.device().is_cpu() && p.is_contiguous() && g.is_contiguous() &&
         p.scalar_type() == g.scalar_type() &&
         (p.scalar_type() == at::kFloat || p.scalar_type() == at::kDouble);
}

/// The sum of squares of a fused tensor; the same for any number of threads.
double squares(const at::Tensor& x) {
  const int64_t n = x.numel(), pieces = (n + kPiece - 1) / kPiece;
  std::vector<double> sums(pieces);
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "aft::AdamW", [&] {
    const scalar_t* from = x.data_ptr<scalar_t>();
    at::parallel_for(0, pieces, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        sums[i] = kernels::pointwise_kernels<scalar_t>().squares(
            std::min(kPiece, n - i * kPiece), from + i * kPiece);
      }
    });
  });
  double total = 0;
  for (const double s : sums) total += s;
  return total;
}

}  // namespace

double Schedule::at(int64_t step) const {
  if (kind != "rsqrt" && kind != "cosine" && kind != "constant" &&
      kind != "deit") {
    throw std::invalid_argument(
        "train.schedule must be rsqrt, cosine, constant or deit, got '" + kind +
        "'");
  }
  if (kind == "deit") {
    const double each = static_cast<double>(std::max<int64_t>(epoch, 1)),
                 now = std::floor(static_cast<double>(step - 1) / each),
                 warm = static_cast<double>(warmup) / each,
                 all = static_cast<double>(steps) / each;
    if (now < warm) return first + (peak - first) * now / warm;
    return floor + (peak - floor) * 0.5 *
                       (1 + std::cos(M_PI * std::min(now / all, 1.0)));
  }
  const double t = static_cast<double>(step),
               w = static_cast<double>(std::max<int64_t>(warmup, 1));
  if (t < w) return peak * t / w;
  if (kind == "rsqrt") return peak * std::sqrt(w / t);
  if (kind == "cosine") {
    const double end = static_cast<double>(steps),
                 part = end > w ? std::min((t - w) / (end - w), 1.0) : 1.0;
    return floor + (peak - floor) * 0.5 * (1 + std::cos(M_PI * part));
  }
  return peak;
}

AdamW::AdamW(const torch::nn::Module& model, const AdamWOptions& options)
    : options_(options) {
  std::set<const void*> linear;
  for (const auto& m : model.modules()) {
    if (const auto* layer = m->as<torch::nn::Linear>())
      linear.insert(layer->weight.unsafeGetTensorImpl());
    if (const auto* layer = m->as<torch::nn::Conv2d>())
      linear.insert(layer->weight.unsafeGetTensorImpl());
  }
  for (const auto& p : model.named_parameters()) {
    if (!p.value().requires_grad()) continue;
    const at::Tensor like = p.value().detach();
    slots_.push_back({p.key(), p.value(), at::zeros_like(like),
                      at::zeros_like(like),
                      linear.count(p.value().unsafeGetTensorImpl()) > 0});
  }
}

double AdamW::norm() const {
  at::NoGradGuard no_grad;
  double total = 0;
  std::vector<at::Tensor> others;  // norms, read back in one transfer
  for (const Slot& s : slots_) {
    if (!s.parameter.grad().defined()) continue;
    const at::Tensor g = s.parameter.grad().contiguous();
    if (fused(g, g))
      total += squares(g);
    else
      others.push_back(g.norm().to(at::kFloat));
  }
  if (!others.empty()) total += at::stack(others).square().sum().item<double>();
  return std::sqrt(total);
}

double AdamW::step(double lr, double clip, int64_t step) {
  at::NoGradGuard no_grad;
  const double norm = this->norm();
  if (!std::isfinite(norm)) return norm;
  const double t = static_cast<double>(step),
               rate = lr / (1 - std::pow(options_.beta1, t)),
               root = 1 / std::sqrt(1 - std::pow(options_.beta2, t)),
               scale = clip > 0 && norm > clip ? clip / norm : 1;
  for (Slot& s : slots_) {
    at::Tensor g = s.parameter.grad();
    if (!g.defined()) continue;
    at::Tensor p = s.parameter.detach();
    const double decay = s.decay ? options_.decay : 0;
    if (!fused(p, g)) {
      g = g * scale;
      s.m.lerp_(g, 1 - options_.beta1);
      s.v.lerp_(g * g, 1 - options_.beta2);
      p.mul_(1 - lr * decay)
          .addcdiv_(s.m, s.v.sqrt() * root + options_.eps, -rate);
      continue;
    }
    const kernels::AdamWStep how{scale, options_.beta1, options_.beta2,
                                 lr,    decay,          rate,
                                 root,  options_.eps};
    AT_DISPATCH_FLOATING_TYPES(p.scalar_type(), "aft::AdamW", [&] {
      scalar_t *to = p.data_ptr<scalar_t>(), *m = s.m.data_ptr<scalar_t>(),
               *v = s.v.data_ptr<scalar_t>();
      const scalar_t* from = g.data_ptr<scalar_t>();
      at::parallel_for(0, p.numel(), kPiece, [&](int64_t begin, int64_t end) {
        kernels::pointwise_kernels<scalar_t>().adamw(
            how, end - begin, from + begin, to + begin, m + begin, v + begin);
      });
    });
  }
  return norm;
}

void AdamW::zero_grad() {
  for (Slot& s : slots_) {
    // Zeroed in place: avoids reallocation, and Gradients requires it.
    if (s.parameter.grad().defined()) s.parameter.grad().zero_();
  }
}

std::vector<std::pair<std::string, torch::Tensor>> AdamW::state() const {
  std::vector<std::pair<std::string, torch::Tensor>> out;
  for (const Slot& s : slots_) {
    out.emplace_back("m." + s.name, s.m);
    out.emplace_back("v." + s.name, s.v);
  }
  return out;
}

bool AdamW::decays(const std::string& name) const {
  for (const Slot& s : slots_)
    if (s.name == name) return s.decay;
  return false;
}

}  // namespace aft::train
