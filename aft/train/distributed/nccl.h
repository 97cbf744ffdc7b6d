// Exchanges of tensors on GPUs, by c10d's NCCL, where LibTorch has it.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "aft/train/watch.h"

namespace aft::train {

using Work = c10::intrusive_ptr<c10d::Work>;

/// Its destructor ends what is under way.
class Nccl {
 public:
  virtual ~Nccl() = default;
  /// Whether x is for it: on a GPU, and LibTorch has NCCL.
  static bool takes(const at::Tensor& x);
  /// Every process with a device of its own, of the kind that is taken. Throws
  /// PeerError.
  static std::unique_ptr<Nccl> connect(const World& world, const Store& store,
                                       c10::Device device,
                                       std::shared_ptr<Watch> watch);

  /// As Group's; they return once the GPU has been told to.
  virtual Work sum(at::Tensor x) = 0;
  virtual Work broadcast(at::Tensor x) = 0;
  /// Until the GPU has done it. Throws PeerError.
  virtual void finish(const Work& work) = 0;
};

}  // namespace aft::train
