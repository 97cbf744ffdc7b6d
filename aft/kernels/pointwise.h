// The elementwise operations of a training step, each in one pass over memory:
// GELU with its bias, dropout with the residual, AdamW; and the softmax of rows
// that fit into the cache. Nothing here allocates, starts a thread, throws or
// prints; callers split the work.
#pragma once

#include <cstdint>

#include "aft/base/random.h"

namespace aft::kernels {

/// One step of AdamW on one group of parameters:
///   m = beta1 m + (1 - beta1) g,  v = beta2 v + (1 - beta2) g^2
///   p = p (1 - lr decay) - rate m / (sqrt(v) * root + eps)
/// with g = grad * scale (clipping), rate = lr / (1 - beta1^t) and
/// root = 1 / sqrt(1 - beta2^t).
struct AdamWStep {
  double scale, beta1, beta2, lr, decay, rate, root, eps;
};

/// Which elements dropout keeps: those whose hash of (seed, index) is not below
/// a threshold, so that backward needs no mask and the result does not depend
/// on how the work is split. With h = index mod 2^32, in 32 bits,
///   h ^= a,  h = (h ^ h >> 16) 0x85EBCA6B + b,  h = (h ^ h >> 13) 0xC2B2AE35
/// the hash is h ^ h >> 16.
struct Dropout {
  uint64_t seed;
  /// Probability of being dropped, in [0, 1). Other elements are scaled by 1 /
  /// (1 - p).
  double p;

  struct Words {
    uint32_t a, b;
  };
  /// For the elements that share index >> 32: each group of 2^32 elements has
  /// its own seed.
  Words words(uint64_t index) const {
    const uint64_t x =
        base::scramble_high(seed + (index >> 32) * base::kSplitMixStep);
    return {static_cast<uint32_t>(x), static_cast<uint32_t>(x >> 32)};
  }
  /// Elements with a hash below this are dropped.
  uint32_t limit() const { return static_cast<uint32_t>(p * 0x1p32); }
};

template <class T>
struct PointwiseKernels {
  /// y = gelu(x + b), gelu(x) = x Phi(x), for `rows` rows of n elements; b [n].
  /// Absolute error below 5e-7 |x|. y may be x.
  void (*gelu)(int64_t rows, int64_t n, const T* x, const T* b, T* y);
  /// dx = dy gelu'(x + b), and db [n] += the sum of its rows. dx may be dy.
  void (*gelu_backward)(int64_t rows, int64_t n, const T* x, const T* b,
                        const T* dy, T* dx, T* db);
  /// y[i] = r[i] + kept(first + i) x[i] / (1 - p) for n elements; r null: 0.
  /// The backward pass is the same with dy for x and no r.
  void (*dropout)(const Dropout&, int64_t first, int64_t n, const T* x,
                  const T* r, T* y);
  /// Reads grad, updates the others.
  void (*adamw)(const AdamWStep&, int64_t n, const T* grad, T* p, T* m, T* v);
  /// x = softmax(x) for each of `rows` rows of n elements. A row with a NaN or
  /// +inf, or of -inf only, becomes NaN.
  void (*softmax)(int64_t rows, int64_t n, T* x);
  /// The sum of squares, in double.
  double (*squares)(int64_t n, const T* x);
};
template <class T>
const PointwiseKernels<T>& pointwise_kernels() noexcept;

}  // namespace aft::kernels
