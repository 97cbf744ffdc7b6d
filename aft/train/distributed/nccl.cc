#include "aft/train/nccl.h"

#include <ATen/ATen.h>

#ifdef USE_C10D_NCCL  // LibTorch's CMake target says so
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

std::unique_ptr<Nccl> Nccl::connect(const World&, const Store&, c10::Device,
                                    std::shared_ptr<Watch>) {
  return nullptr;
}

#else

namespace {

class Gpus : public Nccl {
 public:
  Gpus(const World& world, const Store& store, c10::Device device,
       std::shared_ptr<Watch> watch)
      : watch_(std::move(watch)) {
    // c10d would end the process at an error, before Watch knows whose it is;
    // torchrun asks for that.
    for (const char* name :
         {"NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ASYNC_ERROR_HANDLING",
          "NCCL_BLOCKING_WAIT", "TORCH_NCCL_BLOCKING_WAIT"})
      setenv(name, "0", 1);
    const auto options = c10d::ProcessGroupNCCL::Options::create();
    options->timeout = kNever;
    group_ = c10::make_intrusive<c10d::ProcessGroupNCCL>(store, world.rank,
                                                         world.size, options);
    // NCCL connects at the first exchange: here, where that is watched.
    watch_->in_thread("connecting the GPUs", [group = group_, device] {
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
    watch_->in_thread(kExchange, [work] {
      while (!work->isCompleted())
        std::this_thread::sleep_for(std::chrono::microseconds(100));
      if (const std::exception_ptr e = work->exception())
        std::rethrow_exception(e);
    });
  }

 private:
  const std::shared_ptr<Watch> watch_;
  c10::intrusive_ptr<c10d::ProcessGroupNCCL> group_;
};

}  // namespace

bool Nccl::takes(const at::Tensor& x) { return x.is_cuda(); }

std::unique_ptr<Nccl> Nccl::connect(const World& world, const Store& store,
                                    c10::Device device,
                                    std::shared_ptr<Watch> watch) {
  return std::make_unique<Gpus>(world, store, device, std::move(watch));
}

#endif

}  // namespace aft::train
