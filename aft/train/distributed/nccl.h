// Collective operations on GPU tensors through c10d's NCCL, if LibTorch has it.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "aft/train/distributed/heartbeat.h"

namespace aft::train {

using Work = c10::intrusive_ptr<c10d::Work>;

/// The destructor aborts pending operations.
class Nccl {
 public:
  virtual ~Nccl() = default;
  /// Whether NCCL handles x: x is on a GPU and LibTorch has NCCL.
  static bool takes(const at::Tensor& x);
  /// Every process must use a different device, of a type that takes() accepts.
  /// Throws PeerError.
  static std::unique_ptr<Nccl> connect(const LaunchEnvironment& environment,
                                       const Store& store, c10::Device device,
                                       std::shared_ptr<Heartbeat> watch);

  /// Like those of Group, but they return once the operation is queued on the
  /// GPU.
  virtual Work sum(at::Tensor x) = 0;
  virtual Work broadcast(at::Tensor x) = 0;
  /// Waits until the GPU has completed the operation. Throws PeerError.
  virtual void finish(const Work& work) = 0;
};

}  // namespace aft::train
