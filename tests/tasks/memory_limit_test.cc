// Memory limits, and the memory needed to create models.
#include "aft/tasks/memory_limit.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <thread>

#include "aft/io/safetensors.h"
#include "aft/models/weights.h"
#include "aft/tasks/memory_estimate.h"
#include "aft/tasks/task.h"
#include "tests/tasks/memory_guard.h"
#include "tests/tasks/small_models.h"

namespace aft::tasks {
namespace {

TEST(MemoryLimit, CountsAllocationsOfThisThread) {
  {
    const MemoryLimit limit(1000);
    const torch::Tensor x = at::empty({100});
    EXPECT_EQ(limit.used(), 400);
    EXPECT_THROW(at::empty({200}), TooLarge);
    EXPECT_EQ(limit.used(), 400);
    // The same error for more than the address space.
    EXPECT_THROW(at::empty({int64_t{1} << 60}), TooLarge);
    x.clone();
    EXPECT_EQ(limit.used(), 800);
    {
      const MemoryLimit inner(10000);
      at::empty({2000});
    }
    EXPECT_EQ(limit.used(), 800);
    std::thread([] { at::empty({1 << 20}); }).join();
    EXPECT_EQ(limit.used(), 800);
  }
  at::empty({1 << 20});
}

TEST(MemoryPeak, MeasuresWhatExistsAtATime) {
  torch::Tensor longer;
  {
    const MemoryPeak peak(10000);
    torch::Tensor a = at::empty({100}), b = at::empty({200});
    a = torch::Tensor();
    longer = at::empty({50});
    EXPECT_EQ(peak.most(), 1200);
    EXPECT_THROW(at::empty({4000}), TooLarge);
    EXPECT_NO_THROW(at::empty({1000}));
  }
  longer = torch::Tensor();
  at::empty({4000});
}

/// The weights of a batch: linear in the number of rows.
TEST(MemoryPeak, IsExtrapolated) {
  std::vector<int64_t> tried;
  const auto run = [&](int64_t n) {
    tried.push_back(n);
    const torch::Tensor fixed = at::empty({25}), x = at::empty({n, 10});
  };
  EXPECT_EQ(peak_bytes(run, 1000), 100 + 1000 * 40);
  EXPECT_EQ(tried, std::vector<int64_t>({2, 4}));
  EXPECT_EQ(peak_bytes(run, 1), 140);
  EXPECT_EQ(peak_bytes(run, 3), 220);
  const auto large = [](int64_t n) { at::empty({n << 50}); };
  EXPECT_GT(peak_bytes(large, 1), data::machine_memory());
}

TEST(MemoryLimit, IsTheMemoryOfTheMachine) {
  EXPECT_GT(data::machine_memory(), 1e8);
  EXPECT_EQ(within_memory([] { return 7; }), 7);
  try {
    within_memory([] { return at::empty({int64_t{1} << 50}); });
    ADD_FAILURE() << "no error";
  } catch (const base::ConfigError& e) {
    EXPECT_NE(std::string(e.what()).find("the sizes in model.* need more "
                                         "than the "),
              std::string::npos)
        << e.what();
  }
  EXPECT_THROW(within_memory([] { return 7; }, "/nowhere"), io::Error);
}

/// memory_for must not reject a model with its own weights: creating one takes
/// less than 8 times the size of its weights, whatever makes it large. The
/// megabyte covers the overhead of the smallest ones.
TEST(MemoryLimit, ModelsNeedLittleMoreThanTheirWeights) {
  std::vector<Json> configs = small_configurations();
  for (const char* mixer : {"aft-local", "aft-full"}) {
    Json dense = configs[0];
    dense["model"]["mixer"] = mixer, dense["model"]["dense"] = true;
    configs.push_back(dense);
  }
  int large = 0;
  for (const Json& config : configs) {
    const Json small = task_kind(config).complete(config);
    for (const auto& [key, value] : small["model"].items()) {
      if (!value.is_number_integer()) continue;
      for (const int64_t size : {241, 960}) {
        if (size > 500 && (key == "layers" || key == "resnets" ||
                           key == "blocks" || key == "kernel"))
          continue;
        Json changed = small;
        changed["model"][key] = size;
        SCOPED_TRACE(changed["model"].dump());
        const MemoryLimit limit(2e9);
        std::shared_ptr<torch::nn::Module> model;
        try {
          model = task_kind(changed).model(changed);
        } catch (const c10::Error&) {
          continue;
        } catch (const TooLarge&) {
          continue;
        }
        double bytes = 0;
        for (const auto& [name, x] : models::tensors_of(*model))
          bytes += static_cast<double>(x.nbytes());
        EXPECT_LE(limit.used(), 8 * bytes + 1e6) << bytes;
        large += bytes > 1e6;
      }
    }
  }
  EXPECT_GT(large, 40);
}

}  // namespace
}  // namespace aft::tasks
