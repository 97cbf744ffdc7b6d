// A fake device, "xpu", whose memory the CPU cannot access, like that of a GPU.
// Torch knows the name but has no backend for it. Operators run on the CPU, on
// copies. Code that dereferences a data pointer of the device crashes, and an
// operator with tensors on two devices throws, as on a GPU.
#pragma once

#include <ATen/native/CPUFallback.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>
#include <torch/torch.h>

#include <atomic>
#include <cstdlib>
#include <string>

namespace aft::far_device {

constexpr c10::DeviceType kType = c10::DeviceType::XPU;
inline const c10::Device kDevice(kType, 0);
/// Above all addresses of x86-64 and ARM processes.
constexpr uintptr_t kFar = uintptr_t{1} << 56;

/// The number of operators that ran on the device.
inline std::atomic<int64_t> operators{0};

inline void* moved(void* p, uintptr_t by) {
  return reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(p) + by);
}

struct Allocator : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) const override {
    void* p = std::malloc(bytes + 1);
    return {moved(p, kFar), p, &std::free, kDevice};
  }
};

inline Allocator& allocator() {
  static Allocator one;
  return one;
}

/// The same values as a CPU tensor.
inline at::Tensor near(const at::Tensor& x) {
  if (x.is_cpu()) return x;
  return at::from_blob(moved(x.data_ptr(), -kFar), x.sizes(), x.strides(),
                       at::TensorOptions(x.dtype()));
}

inline at::Tensor empty(at::IntArrayRef size,
                        c10::optional<at::ScalarType> type,
                        c10::optional<at::Layout>, c10::optional<at::Device>,
                        c10::optional<bool>,
                        c10::optional<at::MemoryFormat> format) {
  return at::Tensor(at::detail::empty_generic(
      size, &allocator(), c10::DispatchKeySet(c10::DispatchKey::XPU),
      c10::dtype_or_default(type), format));
}

inline at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride,
                                c10::optional<at::ScalarType> type,
                                c10::optional<at::Layout>,
                                c10::optional<at::Device>,
                                c10::optional<bool>) {
  return at::Tensor(at::detail::empty_strided_generic(
      size, stride, &allocator(), c10::DispatchKeySet(c10::DispatchKey::XPU),
      c10::dtype_or_default(type)));
}

inline at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to,
                            bool) {
  near(to).copy_(near(from));
  return to;
}

/// The contents are lost if it grows.
inline const at::Tensor& resize(const at::Tensor& x, at::IntArrayRef size,
                                c10::optional<at::MemoryFormat>) {
  const c10::Storage& storage = x.storage();
  const size_t bytes = at::detail::computeStorageNbytesContiguous(
      size, x.itemsize(), static_cast<size_t>(x.storage_offset()));
  if (bytes > storage.nbytes()) {
    storage.set_data_ptr_noswap(allocator().allocate(bytes));
    storage.set_nbytes(bytes);
  }
  x.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  return x;
}

inline at::Tensor copy_from_and_resize(const at::Tensor& from,
                                       const at::Tensor& to) {
  if (to.sizes() != from.sizes()) to.resize_(from.sizes());
  return copy_from(from, to, false);
}

inline void on_the_cpu(const c10::OperatorHandle& op,
                       torch::jit::Stack* stack) {
  ++operators;
  const size_t n = op.schema().arguments().size();
  for (size_t i = stack->size() - n; i < stack->size(); ++i) {
    const c10::IValue& value = (*stack)[i];
    const auto check = [&](const at::Tensor& x) {
      TORCH_CHECK(!x.defined() || x.device() == kDevice || x.dim() == 0,
                  op.schema().name(), ": expected all tensors to be on ",
                  kDevice, ", got one of shape ", x.sizes(), " on ",
                  x.device());
    };
    if (value.isTensor()) check(value.toTensor());
    if (value.isTensorList())
      for (const at::Tensor& x : value.toTensorVector()) check(x);
  }
  at::native::cpu_fallback(op, stack);
}

// What cpu_fallback cannot do: convolutions, which have a different name on
// devices, and running statistics, whose schema does not declare that they are
// modified.

inline at::Tensor convolution(const at::Tensor& x, const at::Tensor& w,
                              const c10::optional<at::Tensor>& b,
                              at::IntArrayRef stride, at::IntArrayRef padding,
                              at::IntArrayRef dilation, bool transposed,
                              at::IntArrayRef output_padding, int64_t groups) {
  ++operators;
  c10::optional<at::Tensor> bias;
  if (b && b->defined()) bias = near(*b);
  return at::convolution(near(x), near(w), bias, stride, padding, dilation,
                         transposed, output_padding, groups)
      .to(kDevice);
}

inline std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& dy, const at::Tensor& x, const at::Tensor& w,
    at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation,
    bool transposed, at::IntArrayRef output_padding, int64_t groups,
    std::array<bool, 3> wanted) {
  ++operators;
  const std::vector<int64_t> bias = {transposed ? w.size(1) * groups
                                                : w.size(0)};
  auto [dx, dw, db] = at::convolution_backward(
      near(dy), near(x), near(w), bias, stride, padding, dilation, transposed,
      output_padding, groups, wanted);
  const auto there = [](const at::Tensor& t) {
    return t.defined() ? t.to(kDevice) : t;
  };
  return {there(dx), there(dw), there(db)};
}

inline std::tuple<at::Tensor, at::Tensor, at::Tensor> batch_norm(
    const at::Tensor& x, const c10::optional<at::Tensor>& weight,
    const c10::optional<at::Tensor>& bias,
    const c10::optional<at::Tensor>& mean,
    const c10::optional<at::Tensor>& variance, bool training, double momentum,
    double eps) {
  ++operators;
  const auto here = [](const c10::optional<at::Tensor>& t) {
    return t && t->defined() ? near(*t) : at::Tensor();
  };
  auto [y, m, v] =
      at::native_batch_norm(near(x), here(weight), here(bias), here(mean),
                            here(variance), training, momentum, eps);
  return {y.to(kDevice), m.to(kDevice), v.to(kDevice)};
}

TORCH_LIBRARY_IMPL(_, XPU, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&on_the_cpu>());
}

TORCH_LIBRARY_IMPL(aten, XPU, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("resize_", &resize);
  m.impl("unfold", &at::native::unfold);
  m.impl("convolution_overrideable", &convolution);
  m.impl("convolution_backward_overrideable", &convolution_backward);
  m.impl("native_batch_norm", &batch_norm);
}

/// One device, one stream.
struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device) const override { return kDevice; }
  c10::Device getDevice() const override { return kDevice; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const noexcept override {
    return c10::Stream(c10::Stream::DEFAULT, kDevice);
  }
  c10::Stream exchangeStream(c10::Stream) const noexcept override {
    return c10::Stream(c10::Stream::DEFAULT, kDevice);
  }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
};
C10_REGISTER_GUARD_IMPL(XPU, Guard);

}  // namespace aft::far_device
