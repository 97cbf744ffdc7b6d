// Include to give a test the memory limit that the program installs.
#pragma once

#include "aft/tasks/memory_limit.h"

namespace aft::tasks {

inline const bool kMemoryIsLimited = (install_memory_limit(), true);

}  // namespace aft::tasks
