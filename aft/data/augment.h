// The random augmentation of DeiT's recipe, with the distributions of timm and
// torchvision: cropping, flipping, RandAugment and erasing of training images,
// and mixing of batches. The base::Random passed in is the only source of
// randomness; it must not be shared between threads. Invalid arguments throw
// io::Error, which names the function, and what was expected and found.
#pragma once

#include <cstdint>

#include "aft/base/random.h"
#include "aft/data/image_ops.h"
#include "aft/io/image.h"

namespace aft::data {

/// A rectangle in an image.
struct Box {
  int64_t top = 0, left = 0, height = 0, width = 0;
};

// ---- One image --------------------------------------------------------------

/// Augmentation of a training image; 0 or false disables a step.
struct AugmentConfig {
  double crop_min = 0.08, crop_max = 1;  ///< fraction of the area
  bool flip = true;                      ///< with probability 1/2
  int64_t rand_ops = 2;                  ///< number of RandAugment operations
  double rand_magnitude = 9, rand_std = 0.5;  ///< 0 to 10
  double erase = 0.25;  ///< probability of erasing a box of the network's input
};

/// Applies random_crop (io::cover if cropping is disabled), a resize to height
/// x width, flip and rand_augment. Does not erase.
io::Image augment_image(const io::Image& image, int64_t height, int64_t width,
                        const AugmentConfig& config, base::Random& random);

/// The input of a network in training: augment_image, normalise (image_input.h)
/// and random_erase, all determined by `seed`. `to` is [3, height, width].
/// Throws io::Error.
void training_input(const io::Image& image, int64_t height, int64_t width,
                    const AugmentConfig& config, uint64_t seed, float* to);

/// The augmentation of autoregressive image models, as in the paper: mirrors
/// the image or, with `flip` false, never does, and adds one integer in
/// [-shift, shift] to all values, clipped to [0, 255]; both are determined by
/// `random`. `from` and `to` are [height, width, 3] and must not overlap.
void flip_and_shift(const uint8_t* from, int64_t height, int64_t width,
                    bool flip, int64_t shift, uint64_t random, uint8_t* to);

/// torchvision's RandomResizedCrop: a box whose fraction of the area is uniform
/// in [min_area, max_area], 0 < min_area <= max_area <= 1, and whose width /
/// height is log-uniform in [3/4, 4/3]. If ten attempts do not fit into the
/// image, returns the largest centred box with a ratio in that range.
Box random_crop(int64_t height, int64_t width, double min_area, double max_area,
                base::Random& random);

/// Returns a copy of the box, which must be non-empty and inside the image.
io::Image crop(const io::Image& image, const Box& box);

/// Mirrors the image horizontally.
void flip(io::Image& image);

/// The operations of RandAugment.
enum class Op {
  kAutoContrast,
  kEqualize,
  kInvert,
  kRotate,
  kPosterize,
  kSolarize,
  kSolarizeAdd,
  kColour,
  kContrast,
  kBrightness,
  kSharpness,
  kShearX,
  kShearY,
  kTranslateX,
  kTranslateY,
};
inline constexpr int64_t kNumOps = 15;

/// 255 times ImageNet's mean: the fill colour for pixels outside the image.
inline constexpr Colour kMeanColour{124, 116, 104};

/// Applies an operation with magnitude m, from 0 (weak) to 10, on timm's
/// "increasing" scale; +- is - if `negative`:
///   rotate       +- 3 m degrees          posterize     4 - int(0.4 m) bits
///   shear        +- 0.03 m               solarize      from 256 - int(25.6 m)
///   translate    +- 0.045 m of the side  solarize_add  int(11 m)
///   colour, contrast, brightness, sharpness            max(0.1, 1 +- 0.09 m)
/// auto_contrast, equalize and invert ignore m.
io::Image apply_op(Op op, io::Image image, double magnitude, bool negative);

/// RandAugment: `ops` times, picks one of the 15 operations uniformly and
/// applies it with probability 1/2, with magnitude N(magnitude, deviation^2)
/// clipped to [0, 10] and a random sign. magnitude 0 changes nothing, unlike
/// apply_op, where 0 posterizes.
io::Image rand_augment(io::Image image, int64_t ops, double magnitude,
                       double deviation, base::Random& random);

/// With probability p, fills one box of x, a normalised image [3, height,
/// width], with independent N(0, 1) values. The area of the box is uniform in
/// [2 %, 1/3], its aspect ratio log-uniform in [0.3, 1/0.3], and it is smaller
/// than the image in both dimensions. If ten attempts do not fit, or the box is
/// empty, x is unchanged.
void random_erase(float* x, int64_t height, int64_t width, double p,
                  base::Random& random);

// ---- A batch ----------------------------------------------------------------

/// How the images of a batch are mixed in pairs: lambda of the image itself and
/// 1 - lambda of its partner, either blended everywhere or (cut) with a box
/// taken from the partner. The targets must be mixed in the same proportions.
struct Mix {
  bool cut = false;
  double lambda = 1;
  Box box;  ///< taken from the partner; empty unless cut
};

/// Draws Mixup or CutMix, with lambda from Beta(alpha, alpha), alpha = mixup or
/// cutmix. 0 disables one of them; if both are enabled, each has probability
/// 1/2. CutMix: the sides are int(sqrt(1 - lambda) side), less 1 if odd; the
/// centre is uniform; the box is clipped to the image, and lambda is recomputed
/// from the area that remains.
Mix draw_mix(int64_t height, int64_t width, double mixup, double cutmix,
             base::Random& random);

/// Mixes x [B, 3, height, width] in place; images 2 b and 2 b + 1 are partners.
/// If B is odd, the last image is unchanged.
void apply_mix(const Mix& mix, float* x, int64_t B, int64_t height,
               int64_t width);

}  // namespace aft::data
