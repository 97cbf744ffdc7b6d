#include "aft/train/distributed/gradients.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

namespace aft::train {

Gradients::Gradients(const torch::nn::Module& model, Group& group,
                     int64_t bucket_bytes)
    : group_(group) {
  // Backward reaches the last parameters first.
  std::vector<torch::Tensor> parameters = model.parameters();
  for (auto p = parameters.rbegin(); p != parameters.rend(); ++p)
    if (p->requires_grad()) slots_.push_back({*p, 0, false, false, nullptr});
  for (size_t begin = 0; begin < slots_.size();) {
    Bucket bucket;
    const at::TensorOptions options = slots_[begin].parameter.options();
    int64_t elements = 0;
    size_t end = begin;
    for (; end < slots_.size(); ++end) {
      const torch::Tensor& p = slots_[end].parameter;
      const int64_t bytes = (elements + p.numel()) * p.element_size();
      if (p.scalar_type() != c10::typeMetaToScalarType(options.dtype()) ||
          (end > begin && bytes > bucket_bytes))
        break;
      slots_[end].bucket = buckets_.size();
      bucket.slots.push_back(end);
      elements += p.numel();
    }
    bucket.values = at::zeros({elements}, options.requires_grad(false));
    int64_t at = 0;
    for (; begin < end; ++begin) {
      torch::Tensor& p = slots_[begin].parameter;
      p.mutable_grad() = bucket.values.narrow(0, at, p.numel()).view(p.sizes());
      at += p.numel();
    }
    buckets_.push_back(std::move(bucket));
  }
  for (size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    slot.accumulator = torch::autograd::impl::grad_accumulator(slot.parameter);
    using torch::autograd::variable_list;
    slot.accumulator->add_post_hook(
        std::make_unique<torch::autograd::utils::LambdaPostHook>(
            [this, i](const variable_list& outputs, const variable_list&) {
              reached(i);
              return outputs;
            }));
  }
}

Gradients::~Gradients() = default;

void Gradients::reached(size_t slot) {
  Slot& s = slots_[slot];
  TORCH_CHECK(
      !s.unused, "gradients: a parameter of shape ", s.parameter.sizes(),
      " had no gradient in the first step but has one now; with several "
      "processes, the parameters that have gradients must not change");
  s.reached = true;
  if (!expecting_) return;
  TORCH_CHECK(buckets_[s.bucket].left-- > 0, "gradients: a parameter of shape ",
              s.parameter.sizes(), " was reached twice in one backward pass");
  send_ready(/*all=*/false);
}

void Gradients::expect() {
  next_ = 0, expecting_ = true;
  for (Bucket& bucket : buckets_) {
    bucket.left = 0;
    for (const size_t slot : bucket.slots)
      if (!slots_[slot].unused) ++bucket.left;
  }
}

void Gradients::send_ready(bool all) {
  for (; next_ < buckets_.size() && (all || buckets_[next_].left == 0); ++next_)
    buckets_[next_].number = group_.begin_sum(buckets_[next_].values);
}

void Gradients::finish() {
  send_ready(/*all=*/true);
  expecting_ = false;
  for (const Bucket& bucket : buckets_) group_.finish(bucket.number);
  if (!first_) return;
  first_ = false;
  // A parameter that would have no gradient in a single process must have none
  // here: the optimiser skips it, but would apply weight decay to a zero
  // gradient.
  torch::Tensor reached =
      at::zeros({static_cast<int64_t>(slots_.size())}, at::kInt);
  for (size_t i = 0; i < slots_.size(); ++i)
    reached.data_ptr<int>()[i] = slots_[i].reached;
  if (!slots_.empty()) group_.sum(reached);
  for (size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    slot.unused = reached.data_ptr<int>()[i] == 0;
    if (slot.unused) slot.parameter.mutable_grad() = torch::Tensor();
  }
}

int64_t Gradients::bytes() const {
  int64_t sum = 0;
  for (const Bucket& bucket : buckets_)
    sum += bucket.values.numel() * bucket.values.element_size();
  return sum;
}

}  // namespace aft::train
