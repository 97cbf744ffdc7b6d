// Where the processes of a group meet: a store at rank 0 (or torchrun's agent)
// that all can reach, and the address at which the others reach this one.
#pragma once

#include <chrono>
#include <exception>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "aft/train/world.h"

namespace aft::train {

using Store = c10::intrusive_ptr<c10d::Store>;

/// "address:port" of where all meet.
std::string place_of(const World& world);
/// Who listens there: "rank 0, at 10.0.0.1:29500,".
std::string host_of(const World& world);

/// A way to there; host: makes the place first. Waits for it, for `timeout` at
/// the most. Throws PeerError; std::runtime_error where the place cannot be
/// made.
Store meet(const World& world, bool host, std::chrono::milliseconds timeout);

/// The address of this machine that faces rank 0's: other processes reach it
/// there. Empty where the name of rank 0 is unknown.
std::string own_address(const World& world);

/// What an error says, without the lines of code that c10's add.
std::string reason(const std::exception& e);

}  // namespace aft::train
