#include "aft/ops/function.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/custom_class.h>

#include <string>

namespace aft::ops {
namespace {

using torch::autograd::edge_list;
using torch::autograd::variable_list;

struct KeptEdges : torch::CustomClassHolder {
  explicit KeptEdges(edge_list edges) : edges(std::move(edges)) {}
  edge_list edges;
};

struct SecondDerivative : torch::autograd::Node {
  SecondDerivative(std::string name, edge_list&& next)
      : Node(std::move(next)), of(std::move(name)) {}
  variable_list apply(variable_list&& /*grads*/) override {
    TORCH_CHECK(false, of, ": second derivatives are not implemented");
  }
  const std::string of;
};

}  // namespace

std::vector<bool> needed(const torch::autograd::AutogradContext* ctx,
                         std::initializer_list<at::Tensor> arguments) {
  std::vector<bool> all;
  size_t edge = 0;  // absent arguments have none
  for (const at::Tensor& x : arguments)
    all.push_back(x.defined() && ctx->needs_input_grad(edge++));
  return all;
}

c10::IValue keep_edges(edge_list edges) {
  return c10::IValue::make_capsule(
      c10::make_intrusive<KeptEdges>(std::move(edges)));
}

// The edges to the arguments make every second derivative pass through the
// node, also if the gradient of the result is a constant.
void refuse_second_derivatives(const char* name, const c10::IValue& kept,
                               const variable_list& grads,
                               variable_list& results) {
  edge_list edges =
      c10::static_intrusive_pointer_cast<KeptEdges>(kept.toCapsule())->edges;
  for (torch::autograd::Edge& edge : torch::autograd::collect_next_edges(grads))
    edges.push_back(std::move(edge));
  const std::shared_ptr<torch::autograd::Node> node(
      new SecondDerivative(name, std::move(edges)),
      torch::autograd::deleteNode);
  for (at::Tensor& x : results) {
    if (!x.defined()) continue;
    x = x.detach();
    torch::autograd::set_history(x, node);
  }
}

}  // namespace aft::ops
