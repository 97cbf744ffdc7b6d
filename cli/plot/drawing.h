// What figures are drawn with: boxes, lines, circles and texts, as SVG or as
// pixels. y grows downward; colours are written as in SVG, #rgb or #rrggbb.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "aft/io/image.h"
#include "cli/figures/colours.h"

namespace aft::cli {

/// Text for SVG and HTML.
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
  bool bold = false;
  Anchor anchor = Anchor::kStart;  ///< what of the text is at x
  std::string colour;              ///< empty: nearly black
  bool halo = false;    ///< with a white edge, to be read on top of lines
  bool upward = false;  ///< turned about (x, y) by 90 degrees
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
  /// y is the line that the letters stand on.
  virtual void text(double x, double y, const std::string& text,
                    const TextStyle& style) = 0;
};

/// A whole SVG file, on white.
class Svg : public Drawing {
 public:
  /// What is above `top` is cut off.
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

/// Pixels, first white; lines, circles and texts have smooth edges. What is
/// outside is not drawn. Letters are those of the built-in font, printable
/// ASCII; each other byte is a question mark.
class Canvas : public Drawing {
 public:
  /// A unit of the drawing is `scale` pixels. Throws io::Error where there are
  /// less than one or more than io::kMaxPixels of them.
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

  /// One pixel (not a unit).
  void set(int64_t y, int64_t x, const Rgb& colour);
  /// A picture, pixel by pixel, its corner at a pixel.
  void put(int64_t top, int64_t left, const io::Image& picture);

  const io::Image& image() const { return image_; }

 private:
  void stroke(const std::vector<Path>& lines, double width,
              const std::string& colour);

  double scale_;
  io::Image image_;
};

/// How wide Canvas draws it.
double text_width(const std::string& text, double size);

}  // namespace aft::cli
