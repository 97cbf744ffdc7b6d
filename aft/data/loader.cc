#include "aft/data/loader.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

namespace aft::data {
namespace {

constexpr size_t kAhead = 3;  // planned batches, including the current one

}  // namespace

Loader::Loader(int64_t size, Make make, int64_t threads, int64_t end)
    : size_(size), end_(end), make_(std::move(make)) {
  try {
    for (int64_t i = 0; i < std::max<int64_t>(threads, 1); ++i)
      threads_.emplace_back([this] { work(); });
  } catch (...) {  // a thread failed to start: end the others
    stop();
    throw;
  }
}

Loader::~Loader() { stop(); }

void Loader::stop() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  wanted_.notify_all();
  for (std::thread& t : threads_) t.join();
}

void Loader::plan(int64_t first, int64_t count) {
  auto batch = std::make_shared<Batch>();
  batch->first = first, batch->count = batch->left = count;
  batch->result = {at::empty({count, size_}, at::kFloat),
                   std::vector<int64_t>(static_cast<size_t>(count))};
  batches_.push_back(std::move(batch));
}

LabelledBatch Loader::get(int64_t first, int64_t count) {
  std::unique_lock<std::mutex> lock(mutex_);
  stride_ = last_ >= 0 && first > last_ ? first - last_ : count;
  last_ = first;
  if (batches_.empty() || batches_.front()->first != first ||
      batches_.front()->count != count) {
    batches_.clear();  // threads still working on a batch co-own it
    plan(first, count);
  }
  while (batches_.size() < kAhead) {
    const int64_t next = batches_.back()->first + stride_;
    if (next >= end_) break;
    plan(next, std::min(count, end_ - next));
  }
  wanted_.notify_all();
  const std::shared_ptr<Batch> batch = batches_.front();
  finished_.wait(lock, [&] { return batch->left == 0; });
  batches_.pop_front();
  if (batch->error) std::rethrow_exception(batch->error);
  return std::move(batch->result);
}

void Loader::work() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    std::shared_ptr<Batch> batch;
    wanted_.wait(lock, [&] {
      for (const auto& b : batches_) {
        if (b->begun == b->count) continue;
        batch = b;
        break;
      }
      return stop_ || batch;
    });
    if (stop_) return;
    const int64_t i = batch->begun++;
    lock.unlock();
    std::exception_ptr error;
    try {
      batch->result.labels[static_cast<size_t>(i)] = make_(
          batch->first + i, batch->result.values.data_ptr<float>() + i * size_);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (error && !batch->error) batch->error = error;
    if (--batch->left == 0) finished_.notify_all();
  }
}

}  // namespace aft::data
