#include "aft/train/distributed/group.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <thread>
#include <vector>

#include "aft/train/distributed/heartbeat.h"
#include "aft/train/distributed/nccl.h"

#ifndef USE_C10D_GLOO
#define USE_C10D_GLOO
#endif
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

namespace aft::train {
namespace {

using Gloo = c10d::ProcessGroupGloo;

/// The network interface at which others reach this process.
std::shared_ptr<gloo::transport::Device> device_of(const std::string& own) {
  if (const char* name = std::getenv("GLOO_SOCKET_IFNAME"))
    return Gloo::createDeviceForInterface(name);
  return own.empty() ? Gloo::createDefaultDevice()
                     : Gloo::createDeviceForHostname(own);
}

c10::intrusive_ptr<Gloo> connect(const LaunchEnvironment& environment,
                                 const Store& store, const std::string& own,
                                 const std::shared_ptr<Heartbeat>& heartbeat) {
  const auto made = std::make_shared<c10::intrusive_ptr<Gloo>>();
  const auto options = Gloo::Options::create(kNever);
  options->devices.push_back(device_of(own));
  heartbeat->in_thread("connecting the processes", [=] {
    *made = c10::make_intrusive<Gloo>(store, environment.rank, environment.size,
                                      options);
  });
  return *made;
}

void wait_for(const Work& work, const std::shared_ptr<Heartbeat>& heartbeat) {
  const std::shared_ptr<PendingOperation> pending = heartbeat->make_pending();
  work->getFuture()->addCallback([heartbeat, pending](c10::ivalue::Future& f) {
    std::string error;
    if (f.hasError()) {
      try {
        std::rethrow_exception(f.exception_ptr());
      } catch (const std::exception& e) {
        error = reason(e);
      }
    }
    heartbeat->complete(*pending, error);
  });
  heartbeat->wait(*pending, kExchange);
}

enum class Kind { kSum, kBroadcast };

/// A pending exchange of x.
struct Open {
  at::Tensor x, sent;  // sent: a copy on the CPU if Gloo sends a GPU tensor
  Work work;
};

}  // namespace

struct Group::Exchanges {
  Store store;  // used by Gloo; at rank 0 also the server
  c10::intrusive_ptr<Gloo> gloo;
  std::unique_ptr<Nccl> nccl;  // connected at the first tensor that it takes
  std::deque<Open> open;       // the front has number `first`
  int64_t first = 0;

  Open begin(Kind kind, const at::Tensor& x,
             const LaunchEnvironment& environment,
             const std::shared_ptr<Heartbeat>& heartbeat) {
    const bool sum = kind == Kind::kSum;
    heartbeat->enter();
    if (Nccl::takes(x)) {
      if (!nccl)
        nccl = Nccl::connect(environment, store, x.device(), heartbeat);
      return {x, x, sum ? nccl->sum(x) : nccl->broadcast(x)};
    }
    std::vector<at::Tensor> sent{x.cpu()};  // x itself if it is on the CPU
    return {x, sent[0], sum ? gloo->allreduce(sent) : gloo->broadcast(sent)};
  }

  void finish(const Open& one, const std::shared_ptr<Heartbeat>& heartbeat) {
    if (Nccl::takes(one.sent)) return nccl->finish(one.work);
    wait_for(one.work, heartbeat);
    at::Tensor x = one.x;
    if (!x.is_same(one.sent)) x.copy_(one.sent);
  }

  /// Gloo's threads may wait forever for a peer, so Gloo is leaked, not
  /// destroyed.
  void abandon() { nccl.reset(), (void)gloo.release(); }
};

Group::Group(const LaunchEnvironment& environment, double timeout,
             std::function<void(const std::string&)> on_stuck)
    : environment_(environment), exchanges_(std::make_unique<Exchanges>()) {
  const std::chrono::milliseconds ms(static_cast<int64_t>(1000 * timeout));
  exchanges_->store =
      meet(environment, environment.rank == 0 && !environment.hosted, ms);
  heartbeat_ = std::make_shared<Heartbeat>(
      environment, ms, meet(environment, false, ms), std::move(on_stuck));
  const std::string own =
      std::getenv("GLOO_SOCKET_IFNAME") ? "" : own_address(environment);
  heartbeat_->gather(own);
  try {
    exchanges_->gloo = connect(environment, exchanges_->store, own, heartbeat_);
  } catch (const std::exception& e) {
    heartbeat_->fail(reason(e));
    throw;
  }
}

Group::~Group() {
  if (left_) return;
  fail("ended early");
  exchanges_->abandon();
}

int64_t Group::begin_sum(at::Tensor x) {
  heartbeat_->check();
  Exchanges& e = *exchanges_;
  e.open.push_back(e.begin(Kind::kSum, x, environment_, heartbeat_));
  return e.first + static_cast<int64_t>(e.open.size()) - 1;
}

void Group::finish(int64_t number) {
  Exchanges& e = *exchanges_;
  while (e.first <= number) {
    const Open one = std::move(e.open.front());
    e.open.pop_front(), ++e.first;
    e.finish(one, heartbeat_);
  }
}

void Group::sum(at::Tensor x) { finish(begin_sum(std::move(x))); }

void Group::broadcast(at::Tensor x) {
  Exchanges& e = *exchanges_;
  e.finish(e.begin(Kind::kBroadcast, x, environment_, heartbeat_), heartbeat_);
}

std::string Group::broadcast(const std::string& text) {
  at::Tensor size = at::full({1}, static_cast<int64_t>(text.size()), at::kLong);
  broadcast(size);
  at::Tensor bytes = at::empty({size.item<int64_t>()}, at::kByte);
  if (rank() == 0)
    std::copy(text.begin(), text.end(), bytes.data_ptr<uint8_t>());
  if (bytes.numel() > 0) broadcast(bytes);
  const uint8_t* data = bytes.data_ptr<uint8_t>();
  return {data, data + bytes.numel()};
}

bool Group::any(bool mine) {
  at::Tensor x = at::full({1}, mine ? 1 : 0, at::kLong);
  sum(x);
  return x.item<int64_t>() > 0;
}

void Group::leave() {
  any(false);
  left_ = true;
  exchanges_->nccl.reset();
  if (heartbeat_->leave()) return exchanges_->gloo.reset();
  exchanges_->abandon();
}

void Group::fail(const std::string& why) { heartbeat_->fail(why); }

}  // namespace aft::train
