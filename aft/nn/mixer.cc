#include "aft/nn/mixer.h"

#include <c10/util/StringUtil.h>

#include <algorithm>

#include "aft/nn/aft.h"
#include "aft/nn/attention.h"
#include "aft/nn/image_local.h"
#include "aft/nn/lambda.h"
#include "aft/nn/linear_attention.h"
#include "aft/nn/performer.h"
#include "aft/nn/reformer.h"
#include "aft/nn/sparse.h"
#include "aft/nn/synthesizer.h"

namespace aft::nn {
namespace {

/// The registry of mixers.
const std::vector<MixerKind>& kinds() {
  static const std::vector<MixerKind> all = {
      aft_simple_kind(),  aft_full_kind(),         aft_local_kind(),
      aft_conv_kind(),    attention_kind(),        reformer_kind(),
      synthesizer_kind(), linear_attention_kind(), performer_kind(),
      sparse_kind(),      image_local1d_kind(),    image_local2d_kind(),
      lambda_kind()};
  return all;
}

bool fits(const MixerKind& kind, bool causal) {
  return causal ? kind.causal : kind.non_causal;
}

const MixerKind* find(const std::string& name) {
  for (const MixerKind& kind : kinds())
    if (kind.name == name) return &kind;
  return nullptr;
}

}  // namespace

const MixerKind& mixer_traits(const std::string& name) {
  static const MixerKind none;
  const MixerKind* kind = find(name);
  return kind ? *kind : none;
}

const std::vector<std::string>& mixer_keys() {
  static const std::vector<std::string> all = [] {
    std::vector<std::string> keys;
    for (const MixerKind& kind : kinds())
      for (const auto& item : kind.defaults)
        if (std::find(keys.begin(), keys.end(), item.first) == keys.end())
          keys.push_back(item.first);
    return keys;
  }();
  return all;
}

std::shared_ptr<Mixer> make_mixer(const MixerOptions& options) {
  const MixerKind* kind = find(options.kind);
  TORCH_CHECK(kind && fits(*kind, options.causal), "mixer must be one of ",
              c10::Join(", ", mixer_kinds(options.causal)), ", got '",
              options.kind, "'",
              !kind            ? ""
              : options.causal ? ", which is never causal"
                               : ", which is always causal");
  for (const MixerKind& other : kinds()) {
    const auto given = options.values.find(other.exclusive);
    if (given == options.values.end() || kind->has(other.exclusive)) continue;
    const auto value = [&](const OptionValue& x) {
      return option_as<double>(other.exclusive, x);
    };
    const double standard = value(other.defaults.at(other.exclusive)),
                 got = value(given->second);
    TORCH_CHECK(got == standard, "mixer: ", other.exclusive, " is for ",
                other.name, " and must be ", standard, " for ", kind->name,
                ", got ", got);
  }
  return kind->make(options);
}

const std::vector<std::string>& mixer_kinds(bool causal) {
  const auto list = [](bool c) {
    std::vector<std::string> names;
    for (const MixerKind& kind : kinds())
      if (fits(kind, c)) names.push_back(kind.name);
    return names;
  };
  static const std::vector<std::string> with = list(true),
                                        without = list(false);
  return causal ? with : without;
}

OptionValues MixerConfig::keys() const {
  OptionValues all = traits().defaults;
  for (const MixerKind& kind : kinds())
    if (fits(kind, causal))
      all.insert(kind.defaults.begin(), kind.defaults.end());
  for (const auto& [key, value] : defaults_) all[key] = value;
  return all;
}

void MixerConfig::check_name() const {
  const auto& names = mixer_kinds(causal);
  TORCH_CHECK(std::find(names.begin(), names.end(), name) != names.end(),
              "model.mixer must be one of ", c10::Join(", ", names), ", got '",
              name, "'");
}

MixerOptions MixerConfig::options() const {
  MixerOptions out;
  out.kind = name, out.causal = causal;
  out.values = given_;
  out.values.merge(keys());
  return out;
}

}  // namespace aft::nn
