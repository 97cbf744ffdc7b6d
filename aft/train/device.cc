#include "aft/train/device.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

#include <cstdlib>
#include <stdexcept>

namespace aft::train {

c10::Device device_for(const std::string& name,
                       const LaunchEnvironment& environment) {
  c10::Device device(c10::kCPU);
  try {
    device = c10::Device(name);
  } catch (const c10::Error&) {
    throw std::invalid_argument(
        "expected a torch device name, for example cpu, cuda or cuda:1, got '" +
        name + "'");
  }
  if (device.is_cpu()) return c10::kCPU;
  const std::string kind = c10::DeviceTypeName(device.type(), true);
  const int count =
      device.is_meta() || !c10::impl::hasDeviceGuardImpl(device.type())
          ? 0
          : c10::impl::getDeviceGuardImpl(device.type())->deviceCount();
  if (count == 0)
    throw std::runtime_error("device " + name + ": LibTorch finds no " + kind +
                             " device on this machine");
  // A launcher may have made only one device visible to each process.
  const bool alone = count == 1 && (environment.local_size == 1 ||
                                    std::getenv("CUDA_VISIBLE_DEVICES"));
  const auto few = [&](const std::string& which, const std::string& but) {
    throw std::runtime_error("device " + which + ": this machine has " +
                             std::to_string(count) + " " + kind +
                             (count == 1 ? " device" : " devices") + but);
  };
  if (!device.has_index() && !alone && environment.local_size > count)
    few(kind, ", for " + std::to_string(environment.local_size) + " processes");
  const int number = device.has_index() ? device.index()
                     : alone            ? 0
                                        : environment.local_rank;
  if (number >= count) few(kind + ":" + std::to_string(number), "");
  return {device.type(), static_cast<c10::DeviceIndex>(number)};
}

}  // namespace aft::train
