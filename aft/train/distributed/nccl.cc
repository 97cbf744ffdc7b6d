#include "aft/train/distributed/nccl.h"

#include <ATen/ATen.h>

#ifdef USE_C10D_NCCL  // defined by LibTorch's CMake target
#include <c10/core/DeviceGuard.h>
#include <stdlib.h>

#include <chrono>
#include <thread>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#include <utility>
#include <vector>
#endif

namespace aft::train {

#ifndef USE_C10D_NCCL

bool Nccl::takes(const at::Tensor&) { return false; }

std::unique_ptr<Nccl> Nccl::connect(const LaunchEnvironment&, const Store&,
                                    c10::Device, std::shared_ptr<Heartbeat>) {
  return nullptr;
}

#else

namespace {

class Gpus : public Nccl {
 public:
  Gpus(const LaunchEnvironment& environment, const Store& store,
       c10::Device device, std::shared_ptr<Heartbeat> watch)
      : heartbeat_(std::move(watch)) {
    // torchrun sets these, and c10d would then abort the process on an error,
    // before Heartbeat has found the failed rank.
    for (const char* name :
         {"NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ASYNC_ERROR_HANDLING",
          "NCCL_BLOCKING_WAIT", "TORCH_NCCL_BLOCKING_WAIT"})
      setenv(name, "0", 1);
    const auto options = c10d::ProcessGroupNCCL::Options::create();
    options->timeout = kNever;
    group_ = c10::make_intrusive<c10d::ProcessGroupNCCL>(
        store, environment.rank, environment.size, options);
    // NCCL connects at the first exchange: do it here, where Heartbeat monitors
    // it.
    heartbeat_->in_thread("connecting the GPUs", [group = group_, device] {
      const c10::DeviceGuard guard(device);
      std::vector<at::Tensor> tensors{at::zeros({1}, device)};
      group->allreduce(tensors)->wait();
    });
  }
  Work sum(at::Tensor x) override {
    std::vector<at::Tensor> tensors{std::move(x)};
    return group_->allreduce(tensors);
  }
  Work broadcast(at::Tensor x) override {
    std::vector<at::Tensor> tensors{std::move(x)};
    return group_->broadcast(tensors);
  }
  void finish(const Work& work) override {
    heartbeat_->in_thread(kExchange, [work] {
      while (!work->isCompleted())
        std::this_thread::sleep_for(std::chrono::microseconds(100));
      if (const std::exception_ptr e = work->exception())
        std::rethrow_exception(e);
    });
  }

 private:
  const std::shared_ptr<Heartbeat> heartbeat_;
  c10::intrusive_ptr<c10d::ProcessGroupNCCL> group_;
};

}  // namespace

bool Nccl::takes(const at::Tensor& x) { return x.is_cuda(); }

std::unique_ptr<Nccl> Nccl::connect(const LaunchEnvironment& environment,
                                    const Store& store, c10::Device device,
                                    std::shared_ptr<Heartbeat> watch) {
  return std::make_unique<Gpus>(environment, store, device, std::move(watch));
}

#endif

}  // namespace aft::train
