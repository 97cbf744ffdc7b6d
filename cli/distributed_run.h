// A process as one rank of a group: what it needs before, and how it ends when
// another fails.
#pragma once

#include <functional>
#include <string>

#include "aft/train/group.h"
#include "aft/train/world.h"

namespace aft::cli {

/// Joins the group, does `work` and leaves. advised: adds to what a person
/// reads when another process failed, and may be called by any thread until the
/// process ends. A failure of this one is told to the others. Where a peer is
/// lost while no thread waits for it, the process ends with exit code
/// kPeerFailed. Throws train::PeerError because of another, std::runtime_error
/// where the group cannot be joined, and what `work` throws. Once a process.
void in_group(const train::World& world, double timeout,
              const std::function<std::string(const std::string&)>& advised,
              const std::function<void(train::Group&)>& work);

}  // namespace aft::cli
