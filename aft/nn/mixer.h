// The interface of the mixers: modules that take the place of attention, [B, T,
// dim] to [B, T, dim]; and their registry, which creates them by name and knows
// their options and traits.
#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/common.h>
#include <torch/nn/modules/container/any_value.h>
#include <torch/nn/pimpl.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "aft/ops/stream.h"

namespace aft::nn {

class Mixer : public virtual torch::nn::Module {
 public:
  /// x [B, T, dim] to [B, T, dim]. key_padding_mask: bool [B, T], true for
  /// padded positions.
  virtual torch::Tensor forward(const torch::Tensor& x,
                                const torch::Tensor& key_padding_mask = {}) = 0;
  /// forward for the positions of a grid in row-major order; T is the product
  /// of the grid sizes. Mixers without a notion of a grid treat them as a
  /// sequence.
  virtual torch::Tensor forward_grid(
      const torch::Tensor& x, const std::vector<int64_t>& /*grid*/,
      const torch::Tensor& key_padding_mask = {}) {
    return forward(x, key_padding_mask);
  }
  /// Prepares for inference: packs the weights and computes constants once, in
  /// addition to the weights. They are used as long as gradients are off and
  /// the weights stay as they are. After a pass with gradients, and after
  /// loading, converting, moving or cloning the weights, the module computes
  /// with the weights themselves, until this is called again.
  virtual void pack_for_inference() {}
  /// Redraws all random state. Called with a new seed at each training step,
  /// and with the same seed when a block is recomputed.
  virtual void redraw(uint64_t /*seed*/) {}
  /// Returns an empty stream for B sequences. Throws c10::Error if the mixer is
  /// not causal.
  virtual ops::Stream start(int64_t B) const = 0;
  /// Processes one position: x [B, dim] to [B, dim]. Repeated steps give the
  /// result of forward at a lower cost per position. Not recorded by autograd.
  virtual torch::Tensor step(const torch::Tensor& x, ops::Stream& stream) = 0;
  /// The weight of the linear layer whose output is added to the residual;
  /// deeper networks initialise it with smaller values. Undefined if there is
  /// none.
  virtual torch::Tensor last_weight() const = 0;

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(torch::Tensor())})
};

/// Options by configuration key.
using OptionValue = std::variant<bool, int64_t, double, std::string>;
using OptionValues = std::map<std::string, OptionValue>;

/// Returns a value as T, an alternative of OptionValue. Throws c10::Error if it
/// has another type; integers convert to double.
template <class T>
T option_as(const std::string& key, const OptionValue& value) {
  if constexpr (std::is_same_v<T, double>)
    if (const auto* x = std::get_if<int64_t>(&value))
      return static_cast<double>(*x);
  const T* x = std::get_if<T>(&value);
  TORCH_CHECK(x, "mixer: the value of ", key, " has the wrong type");
  return *x;
}

/// The arguments of make_mixer.
struct MixerOptions {
  std::string kind;  ///< one of mixer_kinds(causal)
  // Determined by the model.
  int64_t dim = 0;      ///< channels
  int64_t max_len = 0;  ///< maximum length, for biases per position
  bool causal = true;
  int64_t grid = 1;     ///< dimensions of the grid of positions
  int64_t rows = 0;     ///< of the largest grid
  int64_t columns = 0;  ///< of the largest grid, or of a sequence's image
  int64_t layer = 0;    ///< index of the block
  /// Values for the configuration keys of MixerKind::defaults. Keys that the
  /// mixer does not declare are ignored, except as in MixerKind::exclusive.
  OptionValues values;
};

/// A mixer by name: its options and traits. Each mixer defines its own in its
/// .cc file; the list is in mixer.cc.
struct MixerKind {
  std::string name;
  /// The configuration keys that the mixer declares, with default values.
  OptionValues defaults;
  std::function<std::shared_ptr<Mixer>(const MixerOptions&)> make;

  bool causal = true, non_causal = true;  ///< what it supports
  bool aft = false;  ///< a variant of the Attention Free Transformer
  /// Multi-head attention as in ViT, whose weights can be imported from files
  /// of other programs.
  bool attention = false;
  /// A stream keeps all past positions, so that its state and the cost of a
  /// step grow with the position.
  bool grows = false;
  /// Limited to max_len positions. A classifier works only at the image size of
  /// training.
  bool has_max_len = false;
  /// The positions must form a grid, so there cannot be a class token.
  bool needs_grid = false;
  /// Whether a classifier adds position embeddings by default.
  bool position_embeddings = true;
  /// Biases depend on relative positions, so that they fit every image size.
  bool relative_biases = false;
  /// The option "window" must be odd if not causal.
  bool odd_window = false;
  /// Preferred number of heads of a model that is initialised from attention
  /// weights, used if it divides the width; 0: the heads of the attention.
  int64_t imported_heads = 0;
  /// A numeric key that other mixers reject unless it has its default value.
  std::string exclusive;
  /// Training memory: per position and layer, kept_channels dim values are kept
  /// for backward. This includes the block, but not the inside of its MLP. 0:
  /// unknown.
  double kept_channels = 0;

