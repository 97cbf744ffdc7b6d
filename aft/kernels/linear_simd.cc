// y = f(x w^T + b), in tiles of a few rows by kPanel outputs that stay in
// registers while the products of all inputs are summed.
#include "aft/kernels/linear.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "aft/kernels/linear_simd.cc"
#include <hwy/foreach_target.h>
// foreach_target.h comes first.
#include <hwy/highway.h>

#include <algorithm>

#include "aft/kernels/math_simd-inl.h"
#include "aft/kernels/simd_dispatch.h"

HWY_BEFORE_NAMESPACE();
namespace aft {
namespace kernels {
namespace HWY_NAMESPACE {

/// Vectors per panel, and rows per tile: 12 sums, a vector of weights and an
/// element of x fit into the 16 registers that most targets have.
template <class T>
inline constexpr int kVectors = kPanel /
                                static_cast<int>(hn::MaxLanes(TileTag<T>()));
template <class T>
inline constexpr int kTileRows = kVectors<T> >= 12 ? 1 : 12 / kVectors<T>;

/// Elements of x per block of rows: they stay in the second-level cache while
/// all panels are multiplied.
constexpr int64_t kBlock = 1 << 15;

template <class T>
struct Output {
  const T* bias;  // of the panel; null: none
  Then then;
  T* y;
  int64_t stride;
  int lanes;  // number of outputs in the panel
};

template <class D>
HWY_INLINE hn::Vec<D> Finished(D d, hn::Vec<D> x, const TOf<D>* bias, Then then,
                               const TOf<D>* y) {
  if (bias) x = hn::Add(x, hn::LoadU(d, bias));
  if (then == Then::kGelu) {
    auto density = x;
    return hn::Mul(x, Phi(d, x, density));
  }
  return then == Then::kAdd ? hn::Add(x, hn::LoadU(d, y)) : x;
}

template <int kCount, class T>
HWY_INLINE void Tile(int64_t inputs, const T* HWY_RESTRICT x, int64_t stride,
                     const T* HWY_RESTRICT w, const Output<T>& out) {
  const TileTag<T> d;
  constexpr int kV = kVectors<T>;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  hn::Vec<TileTag<T>> sum[kCount][kV];
  for (int r = 0; r < kCount; ++r)
    for (int v = 0; v < kV; ++v) sum[r][v] = hn::Zero(d);
  const T* row[kCount];
  for (int r = 0; r < kCount; ++r) row[r] = x + r * stride;
  for (int64_t k = 0; k < inputs; ++k, w += kPanel) {
    hn::Vec<TileTag<T>> weight[kV];
    for (int v = 0; v < kV; ++v) weight[v] = hn::Load(d, w + v * N);
    for (int r = 0; r < kCount; ++r) {
      const auto one = hn::Set(d, row[r][k]);
      for (int v = 0; v < kV; ++v)
        sum[r][v] = hn::MulAdd(one, weight[v], sum[r][v]);
    }
  }
  for (int r = 0; r < kCount; ++r) {
    T* y = out.y + r * out.stride;
    if (out.lanes == kPanel) {
      for (int v = 0; v < kV; ++v) {
        hn::StoreU(Finished(d, sum[r][v], out.bias ? out.bias + v * N : nullptr,
                            out.then, y + v * N),
                   d, y + v * N);
      }
      continue;
    }
    // A partial panel is stored through a full buffer.
    HWY_ALIGN T all[kPanel] = {}, bias[kPanel] = {};
    for (int i = 0; i < out.lanes; ++i) {
      if (out.then == Then::kAdd) all[i] = y[i];
      if (out.bias) bias[i] = out.bias[i];
    }
    for (int v = 0; v < kV; ++v)
      hn::Store(Finished(d, sum[r][v], bias + v * N, out.then, all + v * N), d,
                all + v * N);
    std::copy_n(all, out.lanes, y);
  }
}

/// The remaining rows, fewer than a tile.
template <int kCount, class T>
HWY_INLINE void Rest(int64_t rows, int64_t inputs, const T* x, int64_t stride,
                     const T* w, const Output<T>& out) {
  if constexpr (kCount > 0) {
    if (rows == kCount)
      Tile<kCount>(inputs, x, stride, w, out);
    else
      Rest<kCount - 1>(rows, inputs, x, stride, w, out);
  }
}

template <class T>
void Run(int64_t rows, int64_t outputs, int64_t inputs, const T* x,
         int64_t x_stride, const T* packed, const T* bias, Then then, T* y,
         int64_t y_stride) {
  constexpr int kR = kTileRows<T>;
  const int64_t block =
      std::max<int64_t>(kR, kBlock / std::max<int64_t>(inputs, 1) / kR * kR);
  for (int64_t begin = 0; begin < rows; begin += block) {
    const int64_t end = std::min(rows, begin + block);
    for (int64_t p = 0; p < packed_panels(outputs); ++p) {
      const T* w = packed + p * inputs * kPanel;
      const int lanes =
          static_cast<int>(std::min<int64_t>(kPanel, outputs - p * kPanel));
      for (int64_t r = begin; r < end; r += kR) {
        const Output<T> out{bias ? bias + p * kPanel : nullptr, then,
                            y + r * y_stride + p * kPanel, y_stride, lanes};
        if (r + kR <= end)
          Tile<kR>(inputs, x + r * x_stride, x_stride, w, out);
        else
          Rest<kR - 1>(end - r, inputs, x + r * x_stride, x_stride, w, out);
      }
    }
  }
}

template <class T>
void Pack(int64_t outputs, int64_t inputs, const T* w, T* packed) {
  for (int64_t p = 0; p < packed_panels(outputs); ++p) {
    for (int64_t k = 0; k < inputs; ++k) {
      for (int64_t i = p * kPanel; i < (p + 1) * kPanel; ++i)
        *packed++ = i < outputs ? w[i * inputs + k] : T(0);
    }
  }
}

AFT_KERNEL_TABLES(LinearKernels, Pack<T>, Run<T>)

}  // namespace HWY_NAMESPACE
}  // namespace kernels
}  // namespace aft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace aft::kernels {

AFT_EXPORT_KERNELS(LinearKernels, linear_kernels)

}  // namespace aft::kernels
#endif
