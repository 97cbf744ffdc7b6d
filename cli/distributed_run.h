// Runs one rank of a distributed job: sets it up, and ends it when a peer
// fails.
#pragma once

#include <functional>
#include <string>

#include "aft/train/distributed/group.h"
#include "aft/train/distributed/launch_environment.h"

namespace aft::cli {

/// Joins the group, runs `work` and leaves the group. Call at most once per
/// process.
///
/// advised: extends the message shown to the user when a peer has failed. Any
/// thread may call it until the process ends.
///
/// If `work` throws, the other ranks are notified. If a peer is lost while no
/// thread is waiting for it, the process exits with code kPeerFailed.
///
/// Throws train::PeerError if a peer failed, std::runtime_error if the group
/// cannot be joined, and whatever `work` throws.
void run_distributed(
    const train::LaunchEnvironment& environment, double timeout,
    const std::function<std::string(const std::string&)>& advised,
    const std::function<void(train::Group&)>& work);

}  // namespace aft::cli
