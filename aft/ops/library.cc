// The schemas of torch.ops.aft. Each operator calls a differentiable function
// that selects the kernels or the composite path by the device of k, so it
// needs no dispatch key.
#include <torch/library.h>

#include "aft/ops/ops.h"

namespace aft::ops {
namespace {

using MaybeTensor = const OptionalTensor&;

at::Tensor simple_op(MaybeTensor q, const at::Tensor& k, const at::Tensor& v,
                     MaybeTensor mask, bool causal, std::string gate) {
  return simple(q, k, v, {mask, causal, std::move(gate)});
}
at::Tensor full_op(MaybeTensor q, const at::Tensor& k, const at::Tensor& v,
                   MaybeTensor u, MaybeTensor v_pos, MaybeTensor w,
                   MaybeTensor mask, bool causal, std::string gate) {
  return full(q, k, v, {u, v_pos, w}, {mask, causal, std::move(gate)});
}
at::Tensor local_op(MaybeTensor q, const at::Tensor& k, const at::Tensor& v,
                    int64_t window, MaybeTensor u, MaybeTensor v_pos,
                    MaybeTensor w, bool window_only, MaybeTensor mask,
                    bool causal, std::string gate) {
  return local(q, k, v, window, {u, v_pos, w}, window_only,
               {mask, causal, std::move(gate)});
}
at::Tensor conv_op(MaybeTensor q, const at::Tensor& k, const at::Tensor& v,
                   const at::Tensor& w, at::IntArrayRef grid, bool window_only,
                   MaybeTensor mask, bool causal, std::string gate) {
  return conv(q, k, v, w, grid.vec(), window_only,
              {mask, causal, std::move(gate)});
}
at::Tensor one_tap_op(MaybeTensor q, const at::Tensor& k, const at::Tensor& v,
                      const at::Tensor& w, const at::Tensor& offsets,
                      at::IntArrayRef grid, MaybeTensor mask, bool causal,
                      std::string gate) {
  return one_tap(q, k, v, w, offsets, grid.vec(),
                 {mask, causal, std::move(gate)});
}

}  // namespace

// The arguments at the end of every schema.
#define AFT_COMMON                                         \
  "Tensor? key_padding_mask=None, bool causal=False, str " \
  "gate=\"sigmoid\") -> Tensor"

TORCH_LIBRARY(aft, m) {
  m.def("simple(Tensor? q, Tensor k, Tensor v, *, " AFT_COMMON, &simple_op);
  m.def(
      "full(Tensor? q, Tensor k, Tensor v, *, Tensor? u=None, Tensor? "
      "v_pos=None, Tensor? w=None, " AFT_COMMON,
      &full_op);
  m.def(
      "local(Tensor? q, Tensor k, Tensor v, int window, *, Tensor? u=None, "
      "Tensor? v_pos=None, Tensor? w=None, bool window_only=False, " AFT_COMMON,
      &local_op);
  m.def(
      "conv(Tensor? q, Tensor k, Tensor v, Tensor w, int[] grid, *, "
      "bool window_only=False, " AFT_COMMON,
      &conv_op);
  m.def(
      "one_tap(Tensor? q, Tensor k, Tensor v, Tensor w, Tensor offsets, "
      "int[] grid, *, " AFT_COMMON,
      &one_tap_op);
}

}  // namespace aft::ops
