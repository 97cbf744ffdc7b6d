#include "aft/ops/autocast.h"

#include <ATen/autocast_mode.h>
#include <torch/version.h>

namespace aft::ops {
namespace {

c10::DispatchKeySet enabled_keys() {
  return c10::autocast_dispatch_keyset -
         c10::impl::tls_local_dispatch_key_set().excluded_;
}

/// The keys of this thread with only these of autocast enabled.
c10::impl::LocalDispatchKeySet keys_with(c10::DispatchKeySet enabled) {
  auto keys = c10::impl::tls_local_dispatch_key_set();
  keys.excluded_ = (keys.excluded_ | c10::autocast_dispatch_keyset) - enabled;
  return keys;
}

void set_type(c10::DeviceType device, at::ScalarType type) {
#if TORCH_VERSION_MAJOR > 2 || \
    (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 4)
  at::autocast::set_autocast_dtype(device, type);
#else
  if (device == c10::DeviceType::CPU) {
    at::autocast::set_autocast_cpu_dtype(type);
  } else if (device == c10::DeviceType::CUDA) {
    at::autocast::set_autocast_gpu_dtype(type);
  } else if (device == c10::DeviceType::XPU) {
    at::autocast::set_autocast_xpu_dtype(type);
  }
#endif
}

}  // namespace

bool autocast_enabled(const at::Tensor& x) {
  return x.defined() && !(x.key_set() & enabled_keys()).empty();
}

at::ScalarType promoted_type(std::initializer_list<at::Tensor> tensors) {
  at::ScalarType type = at::ScalarType::Undefined;
  for (const at::Tensor& x : tensors) {
    if (!x.defined()) continue;
    type = type == at::ScalarType::Undefined
               ? x.scalar_type()
               : at::promote_types(type, x.scalar_type());
  }
  return type;
}

at::Tensor full_precision(const at::Tensor& x) {
  const bool narrow =
      x.scalar_type() == at::kHalf || x.scalar_type() == at::kBFloat16;
  return narrow && autocast_enabled(x) ? x.to(at::kFloat) : x;
}

AutocastSettings::AutocastSettings(const at::Tensor& x)
    : device(x.device().type()), enabled(enabled_keys()) {
  if (autocast_enabled(x))
    type = at::autocast::get_lower_precision_fp_from_device_type(device);
}

AutocastScope::AutocastScope(const AutocastSettings& settings)
    : settings_(settings),
      keys_(keys_with(settings.enabled)),
      cache_(at::autocast::is_autocast_cache_enabled()) {
  at::autocast::set_autocast_cache_enabled(false);
  if (settings_.type == at::ScalarType::Undefined) return;
  type_ =
      at::autocast::get_lower_precision_fp_from_device_type(settings_.device);
  set_type(settings_.device, settings_.type);
}

AutocastScope::~AutocastScope() {
  at::autocast::set_autocast_cache_enabled(cache_);
  if (type_ != at::ScalarType::Undefined) set_type(settings_.device, type_);
}

}  // namespace aft::ops
