#include "aft/nn/mixer.h"

#include <c10/util/StringUtil.h>

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

enum Can { kBoth, kCausal, kWhole };

struct Kind {
  const char* name;
  Can can;
  std::shared_ptr<Mixer> (*make)(const MixerOptions&);
  bool keeps_all = false, has_max_len = false;
};

template <class Impl, class Options>
std::shared_ptr<Mixer> made(const Options& options) {
  return std::make_shared<Impl>(options);
}

template <class Options>
Options common(Options options, const MixerOptions& o) {
  return options.causal(o.causal).out(o.out).gate(o.gate);
}

/// The registry of mixers.
const std::vector<Kind>& kinds() {
  using O = const MixerOptions&;
  static const std::vector<Kind> all = {
      {"aft-simple", kBoth,
       [](O o) {
         return made<AFTSimpleImpl>(common(AFTSimpleOptions(o.dim), o));
       }},
      {"aft-full", kBoth,
       [](O o) {
         return made<AFTFullImpl>(common(AFTFullOptions(o.dim, o.max_len), o)
                                      .rank(o.rank)
                                      .dense(o.dense));
       },
       true, true},
      {"aft-local", kBoth,
       [](O o) {
         return made<AFTLocalImpl>(
             common(AFTLocalOptions(o.dim, o.max_len, o.window), o)
                 .rank(o.rank)
                 .dense(o.dense)
                 .window_only(o.window_only));
       },
       false, true},
      {"aft-conv", kBoth,
       [](O o) {
         TORCH_CHECK(o.grid >= 1 && o.grid <= 3,
                     "mixer: grid must have 1, 2 or 3 dimensions, got ",
                     o.grid);
         const std::vector<int64_t> kernel(static_cast<size_t>(o.grid),
                                           o.window);
         return made<AFTConvImpl>(
             common(AFTConvOptions(o.dim, o.heads, kernel), o)
                 .reparameterise(!o.naive)
                 .window_only(o.window_only)
                 .gumbel(o.gumbel));
       }},
      {"attention", kBoth,
       [](O o) {
         return made<AttentionImpl>(
             AttentionOptions(o.dim, o.heads).causal(o.causal));
       },
       true},
      {"reformer", kBoth,
       [](O o) {
         return made<ReformerImpl>(ReformerOptions(o.dim, o.heads)
                                       .causal(o.causal)
                                       .chunk(o.window)
                                       .rounds(o.rounds)
                                       .max_len(o.max_len));
       },
       true},
      {"synthesizer", kBoth,
       [](O o) {
         return made<SynthesizerImpl>(
             SynthesizerOptions(o.dim, o.heads, o.max_len).causal(o.causal));
       },
       true, true},
      {"linear-attention", kBoth,
       [](O o) {
         return made<LinearAttentionImpl>(
             LinearAttentionOptions(o.dim, o.heads).causal(o.causal));
       }},
      {"performer", kBoth,
       [](O o) {
         return made<PerformerImpl>(PerformerOptions(o.dim, o.heads)
                                        .causal(o.causal)
                                        .features(o.features));
       }},
      {"sparse", kBoth,
       [](O o) {
         return made<SparseImpl>(
             SparseOptions(o.dim, o.heads, o.window)
                 .causal(o.causal)
                 .pattern(o.layer % 2 == 0 ? "local" : "strided"));
       },
       true},
      {"image-local1d", kCausal,
       [](O o) {
         return made<ImageLocalImpl>(
             ImageLocalOptions(o.dim, o.heads).pattern("1d").block(o.window));
       }},
      {"image-local2d", kCausal,
       [](O o) {
         return made<ImageLocalImpl>(ImageLocalOptions(o.dim, o.heads)
                                         .pattern("2d")
                                         .columns(o.columns));
       },
       true},
      {"lambda", kWhole,
       [](O o) {
         return made<LambdaImpl>(
             LambdaOptions(o.dim, o.heads, o.rows, o.columns).out(o.out));
       }},
  };
  return all;
}

const Kind* find(const std::string& name) {
  for (const Kind& kind : kinds())
    if (kind.name == name) return &kind;
  return nullptr;
}

bool fits(const Kind& kind, bool causal) {
  return kind.can == kBoth || (kind.can == kCausal) == causal;
}

}  // namespace

std::shared_ptr<Mixer> make_mixer(const MixerOptions& options) {
  const Kind* kind = find(options.kind);
  TORCH_CHECK(kind && fits(*kind, options.causal), "mixer must be one of ",
              c10::Join(", ", mixer_kinds(options.causal)), ", got '",
              options.kind, "'",
              !kind            ? ""
              : options.causal ? ", which is never causal"
                               : ", which is always causal");
  TORCH_CHECK(options.gumbel == 0 || options.kind == "aft-conv",
              "mixer: gumbel is for aft-conv and must be 0 for ", options.kind,
              ", got ", options.gumbel);
  return kind->make(options);
}

const std::vector<std::string>& mixer_kinds(bool causal) {
  const auto list = [](bool c) {
    std::vector<std::string> names;
    for (const Kind& kind : kinds())
      if (fits(kind, c)) names.emplace_back(kind.name);
    return names;
  };
  static const std::vector<std::string> with = list(true),
                                        without = list(false);
  return causal ? with : without;
}

bool has_max_len(const std::string& kind) {
  const Kind* known = find(kind);
  return known && known->has_max_len;
}

bool keeps_all(const std::string& kind) {
  const Kind* known = find(kind);
  return known && known->keeps_all;
}

}  // namespace aft::nn
