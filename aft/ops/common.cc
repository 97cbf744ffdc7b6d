#include "aft/ops/common.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <sstream>

#include "aft/ops/autocast.h"

namespace aft::ops {
namespace {

thread_local bool composite_everywhere = false;

const char* const kGates[] = {"sigmoid", "relu",     "tanh",     "gelu",
                              "silu",    "softplus", "identity", "none"};

bool is_real(at::ScalarType type) {
  return type == at::kFloat || type == at::kDouble || type == at::kHalf ||
         type == at::kBFloat16;
}

void check_like(const char* op, const char* name, const at::Tensor& x,
                const at::Tensor& k) {
  const bool promotes = autocast_enabled(k) && is_real(x.scalar_type());
  TORCH_CHECK(promotes || x.scalar_type() == k.scalar_type(), "aft::", op, ": ",
              name, " must have the dtype of k, ", k.scalar_type(), ", got ",
              x.scalar_type());
  TORCH_CHECK(x.device() == k.device(), "aft::", op, ": ", name,
              " must be on the device of k, ", k.device(), ", got ",
              x.device());
}

}  // namespace

void check_gate(const std::string& where, const std::string& gate) {
  std::string names;
  for (const char* name : kGates) {
    if (gate == name) return;
    names += (names.empty() ? "" : ", ") + std::string(name);
  }
  TORCH_CHECK(false, where, ": gate must be one of ", names, ", got '", gate,
              "'");
}

at::Tensor apply_gate(const std::string& gate, const at::Tensor& q,
                      const at::Tensor& r) {
  if (gate == "sigmoid") return at::sigmoid(q) * r;
  if (gate == "relu") return at::relu(q) * r;
  if (gate == "tanh") return at::tanh(q) * r;
  if (gate == "gelu") return at::gelu(q) * r;
  if (gate == "silu") return at::silu(q) * r;
  if (gate == "softplus") return at::softplus(q) * r;
  if (gate == "identity") return q * r;
  return r;
}

CompositeGuard::CompositeGuard() : before_(composite_everywhere) {
  composite_everywhere = true;
}
CompositeGuard::~CompositeGuard() { composite_everywhere = before_; }

std::string shape_of(const at::Tensor& x) {
  std::ostringstream out;
  out << x.sizes();
  return out.str();
}

Checked check(const char* op, const OptionalTensor& q, const at::Tensor& k,
              const at::Tensor& v, const Common& common, bool heads) {
  TORCH_CHECK(k.defined() && v.defined(), "aft::", op,
              ": k and v must be defined tensors, got an undefined one");
  check_gate(c10::str("aft::", op), common.gate);
  TORCH_CHECK(k.dim() == 3, "aft::", op, ": k must be [B, T, ",
              heads ? "H" : "D", "], got ", shape_of(k));
  TORCH_CHECK(v.dim() == 3 && v.size(0) == k.size(0) && v.size(1) == k.size(1),
              "aft::", op, ": v must be [B, T, D] = [", k.size(0), ", ",
              k.size(1), ", D] to match k ", shape_of(k), ", got ",
              shape_of(v));
  Checked c;
  c.op = op;
  c.B = k.size(0), c.Tk = k.size(1), c.D = v.size(2), c.H = k.size(2);
  if (heads) {
    TORCH_CHECK(c.H > 0 && c.D % c.H == 0, "aft::", op,
                ": the number of heads, the last size of k ", shape_of(k),
                ", must divide D, the last size of v ", shape_of(v), "; ", c.H,
                " does not divide ", c.D);
  } else {
    TORCH_CHECK(c.H == c.D, "aft::", op,
                ": k must be [B, T, D] = ", shape_of(v), " like v, got ",
                shape_of(k));
  }
  TORCH_CHECK(is_real(k.scalar_type()), "aft::", op,
              ": k must be float, double, half or bfloat16, got ",
              k.scalar_type());
  check_like(op, "v", v, k);
  if (q && q->defined()) check_like(op, "q", *q, k);
  c.dtype = promoted_type({value(q), k, v});
  const at::ScalarType sums = c.dtype == at::kDouble ? at::kDouble : at::kFloat;
  c.k = k.to(sums).contiguous();
  c.v = v.to(sums).contiguous();
  c.gate = common.gate;
  c.Tq = c.Tk;
  if (q && q->defined()) {
    TORCH_CHECK(q->dim() == 3 && q->size(0) == c.B && q->size(2) == c.D,
                "aft::", op, ": q must be [B, T, D] = [", c.B, ", T, ", c.D,
                "] to match v ", shape_of(v), ", got ", shape_of(*q));
    c.Tq = q->size(1);
    if (c.gate != "none") c.q = q->to(sums).contiguous();
  } else {
    c.gate = "none";
  }
  c.causal = common.causal;
  if (common.key_padding_mask && common.key_padding_mask->defined()) {
    const at::Tensor& mask = *common.key_padding_mask;
    TORCH_CHECK(mask.scalar_type() == at::kBool, "aft::", op,
                ": key_padding_mask must be bool (true: padded), got ",
                mask.scalar_type());
    TORCH_CHECK(mask.dim() == 2 && mask.size(0) == c.B && mask.size(1) == c.Tk,
                "aft::", op, ": key_padding_mask must be [B, T] = [", c.B, ", ",
                c.Tk, "], got ", shape_of(mask));
    TORCH_CHECK(mask.device() == k.device(), "aft::", op,
                ": key_padding_mask must be on the device of k, ", k.device(),
                ", got ", mask.device());
    c.padded = mask.contiguous();
  }
  return c;
}

at::Tensor Checked::parameter(const char* name, const at::Tensor& x,
                              const std::vector<int64_t>& expected,
                              const std::string& shape) const {
  bool fits = x.dim() == static_cast<int64_t>(expected.size());
  for (size_t i = 0; fits && i < expected.size(); ++i)
    fits = expected[i] < 0 || x.size(i) == expected[i];
  TORCH_CHECK(fits, "aft::", op, ": ", name, " must be ", shape, ", got ",
              shape_of(x));
  TORCH_CHECK(at::isFloatingType(x.scalar_type()), "aft::", op, ": ", name,
              " must be a floating type, got ", x.scalar_type());
  TORCH_CHECK(x.device() == k.device(), "aft::", op, ": ", name,
              " must be on the device of k, ", k.device(), ", got ",
              x.device());
  return x.to(k.scalar_type()).contiguous();
}

void Checked::check_grid(const std::vector<int64_t>& grid) const {
  const int64_t dims = static_cast<int64_t>(grid.size());
  TORCH_CHECK(dims >= 1 && dims <= 3, "aft::", op,
              ": grid must have 1, 2 or 3 sizes, got ", dims);
  int64_t positions = 1;
  for (int64_t n : grid) {
    TORCH_CHECK(n >= 1 && n <= Tk, "aft::", op,
                ": sizes of grid must lie between 1 and T = ", Tk, ", got ",
                at::IntArrayRef(grid));
    positions *= n;
  }
  TORCH_CHECK(positions == Tk, "aft::", op, ": grid must hold T = ", Tk,
              " positions, got ", at::IntArrayRef(grid), ", which holds ",
              positions);
  TORCH_CHECK(Tq == Tk, "aft::", op, ": q must have the T of k, ", Tk, ", got ",
              Tq);
  TORCH_CHECK(!causal || dims == 1, "aft::", op,
              ": causal needs a grid of 1 size, got ", dims);
}

bool Checked::use_kernels() const {
  return k.device().is_cpu() && !composite_everywhere;
}

at::Tensor Checked::finish(const at::Tensor& y) const {
  at::Tensor out = y;
  if (gate != "none" && !fused_q().defined()) out = apply_gate(gate, q, y);
  return out.to(dtype);
}

kernels::Exec at_exec(const at::Tensor& y) {
  constexpr int64_t kSmall = 1 << 14;  // two threads take as long as one
  kernels::Exec exec = kernels::Exec::serial();
  if (y.numel() >= kSmall) {
    exec.threads = at::get_num_threads();
    exec.parallel = [](int64_t n,
                       const std::function<void(int64_t, int64_t)>& f) {
      at::parallel_for(0, n, 1, f);
    };
  }
  exec.allocate = [](size_t bytes) -> std::shared_ptr<void> {
    auto memory = std::make_shared<at::Tensor>(
        at::empty({static_cast<int64_t>(bytes)}, at::kByte));
    return {memory, memory->data_ptr()};
  };
  return exec;
}

bool records(std::initializer_list<at::Tensor> tensors) {
  if (!at::GradMode::is_enabled()) return false;
  for (const at::Tensor& x : tensors) {
    if (x.defined() && x.requires_grad()) return true;
  }
  return false;
}

}  // namespace aft::ops
