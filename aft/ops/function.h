// The base of the functions with their own backward pass.
#pragma once

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <initializer_list>
#include <utility>
#include <vector>

#include "aft/ops/autocast.h"

namespace aft::ops {

/// Which tensor arguments of a function need a gradient in this backward pass.
/// arguments: all of them, in order; undefined if absent.
std::vector<bool> needed(const torch::autograd::AutogradContext* ctx,
                         std::initializer_list<at::Tensor> arguments);

/// The edges of a graph, as an IValue.
c10::IValue keep_edges(torch::autograd::edge_list edges);
/// Connects `results` to the `kept` edges and to `grads` by a node that throws
/// c10::Error in backward: `name`: second derivatives are not implemented.
void refuse_second_derivatives(const char* name, const c10::IValue& kept,
                               const torch::autograd::variable_list& grads,
                               torch::autograd::variable_list& results);

/// OnceDifferentiable<F>::apply(...) computes F::forward, and F::backward for
/// the gradients, both as in torch::autograd::Function. F::kName names it in
/// messages. Both run without autocast, in whatever thread, and backward
/// without autograd. With create_graph, an error is thrown only if a second
/// derivative is really taken.
template <class F>
struct OnceDifferentiable : torch::autograd::Function<OnceDifferentiable<F>> {
  template <class... Args>
  static auto forward(torch::autograd::AutogradContext* ctx, Args&&... args) {
    const NoAutocast no_autocast;
    std::vector<bool> is_tensor;
    torch::autograd::variable_list tensors;
    torch::autograd::extract_vars(is_tensor, tensors, args...);
    ctx->saved_data["edges"] =
        keep_edges(torch::autograd::collect_next_edges(tensors));
    return F::forward(ctx, std::forward<Args>(args)...);
  }

  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* ctx,
      const torch::autograd::variable_list& grads) {
    torch::autograd::variable_list results;
    {
      const NoAutocast no_autocast;
      const at::NoGradGuard no_grad;
      results = F::backward(ctx, grads);
    }
    if (at::GradMode::is_enabled())
      refuse_second_derivatives(F::kName, ctx->saved_data.at("edges"), grads,
                                results);
    return results;
  }
};

}  // namespace aft::ops
