// Drawing primitives for figures: boxes, lines, circles and text, rendered as
// SVG or as pixels. y grows downward. Colours are written as in SVG: #rgb or
// #rrggbb.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "aft/io/image.h"
#include "cli/plot/colours.h"

namespace aft::cli {

/// Escapes text for SVG and HTML, also control characters and bytes that are
/// not UTF-8.
std::string escaped(const std::string& text);

using Path = std::vector<std::pair<double, double>>;

struct Stroke {
  std::string colour;
  double width = 1;
  bool dashed = false;
};

enum class Anchor { kStart, kMiddle, kEnd };

struct TextStyle {
  double size = 13;
  Anchor anchor = Anchor::kStart;  ///< which part of the text is at x
  bool bold = false;
  std::string colour = "";  ///< empty: nearly black
  bool halo = false;        ///< white outline, to stay readable on top of lines
  bool upward = false;      ///< rotated by 90 degrees about (x, y)
};

class Drawing {
 public:
  virtual ~Drawing() = default;
  virtual void box(double x, double y, double width, double height,
                   const std::string& colour) = 0;
  virtual void line(double x0, double y0, double x1, double y1,
                    const Stroke& stroke) = 0;
  virtual void polyline(const Path& points, const Stroke& stroke) = 0;
  virtual void circle(double x, double y, double radius,
                      const std::string& colour) = 0;
  /// y is the baseline.
  virtual void text(double x, double y, const std::string& text,
                    const TextStyle& style) = 0;
};

/// Renders to a complete SVG file with a white background.
class Svg : public Drawing {
 public:
  /// Everything above `top` is clipped.
  Svg(const std::string& title, double width, double height, double top = 0);

  void box(double x, double y, double width, double height,
           const std::string& colour) override;
  void line(double x0, double y0, double x1, double y1,
            const Stroke& stroke) override;
  void polyline(const Path& points, const Stroke& stroke) override;
  void circle(double x, double y, double radius,
              const std::string& colour) override;
  void text(double x, double y, const std::string& text,
            const TextStyle& style) override;

  std::string str() const { return out_ + "</svg>\n"; }

 private:
  std::string out_;
};

/// Renders to pixels on a white background. Lines, circles and text are
/// antialiased. Everything outside the image is clipped. The built-in font has
/// printable ASCII; every other byte is drawn as a question mark.
class Canvas : public Drawing {
 public:
  /// One drawing unit is `scale` pixels. Throws io::Error if the image would
  /// have less than one pixel or more than io::kMaxPixels.
  Canvas(double width, double height, double scale = 1);

  void box(double x, double y, double width, double height,
           const std::string& colour) override;
  void line(double x0, double y0, double x1, double y1,
            const Stroke& stroke) override;
  void polyline(const Path& points, const Stroke& stroke) override;
  void circle(double x, double y, double radius,
              const std::string& colour) override;
  void text(double x, double y, const std::string& text,
            const TextStyle& style) override;

  /// Sets one pixel; y and x are in pixels, not in drawing units.
  void set(int64_t y, int64_t x, const Rgb& colour);
  /// Copies an image without scaling; top and left are in pixels.
  void put(int64_t top, int64_t left, const io::Image& image);

  const io::Image& image() const { return image_; }

 private:
  void stroke(const std::vector<Path>& lines, double width,
              const std::string& colour);

  double scale_;
  io::Image image_;
};

/// The width of `text` as Canvas draws it.
double text_width(const std::string& text, double size);

}  // namespace aft::cli
