#include "aft/nn/block.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "aft/ops/function.h"
#include "aft/ops/pointwise.h"

namespace aft::nn {

BlockImpl::BlockImpl(const BlockOptions& o) : options(o) { reset(); }

void BlockImpl::reset() {
  const int64_t dim = options.mixer().dim, inner = dim * options.mlp();
  TORCH_CHECK(dim >= 1 && options.mlp() >= 1,
              "Block: dim and mlp must be 1 or more, got ", dim, " and ",
              options.mlp());
  TORCH_CHECK(options.dropout() >= 0 && options.dropout() < 1,
              "Block: dropout must be in [0, 1), got ", options.dropout());
  TORCH_CHECK(options.drop_path() >= 0 && options.drop_path() < 1,
              "Block: drop_path must be in [0, 1), got ", options.drop_path());
  const auto norm = torch::nn::LayerNormOptions({dim}).eps(options.eps());
  norm1 = register_module("norm1", torch::nn::LayerNorm(norm));
  mixer = register_module("mixer", make_mixer(options.mixer()));
  norm2 = register_module("norm2", torch::nn::LayerNorm(norm));
  fc1 = register_module("fc1", torch::nn::Linear(dim, inner));
  fc2 = register_module("fc2", torch::nn::Linear(inner, dim));
}

torch::Tensor BlockImpl::mlp(const torch::Tensor& x) {
  return ops::mlp(x, fc1->weight, fc1->bias, fc2->weight, fc2->bias);
}

torch::Tensor BlockImpl::join(const torch::Tensor& x,
                              const torch::Tensor& branch, uint64_t seed) {
  const double p = is_training() ? options.dropout() : 0,
               path = is_training() ? options.drop_path() : 0;
  if (path == 0) return ops::dropout_add(x, branch, p, seed);
  // One factor per sample: 0, or 1 / (1 - path).
  const torch::Tensor kept = ops::dropout_add(
      {}, at::ones({x.size(0), 1, 1}, x.options()), path, base::mix(seed, 1));
  return at::addcmul(x, ops::dropout_add({}, branch, p, seed), kept);
}

void BlockImpl::pack_for_inference() {
  mixer->pack_for_inference();
  fc1.pack(), fc2.pack();
}

torch::Tensor BlockImpl::infer(const torch::Tensor& x,
                               const std::vector<int64_t>& grid) {
  const torch::Tensor y = norm1(x);
  torch::Tensor mixed =
      grid.empty() ? mixer->forward(y) : mixer->forward_grid(y, grid);
  mixed.add_(x);
  // Applies GELU and adds the residual while the values are in registers.
  fc2.packed().add(fc1.packed()(norm2(mixed), kernels::Then::kGelu), mixed);
  return mixed;
}

torch::Tensor BlockImpl::forward(const torch::Tensor& x, uint64_t seed,
                                 const std::vector<int64_t>& grid) {
  if (fc1.is_packed() && fc2.is_packed()) return infer(x, grid);
  if (is_training()) mixer->redraw(base::mix(seed, 3));
  const torch::Tensor y = norm1(ops::full_precision(x));
  const torch::Tensor mixed =
      join(x, grid.empty() ? mixer->forward(y) : mixer->forward_grid(y, grid),
           base::mix(seed, 1));
  return join(mixed, mlp(norm2(ops::full_precision(mixed))),
              base::mix(seed, 2));
}

torch::Tensor BlockImpl::step(const torch::Tensor& x, ops::Stream& stream) {
  at::NoGradGuard no_grad;
  const torch::Tensor mixed =
      x + mixer->step(norm1(ops::full_precision(x)), stream);
  return mixed + mlp(norm2(ops::full_precision(mixed)));
}

namespace {

/// What forward passes to backward, as a capsule.
struct Holder : torch::CustomClassHolder {
  Holder(Block block, const at::Tensor& x)
      : block(std::move(block)), autocast(x) {}
  Block block;
  ops::AutocastSettings autocast;
};

struct Recompute {
  static constexpr char kName[] = "recomputed";

  static at::Tensor forward(torch::autograd::AutogradContext* ctx,
                            const at::Tensor& x,
                            const c10::intrusive_ptr<Holder>& holder,
                            int64_t seed, std::vector<int64_t> grid) {
    ctx->save_for_backward({x});
    ctx->saved_data["seed"] = seed;
    ctx->saved_data["grid"] = grid;
    ctx->saved_data["row"] = ops::FirstRow::current();
    ctx->saved_data["holder"] = c10::IValue::make_capsule(holder);
    const ops::AutocastScope autocast(holder->autocast);
    return holder->block->forward(x, static_cast<uint64_t>(seed), grid);
  }

  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* ctx,
      const torch::autograd::variable_list& grads) {
    at::Tensor x = ctx->get_saved_variables()[0].detach();
    x.requires_grad_(true);
    const auto holder = c10::static_intrusive_pointer_cast<Holder>(
        ctx->saved_data["holder"].toCapsule());
    at::AutoGradMode record(true);
    const ops::AutocastScope autocast(holder->autocast);
    const ops::FirstRow rows(ctx->saved_data["row"].toInt());
    const at::Tensor y = holder->block->forward(
        x, static_cast<uint64_t>(ctx->saved_data["seed"].toInt()),
        ctx->saved_data["grid"].toIntVector());
    torch::autograd::backward({y}, {grads[0]});
    return {x.grad(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

torch::Tensor recomputed(const Block& block, const torch::Tensor& x,
                         uint64_t seed, const std::vector<int64_t>& grid) {
  return ops::OnceDifferentiable<Recompute>::apply(
      x, c10::make_intrusive<Holder>(block, x), static_cast<int64_t>(seed),
      grid);
}

}  // namespace aft::nn
