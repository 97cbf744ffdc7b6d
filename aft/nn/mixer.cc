#include "aft/nn/mixer.h"

#include <functional>
#include <utility>

#include "aft/nn/aft.h"
#include "aft/nn/attention.h"

namespace aft::nn {
namespace {

using Maker = std::function<std::shared_ptr<Mixer>(const MixerOptions&)>;

template <class Options>
Options common(Options options, const MixerOptions& o) {
  return options.causal(o.causal).out(o.out).gate(o.gate);
}

/// The one list of mixers.
const std::vector<std::pair<std::string, Maker>>& makers() {
  static const std::vector<std::pair<std::string, Maker>> all = {
      {"aft-simple",
       [](const MixerOptions& o) {
         return std::make_shared<AFTSimpleImpl>(
             common(AFTSimpleOptions(o.dim), o));
       }},
      {"aft-full",
       [](const MixerOptions& o) {
         return std::make_shared<AFTFullImpl>(
             common(AFTFullOptions(o.dim, o.max_len), o)
                 .rank(o.rank)
                 .dense(o.dense));
       }},
      {"aft-local",
       [](const MixerOptions& o) {
         return std::make_shared<AFTLocalImpl>(
             common(AFTLocalOptions(o.dim, o.max_len, o.window), o)
                 .rank(o.rank)
                 .dense(o.dense)
                 .window_only(o.window_only));
       }},
      {"aft-conv",
       [](const MixerOptions& o) {
         TORCH_CHECK(o.grid >= 1 && o.grid <= 3,
                     "mixer: grid must have 1, 2 or 3 dimensions, got ",
                     o.grid);
         const std::vector<int64_t> kernel(static_cast<size_t>(o.grid),
                                           o.window);
         return std::make_shared<AFTConvImpl>(
             common(AFTConvOptions(o.dim, o.heads, kernel), o)
                 .reparameterise(!o.naive)
                 .window_only(o.window_only));
       }},
      {"attention",
       [](const MixerOptions& o) {
         return std::make_shared<AttentionImpl>(
             AttentionOptions(o.dim, o.heads).causal(o.causal));
       }},
  };
  return all;
}

}  // namespace

std::shared_ptr<Mixer> make_mixer(const MixerOptions& options) {
  std::string known;
  for (const auto& [kind, make] : makers()) {
    if (kind == options.kind) return make(options);
    known += (known.empty() ? "" : ", ") + kind;
  }
  TORCH_CHECK(false, "mixer must be one of ", known, ", got '", options.kind,
              "'");
}

const std::vector<std::string>& mixer_kinds() {
  static const std::vector<std::string> all = [] {
    std::vector<std::string> kinds;
    for (const auto& maker : makers()) kinds.push_back(maker.first);
    return kinds;
  }();
  return all;
}

bool has_max_len(const std::string& kind) {
  return kind == "aft-full" || kind == "aft-local";
}

}  // namespace aft::nn
