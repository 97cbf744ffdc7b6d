// Autocast in a test.
#pragma once

#include <ATen/autocast_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace aft::testing {

/// Autocast to bfloat16 on the CPU in this thread, as torch.autocast("cpu").
class Autocast {
 public:
  Autocast() { enable(true); }
  ~Autocast() {
    enable(false);
    at::autocast::clear_cache();
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  static void enable(bool on) {
    c10::impl::tls_set_dispatch_key_excluded(c10::DispatchKey::AutocastCPU,
                                             !on);
  }
};

}  // namespace aft::testing
