// The random part of DeiT's recipe, as timm and torchvision draw it: what is
// cut out of a training picture, mirrored, changed and erased, and how a batch
// is mixed. Everything hangs on the Random that is handed in; one of those
// belongs to one thread. Bad arguments throw io::Error, which names the
// function, what was expected and what came.
#pragma once

#include <cstdint>

#include "aft/io/image.h"
#include "aft/tasks/image_ops.h"

namespace aft::tasks {

/// Random numbers that hang on the seed alone: next, uniform and below are the
/// same on every machine, normal and beta up to the last bits of its log and
/// exp. Any seed is as good as any other, neighbours too.
class Random {
 public:
  explicit Random(uint64_t seed);

  uint64_t next();
  double uniform();                         ///< [0, 1), a multiple of 2^-53
  double uniform(double low, double high);  ///< low + (high - low) uniform()
  double normal();                          ///< mean 0, variance 1
  int64_t below(int64_t n);                 ///< 0 .. n - 1, all alike; n >= 1
  double beta(double a, double b);          ///< a, b from 1e-300 to 1e300

 private:
  double log_gamma_variate(double a);

  uint64_t state_;
  double spare_ = 0;  // normal makes two at a time
  bool has_spare_ = false;
};

/// A part of a picture.
struct Box {
  int64_t top = 0, left = 0, height = 0, width = 0;
};

// ---- One picture ------------------------------------------------------------

/// What is done to a training picture; 0 or false switches a part off.
struct AugmentConfig {
  double crop_min = 0.08, crop_max = 1;       ///< share of the area
  bool flip = true;                           ///< half of the pictures
  int64_t rand_ops = 2;                       ///< operations of RandAugment
  double rand_magnitude = 9, rand_std = 0.5;  ///< 0 .. 10
};

/// random_crop (or, without, io::cover), resized to height x width, flip and
/// rand_augment. Erasing is for later: see random_erase.
io::Image augment(const io::Image& image, int64_t height, int64_t width,
                  const AugmentConfig& config, Random& random);

/// torchvision's RandomResizedCrop: a box with a share of the area uniform in
/// [min_area, max_area], 0 < min_area <= max_area <= 1, and width / height
/// log-uniform in [3/4, 4/3]. If ten do not fit into the picture, the largest
/// one in its centre with a ratio within those.
Box random_crop(int64_t height, int64_t width, double min_area, double max_area,
                Random& random);

/// A copy of box, which must lie in the picture and have a pixel.
io::Image crop(const io::Image& image, const Box& box);

/// Left becomes right.
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

/// 255 times ImageNet's mean: what comes in from outside of a picture.
inline constexpr Colour kMeanColour{124, 116, 104};

/// An operation with magnitude m, 0 (little) to 10, in timm's "increasing"
/// way; +- is - if negative:
///   rotate       +- 3 m degrees          posterize     4 - int(0.4 m) bits
///   shear        +- 0.03 m               solarize      from 256 - int(25.6 m)
///   translate    +- 0.045 m of the side  solarize_add  int(11 m)
///   colour, contrast, brightness, sharpness            max(0.1, 1 +- 0.09 m)
/// auto_contrast, equalize and invert know no m.
io::Image apply_op(Op op, io::Image image, double magnitude, bool negative);

/// RandAugment: ops times, one of the 15, all alike, which is applied with
/// probability 1/2, at N(magnitude, deviation^2) cut to [0, 10], with either
/// sign. magnitude 0 changes nothing, unlike apply_op, where 0 posterizes.
io::Image rand_augment(io::Image image, int64_t ops, double magnitude,
                       double deviation, Random& random);

/// With probability p, one box of x [3, height, width], a normalised picture,
/// becomes N(0, 1), every value for itself: area uniform in [2 %, 1/3], ratio
/// of the sides log-uniform in [0.3, 1/0.3], smaller than the picture both
/// ways. If ten do not fit, or the box is empty, x stays.
void random_erase(float* x, int64_t height, int64_t width, double p,
                  Random& random);

// ---- A batch ----------------------------------------------------------------

/// How the pictures of a batch are mixed in pairs: lambda of the picture itself
/// and 1 - lambda of its partner, all over or (cut) in a box. Mix the targets
/// alike.
struct Mix {
  bool cut = false;
  double lambda = 1;
  Box box;  ///< of the partner; empty if not cut
};

/// Mixup and CutMix with lambda from Beta(alpha, alpha), alpha = mixup or
/// cutmix; 0 switches one off; if both are on, a coin decides. CutMix: sides
/// int(sqrt(1 - lambda) side), an odd one less 1, centre uniform, what is
/// outside cut off, and lambda is what then remains of the area.
Mix draw_mix(int64_t height, int64_t width, double mixup, double cutmix,
             Random& random);

/// x [B, 3, height, width] in place; 2 b and 2 b + 1 are partners. If B is odd
/// the last one stays.
void apply_mix(const Mix& mix, float* x, int64_t B, int64_t height,
               int64_t width);

}  // namespace aft::tasks
