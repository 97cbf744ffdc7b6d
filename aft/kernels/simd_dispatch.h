// The end of every *_simd.cc: a table of function pointers per element type and
// SIMD target, and the function that picks the one for this processor. (Highway
// 1.0.3 cannot export templates, hence one table for float and one for double.)
#pragma once

/// Within HWY_NAMESPACE: the members of Kernels<T>, in order.
#define AFT_KERNEL_TABLES(Kernels, ...)                                     \
  template <class T>                                                        \
  const Kernels<T>& Kernels##Table() {                                      \
    static constexpr Kernels<T> kTable = {__VA_ARGS__};                     \
    return kTable;                                                          \
  }                                                                         \
  const Kernels<float>& Kernels##_f32() { return Kernels##Table<float>(); } \
  const Kernels<double>& Kernels##_f64() { return Kernels##Table<double>(); }

/// In namespace aft::kernels, under HWY_ONCE: defines `accessor`, which returns
/// the table for this processor.
#define AFT_EXPORT_KERNELS(Kernels, accessor)     \
  HWY_EXPORT(Kernels##_f32);                      \
  HWY_EXPORT(Kernels##_f64);                      \
  template <>                                     \
  const Kernels<float>& accessor() noexcept {     \
    return HWY_DYNAMIC_DISPATCH(Kernels##_f32)(); \
  }                                               \
  template <>                                     \
  const Kernels<double>& accessor() noexcept {    \
    return HWY_DYNAMIC_DISPATCH(Kernels##_f64)(); \
  }
