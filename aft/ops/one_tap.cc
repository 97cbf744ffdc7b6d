// aft::one_tap: one biased key per head. The kernels implement only the forward
// pass, for |w| <= FastPathLimits<T>::bias and not causal. All other cases
// (gradients, other devices, causal, larger biases) run conv with the
// equivalent one-hot kernel.
#include "aft/kernels/one_tap.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "aft/ops/common.h"
#include "aft/ops/ops.h"

namespace aft::ops {
namespace {

/// Returns the validated offsets [H, dims] on the CPU.
at::Tensor check_offsets(const Checked& c, const at::Tensor& offsets,
                         int64_t dims) {
  TORCH_CHECK(offsets.defined() && offsets.dim() == 2 &&
                  offsets.size(0) == c.H && offsets.size(1) == dims,
              "aft::one_tap: offsets must be [H, sizes of grid] = [", c.H, ", ",
              dims, "], got ",
              offsets.defined() ? shape_of(offsets) : "nothing");
  TORCH_CHECK(offsets.scalar_type() == at::kLong,
              "aft::one_tap: offsets must be int64, got ",
              offsets.scalar_type());
  TORCH_CHECK(
      offsets.device().is_cpu() || offsets.device() == c.k.device(),
      "aft::one_tap: offsets must be on the CPU or on the device of k, ",
      c.k.device(), ", got ", offsets.device());
  const at::Tensor here = offsets.to(at::kCPU).contiguous();
  if (c.causal) {
    const int64_t largest = here.max().item<int64_t>();
    TORCH_CHECK(largest <= 0,
                "aft::one_tap: causal needs offsets of 0 or less, got ",
                largest);
  }
  return here;
}

/// Returns w [H, kernel...] with one tap per head, in the smallest kernel that
/// holds them. A head whose offset leads outside the grid from every position
/// has no tap.
at::Tensor one_hot(const Checked& c, const at::Tensor& w,
                   const at::Tensor& offsets,
                   const std::vector<int64_t>& grid) {
  const size_t dims = grid.size();
  const int64_t* o = offsets.data_ptr<int64_t>();
  const auto meets = [&](int64_t h) {
    for (size_t i = 0; i < dims; ++i) {
      if (o[h * dims + i] <= -grid[i] || o[h * dims + i] >= grid[i])
        return false;
    }
    return true;
  };
  std::vector<int64_t> reach(dims, 0), shape = {c.H};
  for (int64_t h = 0; h < c.H; ++h) {
    for (size_t i = 0; i < dims && meets(h); ++i)
      reach[i] = std::max(reach[i], std::abs(o[h * dims + i]));
  }
  int64_t taps = 1;
  for (int64_t r : reach) {
    shape.push_back(c.causal ? r + 1 : 2 * r + 1);
    taps *= shape.back();
  }
  const at::Tensor tap = at::zeros({c.H, 1}, at::kLong),
                   none = at::zeros({c.H, 1}, at::kBool);
  for (int64_t h = 0; h < c.H; ++h) {
    int64_t at = 0;
    for (size_t i = 0; i < dims && meets(h); ++i)
      at = at * shape[i + 1] + reach[i] + o[h * dims + i];
    tap.data_ptr<int64_t>()[h] = at;
    none.data_ptr<bool>()[h] = !meets(h);
  }
  const at::Tensor values = w.unsqueeze(1).masked_fill(none.to(w.device()), 0);
  return at::zeros({c.H, taps}, w.options())
      .scatter(1, tap.to(w.device()), values)
      .view(shape);
}

template <class T>
bool within_limits(const at::Tensor& w) {
  const T* x = w.data_ptr<T>();
  return std::all_of(x, x + w.numel(), [](T value) {
    return std::abs(value) <=
           kernels::FastPathLimits<T>::bias;  // false for NaN
  });
}

}  // namespace

at::Tensor one_tap(const OptionalTensor& q, const at::Tensor& k,
                   const at::Tensor& v, const at::Tensor& w,
                   const at::Tensor& offsets, const std::vector<int64_t>& grid,
                   const Common& common) {
  const Checked c = check("one_tap", q, k, v, common, true);
  c.check_grid(grid);
  TORCH_CHECK(w.defined(), "aft::one_tap: w must be [H] = [", c.H,
              "], got nothing");
  const at::Tensor parameter =
      c.parameter("w", w, {c.H}, c10::str("[H] = [", c.H, "]"));
  const at::Tensor here =
      check_offsets(c, offsets, static_cast<int64_t>(grid.size()));
  const at::Tensor gate = c.fused_q();
  const bool fast =
      c.use_kernels() && !c.causal && c.Tk <= kernels::kOneTapPositions &&
      !records({gate, c.k, c.v, parameter}) &&
      (c.k.scalar_type() == at::kDouble ? within_limits<double>
                                        : within_limits<float>)(parameter);
  if (!fast)
    return conv(q, k, v, one_hot(c, parameter, here, grid), grid, false,
                common);

  const size_t first = 3 - grid.size();
  std::vector<int64_t> places(3 * c.H, 0);
  int64_t sizes[3] = {1, 1, 1};
  for (size_t i = 0; i < grid.size(); ++i) {
    sizes[first + i] = grid[i];
    for (int64_t h = 0; h < c.H; ++h) {
      places[3 * h + first + i] = here.data_ptr<int64_t>()[h * grid.size() + i];
    }
  }
  const at::Tensor y = at::empty_like(c.v);
  AT_DISPATCH_FLOATING_TYPES(c.k.scalar_type(), "aft::one_tap", [&] {
    kernels::run_one_tap<scalar_t>(
        at_exec(y), problem<scalar_t>(gate, c.k, c.v, c.padded, c.Tk, false),
        {{sizes[0], sizes[1], sizes[2]},
         parameter.data_ptr<scalar_t>(),
         places.data()},
        y.data_ptr<scalar_t>());
  });
  return c.finish(y);
}

}  // namespace aft::ops
