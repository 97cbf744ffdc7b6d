// Autocast and the functions of this project. A function with kernels or with
// its own backward computes in the types of its arguments, so it disables
// autocast inside and decides itself about mixed types.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <initializer_list>

namespace aft::ops {

/// Disables autocast in this thread, for all devices.
class NoAutocast {
  c10::impl::ExcludeDispatchKeyGuard guard_{c10::autocast_dispatch_keyset};
};

/// Whether autocast applies to operations on x in this thread.
bool autocast_enabled(const at::Tensor& x);

/// The widest floating type of the defined tensors, as autocast's `promote`.
at::ScalarType promoted_type(std::initializer_list<at::Tensor> tensors);
/// x; in float if autocast applies and x is narrower, as autocast's `fp32`.
at::Tensor full_precision(const at::Tensor& x);

/// The autocast settings of a thread for the device of a tensor.
struct AutocastSettings {
  explicit AutocastSettings(const at::Tensor& x);

  c10::DeviceType device;
  c10::DispatchKeySet enabled;  ///< those of the autocast keys
  at::ScalarType type = at::ScalarType::Undefined;  ///< defined if enabled
};

/// Applies settings, perhaps those of another thread, while it exists. Does not
/// use autocast's cache of converted weights: entries made without gradients
/// would later stand for weights with gradients, and others would outlive the
/// autocast region.
class AutocastScope {
 public:
  explicit AutocastScope(const AutocastSettings& settings);
  ~AutocastScope();
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  const AutocastSettings settings_;
  c10::impl::ForceDispatchKeyGuard keys_;
  const bool cache_;
  at::ScalarType type_ = at::ScalarType::Undefined;
};

}  // namespace aft::ops
