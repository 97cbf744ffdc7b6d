#include "aft/train/group.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <thread>
#include <vector>

#include "aft/train/watch.h"

#ifndef USE_C10D_GLOO
#define USE_C10D_GLOO
#endif
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

namespace aft::train {
namespace {

using Gloo = c10d::ProcessGroupGloo;
using Work = c10::intrusive_ptr<c10d::Work>;

/// An exchange never ends by Gloo's own clock: that of Watch names who is late.
constexpr std::chrono::hours kNever(24 * 365);

/// The interface that others reach this process at.
std::shared_ptr<gloo::transport::Device> device_of(const std::string& own) {
  if (const char* name = std::getenv("GLOO_SOCKET_IFNAME"))
    return Gloo::createDeviceForInterface(name);
  return own.empty() ? Gloo::createDefaultDevice()
                     : Gloo::createDeviceForHostname(own);
}

/// In a thread of its own, which is left alone where a peer never comes.
c10::intrusive_ptr<Gloo> connect(const World& world, const Store& store,
                                 const std::string& own,
                                 const std::shared_ptr<Watch>& watch) {
  const auto made = std::make_shared<c10::intrusive_ptr<Gloo>>();
  const std::shared_ptr<Outcome> outcome = watch->expect();
  std::thread([=] {
    std::string error;
    try {
      const auto options = Gloo::Options::create(kNever);
      options->devices.push_back(device_of(own));
      *made = c10::make_intrusive<Gloo>(store, world.rank, world.size, options);
    } catch (const std::exception& e) {
      error = reason(e);
    }
    watch->came(*outcome, error);
  }).detach();
  watch->wait(*outcome, "connecting the processes");
  return *made;
}

void wait_for(const Work& work, const std::shared_ptr<Watch>& watch) {
  const std::shared_ptr<Outcome> outcome = watch->expect();
  work->getFuture()->addCallback([watch, outcome](c10::ivalue::Future& f) {
    std::string error;
    if (f.hasError()) {
      try {
        std::rethrow_exception(f.exception_ptr());
      } catch (const std::exception& e) {
        error = reason(e);
      }
    }
    watch->came(*outcome, error);
  });
  watch->wait(*outcome, "an exchange between the processes");
}

}  // namespace

struct Group::Exchanges {
  Store store;  // Gloo's, and at rank 0 the place itself
  c10::intrusive_ptr<Gloo> gloo;
  std::deque<Work> open;  // from number `first` on
  int64_t first = 0;
};

Group::Group(const World& world, double timeout)
    : world_(world), exchanges_(std::make_unique<Exchanges>()) {
  const std::chrono::milliseconds ms(static_cast<int64_t>(1000 * timeout));
  exchanges_->store = meet(world, world.rank == 0 && !world.hosted, ms);
  watch_ = std::make_shared<Watch>(world, ms, meet(world, false, ms));
  const std::string own =
      std::getenv("GLOO_SOCKET_IFNAME") ? "" : own_address(world);
  watch_->gather(own);
  try {
    exchanges_->gloo = connect(world, exchanges_->store, own, watch_);
  } catch (const PeerError& e) {
    watch_->fail(e.what());
    throw;
  }
}

Group::~Group() {
  if (left_) return;
  fail("ended early");
  // Its threads may wait for a peer for ever: they are left alone.
  (void)exchanges_->gloo.release();
}

int64_t Group::begin_sum(at::Tensor x) {
  watch_->check();
  std::vector<at::Tensor> tensors{std::move(x)};
  watch_->enter();
  Exchanges& e = *exchanges_;
  e.open.push_back(e.gloo->allreduce(tensors));
  return e.first + static_cast<int64_t>(e.open.size()) - 1;
}

void Group::finish(int64_t number) {
  Exchanges& e = *exchanges_;
  while (e.first <= number) {
    const Work work = e.open.front();
    e.open.pop_front(), ++e.first;
    wait_for(work, watch_);
  }
}

void Group::sum(at::Tensor x) { finish(begin_sum(std::move(x))); }

void Group::broadcast(at::Tensor x) {
  std::vector<at::Tensor> tensors{std::move(x)};
  watch_->enter();
  wait_for(exchanges_->gloo->broadcast(tensors), watch_);
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
  if (watch_->leave()) return exchanges_->gloo.reset();
  (void)exchanges_->gloo.release();
}

void Group::fail(const std::string& why) { watch_->fail(why); }

}  // namespace aft::train
