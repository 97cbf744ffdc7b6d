// Which device a process trains on.
#pragma once

#include <c10/core/Device.h>

#include <string>

#include "aft/train/world.h"

namespace aft::train {

/// `name` as torch has it: cpu, cuda, cuda:1. A kind alone, where the machine
/// has several of it, is the one with the number of this process among those of
/// its machine. Throws std::invalid_argument where it is no name of a device,
/// std::runtime_error where LibTorch cannot use it here.
c10::Device device_for(const std::string& name, const World& world);

}  // namespace aft::train
