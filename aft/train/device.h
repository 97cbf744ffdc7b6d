// Selects the device that a process trains on.
#pragma once

#include <c10/core/Device.h>

#include <string>

#include "aft/train/distributed/launch_environment.h"

namespace aft::train {

/// Parses a torch device name: cpu, cuda, cuda:1. If the name has no index and
/// the machine has several devices of that type, the index is the local rank of
/// this process. Throws std::invalid_argument for an invalid name and
/// std::runtime_error if LibTorch cannot use the device on this machine.
c10::Device device_for(const std::string& name,
                       const LaunchEnvironment& environment);

}  // namespace aft::train
