#include "aft/models/weights.h"

#include <ATen/ATen.h>

#include <cstring>

#include "aft/base/escape.h"
#include "aft/io/safetensors.h"

namespace aft::models {
namespace {

/// Keys of the metadata. Every file with the second one has a checksum, so that
/// damage to the first one's name is noticed too.
constexpr char kChecksum[] = "checksum", kSavedBy[] = "saved_by";

io::DType dtype_of(const std::string& name, const at::Tensor& x) {
  switch (x.scalar_type()) {
    case at::kFloat:
      return io::DType::kF32;
    case at::kDouble:
      return io::DType::kF64;
    case at::kLong:
      return io::DType::kI64;
    case at::kBool:
      return io::DType::kBool;
    case at::kByte:
      return io::DType::kU8;
    case at::kHalf:
      return io::DType::kF16;
    case at::kBFloat16:
      return io::DType::kBF16;
    default:
      throw io::Error("tensor '" + name + "': the type " +
                      c10::toString(x.scalar_type()) + " cannot be saved");
  }
}

/// Views of tensors, whose data `held` keeps alive.
std::vector<io::TensorView> views_of(const NamedTensors& tensors,
                                     std::vector<at::Tensor>& held) {
  std::vector<io::TensorView> views;
  for (const auto& [name, x] : tensors) {
    held.push_back(x.detach().cpu().contiguous());
    const at::Tensor& c = held.back();
    views.push_back({name, dtype_of(name, c), c.sizes().vec(), c.data_ptr(),
                     static_cast<size_t>(c.numel()) *
                         static_cast<size_t>(c.element_size())});
  }
  return views;
}

/// Throws io::Error if the file has a checksum that does not match, or lost it.
void check_checksum(const std::string& path, const io::SafeTensors& file) {
  std::map<std::string, std::string> metadata = file.metadata();
  const auto at = metadata.find(kChecksum);
  if (at == metadata.end() && metadata.count(kSavedBy))
    throw io::Error(path + ": the file is damaged: its checksum is missing");
  if (at == metadata.end()) return;
  const std::string expected = at->second;
  metadata.erase(at);
  const std::string found = io::checksum(file.tensors(), metadata);
  if (expected != found)
    throw io::Error(path + ": the file is damaged: expected the checksum " +
                    base::printable(expected) + ", got " + found);
}

}  // namespace

std::string fingerprint(const NamedTensors& tensors) {
  std::vector<at::Tensor> held;
  return io::checksum(views_of(tensors, held), {});
}

NamedTensors tensors_of(const torch::nn::Module& model,
                        const std::string& prefix) {
  NamedTensors out;
  for (const auto& p : model.named_parameters())
    out.emplace_back(prefix + p.key(), p.value().detach());
  for (const auto& b : model.named_buffers())
    out.emplace_back(prefix + b.key(), b.value());
  return out;
}

void save_tensors(const std::string& path, const NamedTensors& tensors,
                  const std::map<std::string, std::string>& metadata) {
  std::vector<at::Tensor> held;
  const std::vector<io::TensorView> views = views_of(tensors, held);
  std::map<std::string, std::string> all = metadata;
  all[kSavedBy] = "aft";
  all[kChecksum] = io::checksum(views, all);
  io::save_safetensors(path, views, all);
}

std::map<std::string, std::string> load_tensors(const std::string& path,
                                                const NamedTensors& tensors,
                                                bool more) {
  const io::SafeTensors file = io::SafeTensors::open(path);
  check_checksum(path, file);
  if (!more && file.tensors().size() > tensors.size()) {
    for (const io::TensorView& view : file.tensors()) {
      bool known = false;
      for (const auto& [name, x] : tensors) known = known || name == view.name;
      if (!known)
        throw io::Error(path + ": has a tensor '" + base::printable(view.name) +
                        "' that the model does not have");
    }
  }
  for (const auto& [name, x] : tensors) {
    const io::TensorView& view = file.at(name);
    if (view.dtype != dtype_of(name, x) || view.shape != x.sizes().vec()) {
      throw io::Error(path + ": tensor '" + name + "' must be " +
                      io::dtype_name(dtype_of(name, x)) + " " +
                      c10::str(x.sizes(), ", got ", io::dtype_name(view.dtype),
                               " ", at::IntArrayRef(view.shape)));
    }
  }
  at::NoGradGuard no_grad;
  const auto read = [&](const std::string& name, const torch::Tensor& x) {
    const io::TensorView& view = file.at(name);
    at::Tensor copy = at::empty(x.sizes(), x.options().device(at::kCPU));
    if (view.bytes > 0) std::memcpy(copy.data_ptr(), view.data, view.bytes);
    return copy;
  };
  for (const auto& [name, x] : tensors) check_finite(path, name, read(name, x));
  for (const auto& [name, x] : tensors) {
    at::Tensor to = x;
    to.copy_(read(name, x));
  }
  return file.metadata();
}

void check_finite(const std::string& path, const std::string& name,
                  const torch::Tensor& x) {
  if (!x.is_floating_point()) return;
  const torch::Tensor good = at::isfinite(x).flatten();
  if (good.all().item<bool>()) return;
  const int64_t at = at::argmin(good.to(at::kByte)).item<int64_t>();
  throw io::Error(path + ": tensor '" + name +
                  "' must have finite values (as " +
                  c10::toString(x.scalar_type()) + "), got " +
                  std::to_string(x.flatten()[at].item<double>()) +
                  " at element " + std::to_string(at));
}

}  // namespace aft::models
