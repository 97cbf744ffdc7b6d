// An installed aft::aft: the operator is there for C++ and for the dispatcher
// (torch.ops), and both are the same.
#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdio>

#include "aft/ops/ops.h"

int main() {
  const at::Tensor q = at::randn({2, 5, 4}), k = at::randn({2, 5, 4}),
                   v = at::randn({2, 5, 4});
  torch::jit::Stack stack = {q, k, v, c10::IValue(), false, "sigmoid"};
  c10::Dispatcher::singleton()
      .findSchemaOrThrow("aft::simple", "")
      .callBoxed(stack);
  const at::Tensor by_name = stack.at(0).toTensor();
  const at::Tensor weight = k.softmax(1);
  const at::Tensor expected = q.sigmoid() * (weight * v).sum(1, true);
  if (!at::allclose(by_name, expected, 1e-5, 1e-6)) {
    std::puts("use_aft: the operator aft::simple is not sigmoid(q) <v>");
    return 1;
  }
  if (!at::equal(aft::ops::simple(q, k, v), by_name)) {
    std::puts("use_aft: aft::ops::simple differs from the operator");
    return 1;
  }
  std::puts("use_aft: ok");
}
