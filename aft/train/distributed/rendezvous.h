// How the processes of a group find each other: a store that all can reach, run
// by rank 0 (or torchrun's agent), and the address at which the others reach
// this process.
#pragma once

#include <chrono>
#include <exception>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "aft/train/distributed/launch_environment.h"

namespace aft::train {

using Store = c10::intrusive_ptr<c10d::Store>;

/// "address:port" of the store.
std::string place_of(const LaunchEnvironment& environment);
/// The process that runs the store, for messages: "rank 0, at 10.0.0.1:29500,".
std::string host_of(const LaunchEnvironment& environment);

/// Connects to the store, waiting for it up to `timeout`. If `host`, starts it
/// first. Throws PeerError; std::runtime_error if the store cannot be started.
Store meet(const LaunchEnvironment& environment, bool host,
           std::chrono::milliseconds timeout);

/// The local address of the interface that routes to rank 0, at which other
/// processes reach this one. Empty if rank 0's name cannot be resolved.
std::string own_address(const LaunchEnvironment& environment);

/// The message of an exception, without the source locations that c10 appends.
std::string reason(const std::exception& e);

}  // namespace aft::train
