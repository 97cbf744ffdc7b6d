// Training on a device other than the CPU (tests/far_device.h): every task, in
// one process and in several, equals training on the CPU up to rounding. Few
// steps, since each operator copies its inputs and outputs.
#include "aft/train/device.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "aft/nn/mixer.h"
#include "aft/ops/pointwise.h"
#include "tests/far_device.h"
#include "tests/train/runs.h"

namespace aft::train {
namespace {

using far_device::kDevice;

TEST(Device, IsParsedFromItsName) {
  LaunchEnvironment environment;
  EXPECT_EQ(device_for("cpu", environment), torch::Device(torch::kCPU));
  EXPECT_EQ(device_for("xpu", environment), kDevice);
  EXPECT_EQ(device_for("xpu:0", environment), kDevice);
  // A single device belongs to every process, which may see no other.
  environment.size = 2, environment.local_rank = 1;
  EXPECT_EQ(device_for("xpu", environment), kDevice);
  const auto words = [&](const std::string& name) -> std::string {
    try {
      device_for(name, environment);
    } catch (const std::exception& e) {
      return e.what();
    }
    return "no error";
  };
  EXPECT_EQ(words("xpu:3"), "device xpu:3: this machine has 1 xpu device");
  environment.local_size = 2;
  EXPECT_EQ(words("xpu"),
            "device xpu: this machine has 1 xpu device, for 2 processes");
  EXPECT_EQ(words("cuda"),
            "device cuda: LibTorch finds no cuda device on this machine");
  EXPECT_EQ(words("meta"),
            "device meta: LibTorch finds no meta device on this machine");
  for (const char* name : {"", "gpu", "cuda:", "cuda:-1", "cpu:x"})
    EXPECT_THROW(device_for(name, environment), std::invalid_argument) << name;
}

TEST(Device, DropoutMasksEqualThoseOfTheCpu) {
  torch::manual_seed(1);
  for (const int64_t row : {int64_t{0}, int64_t{3}, int64_t{1} << 30}) {
    SCOPED_TRACE(row);
    const ops::FirstRow rows(row);
    const torch::Tensor x = torch::randn({5, 7, 3}),
                        r = torch::randn({5, 7, 3});
    const auto run = [&](torch::Device device) {
      torch::Tensor a = x.to(device).detach().requires_grad_(),
                    b = r.to(device).detach().requires_grad_();
      torch::Tensor y = ops::dropout_add(b, a, 0.3, 11);
      (y * y).sum().backward();
      return std::vector<torch::Tensor>{y.cpu(), a.grad().cpu(),
                                        b.grad().cpu()};
    };
    const auto here = run(torch::kCPU), there = run(kDevice);
    for (size_t i = 0; i < here.size(); ++i)
      EXPECT_TRUE(torch::allclose(here[i], there[i], 1e-6, 1e-6)) << i;
    EXPECT_GT((here[1] == 0).sum().item<int64_t>(), 5);
  }
}

TEST(Device, TrainsTextWithEveryMixer) {
  for (const std::string& kind : nn::mixer_kinds(/*causal=*/true)) {
    SCOPED_TRACE(kind);
    Json config = few(language(kind));
    config["model"]["columns"] = 6;
    const int64_t before = far_device::operators;
    expect_alike(config, {1}, kDevice);
    EXPECT_GT(far_device::operators, before + 100);
  }
}

TEST(Device, TrainsClassifiersWithEveryMixer) {
  for (const std::string& kind : nn::mixer_kinds(/*causal=*/false)) {
    SCOPED_TRACE(kind);
    Json config = few(classification(), 3);
    config["model"]["mixer"] = kind;
    if (kind != "aft-conv") config["model"].erase("gumbel");
    // The gradient of a bias before a batch norm is rounding error, which AdamW
    // turns into steps of up to the learning rate.
    expect_alike(config, {1}, kDevice, kind == "lambda" ? 3e-3 : 2e-4);
  }
  Json resnet = few(classification(), 3);
  resnet["model"] = {{"network", "resnet"}, {"layers", 14}, {"width", 4}};
  resnet["data"]["height"] = resnet["data"]["width"] = 32;
  expect_alike(resnet, {1}, kDevice);
}

TEST(Device, TrainsImageModels) {
  expect_alike(few(images()), {1}, kDevice);
  for (const Json& network : pixel_networks()) {
    SCOPED_TRACE(network.dump());
    Json config = few(images(), 3);
    config["model"] = network;
    expect_alike(config, {1}, kDevice);
  }
}

TEST(Device, SeveralProcessesEqualOne) {
  expect_alike(few(language()), {2}, kDevice);
  Json again = language("aft-conv");
  again["train"]["recompute"] = true, again["train"]["entropy_weight"] = 0.01;
  expect_alike(few(again), {2}, kDevice);
  expect_alike(few(classification()), {2}, kDevice);
  expect_alike(few(images()), {2}, kDevice);
}

TEST(Device, RunsResumeOnAnotherDevice) {
  const Json config = few(language(), 12);
  const torch::Tensor alone = train(config, 1, new_folder());
  const std::string changing = new_folder();
  train(config, 2, changing, 4, kDevice);
  train(config, 1, changing, 5);
  const torch::Tensor end = train(config, 1, changing, 1000, kDevice);
  EXPECT_LT((end - alone).abs().max().item<double>(), 2e-4);
  EXPECT_EQ(metrics(changing).size(), 12u);
}

}  // namespace
}  // namespace aft::train