  bool has(const std::string& key) const { return defaults.count(key) > 0; }
};

/// Returns a kind whose configuration keys are the `fields` (as in
/// base/config.h) of options_of(MixerOptions), the options of Impl as the model
/// determines them.
template <class Impl, class OptionsOf>
MixerKind mixer_kind(const char* name, OptionsOf options_of) {
  using Options = decltype(options_of(MixerOptions()));
  MixerKind kind;
  kind.name = name;
  const Options defaults = options_of(MixerOptions());
  Options::fields(defaults, [&](const char* key, const auto& x) {
    kind.defaults[key] = x;
  });
  kind.make = [options_of](const MixerOptions& o) {
    Options options = options_of(o);
    Options::fields(options, [&](const char* key, auto& x) {
      const auto at = o.values.find(key);
      if (at != o.values.end())
        x = option_as<std::decay_t<decltype(x)>>(key, at->second);
    });
    return std::make_shared<Impl>(options);
  };
  return kind;
}

/// Returns a new mixer with torch's default initial weights. Throws c10::Error
/// if the kind is unknown or the options do not fit it.
std::shared_ptr<Mixer> make_mixer(const MixerOptions& options);
/// The kinds that support causal mixing, or those that support non-causal
/// mixing.
const std::vector<std::string>& mixer_kinds(bool causal);
/// The configuration keys of all mixers.
const std::vector<std::string>& mixer_keys();
/// Returns a kind without options or traits if the name is unknown.
const MixerKind& mixer_traits(const std::string& name);

/// The mixer of a model: the key "mixer" and the options of the mixers, which
/// are keys of the model's configuration.
class MixerConfig {
 public:
  /// defaults: those of the model, which override those of the mixers.
  MixerConfig(std::string name, bool causal, OptionValues defaults)
      : name(std::move(name)), causal(causal), defaults_(std::move(defaults)) {}

  std::string name;  ///< one of mixer_kinds(causal)
  bool causal;

  MixerConfig& operator=(const std::string& other) {
    name = other;
    return *this;
  }
  operator const std::string&() const { return name; }

  /// The value of an option, given or default. Throws c10::Error if no mixer
  /// declares it, or it has another type.
  template <class T>
  T get(const std::string& key) const {
    const OptionValues all = options().values;
    const auto at = all.find(key);
    TORCH_CHECK(at != all.end(), "mixer: no mixer has the option ", key);
    return option_as<T>(key, at->second);
  }
  MixerConfig& set(const OptionValues& values) {
    for (const auto& [key, value] : values) given_[key] = value;
    return *this;
  }
  const MixerKind& traits() const { return mixer_traits(name); }
  /// Throws c10::Error, which names model.mixer, unless the name is one of
  /// mixer_kinds(causal).
  void check_name() const;
  /// The options of the mixers, without those that the model determines.
  MixerOptions options() const;

  /// As in base/config.h. Reading accepts the keys of all mixers, so that a
  /// configuration may choose another mixer without removing the options of the
  /// previous one. Writing omits defaults of keys that the mixer does not
  /// declare.
  template <class Self, class F>
  static void fields(Self& s, const F& f) {
    f("mixer", s.name);
    for (const auto& item : s.keys()) {
      const std::string& key = item.first;
      const OptionValue& standard = item.second;
      const auto given = s.given_.find(key);
      const auto visit = [&](auto x) {
        const auto unset = x;
        if (given != s.given_.end())
          x = option_as<std::decay_t<decltype(x)>>(key, given->second);
        if constexpr (std::is_const_v<Self>) {
          if (s.traits().has(key) || x != unset) f(key.c_str(), x);
        } else {
          f(key.c_str(), x);
          if (x != unset)
            s.given_[key] = x;
          else
            s.given_.erase(key);
        }
      };
      std::visit(visit, standard);
    }
  }

 private:
  /// The keys of all mixers, with the default values of this one.
  OptionValues keys() const;

  OptionValues defaults_, given_;
};

}  // namespace aft::nn
