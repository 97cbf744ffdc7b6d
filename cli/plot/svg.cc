// Renders drawings to SVG.
#include <cstdio>

#include "aft/base/escape.h"
#include "cli/plot/drawing.h"

namespace aft::cli {
namespace {

std::string fixed(double x) {
  char text[32];
  snprintf(text, sizeof(text), "%.1f", x);
  return text;
}

std::string attribute(const char* name, double x) {
  char text[32];
  snprintf(text, sizeof(text), "%g", x);
  return std::string(name) + "=\"" + text + "\"";
}

std::string dashes(const Stroke& stroke) {
  return stroke.dashed ? "stroke-dasharray=\"6 3\" " : "";
}

}  // namespace

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : base::terminal_safe(text))
    out += c == '&'   ? "&amp;"
           : c == '<' ? "&lt;"
           : c == '>' ? "&gt;"
           : c == '"' ? "&quot;"
                      : std::string(1, c);
  return out;
}

Svg::Svg(const std::string& title, double width, double height, double top) {
  const auto size = [&](double h) {
    return "width=\"" + fixed(width) + "\" height=\"" + fixed(h) + "\"";
  };
  out_ = "<svg xmlns=\"http://www.w3.org/2000/svg\" " + size(height - top) +
         " viewBox=\"0 " + (top > 0 ? fixed(top) : "0") + " " + fixed(width) +
         " " + fixed(height - top) +
         "\" font-family=\"Helvetica, Arial, sans-serif\" fill=\"#222\">\n"
         "<title>" +
         escaped(title) + "</title>\n<rect " + size(height) +
         " fill=\"#fff\"/>\n";
}

void Svg::box(double x, double y, double width, double height,
              const std::string& colour) {
  out_ += "<rect x=\"" + fixed(x) + "\" y=\"" + fixed(y) + "\" width=\"" +
          fixed(width) + "\" height=\"" + fixed(height) + "\" fill=\"" +
          colour + "\"/>\n";
}

void Svg::line(double x0, double y0, double x1, double y1,
               const Stroke& stroke) {
  out_ += "<line x1=\"" + fixed(x0) + "\" y1=\"" + fixed(y0) + "\" x2=\"" +
          fixed(x1) + "\" y2=\"" + fixed(y1) + "\" " + dashes(stroke);
  if (stroke.width != 1) out_ += attribute("stroke-width", stroke.width) + " ";
  out_ += "stroke=\"" + stroke.colour + "\"/>\n";
}

void Svg::polyline(const Path& points, const Stroke& stroke) {
  out_ += "<polyline fill=\"none\" " + dashes(stroke) + "stroke=\"" +
          stroke.colour + "\" " + attribute("stroke-width", stroke.width) +
          " points=\"";
  for (const auto& [x, y] : points) out_ += fixed(x) + "," + fixed(y) + " ";
  out_ += "\"/>\n";
}

void Svg::circle(double x, double y, double radius, const std::string& colour) {
  out_ += "<circle cx=\"" + fixed(x) + "\" cy=\"" + fixed(y) + "\" " +
          attribute("r", radius) + " fill=\"" + colour + "\"/>\n";
}

void Svg::text(double x, double y, const std::string& text,
               const TextStyle& style) {
  out_ += "<text x=\"" + fixed(x) + "\" y=\"" + fixed(y) + "\" " +
          attribute("font-size", style.size);
  if (style.bold) out_ += " font-weight=\"bold\"";
  if (style.anchor == Anchor::kMiddle) out_ += " text-anchor=\"middle\"";
  if (style.anchor == Anchor::kEnd) out_ += " text-anchor=\"end\"";
  if (style.halo)
    out_ += " paint-order=\"stroke\" stroke=\"#fff\" stroke-width=\"3\"";
  if (!style.colour.empty()) out_ += " fill=\"" + style.colour + "\"";
  if (style.upward)
    out_ += " transform=\"rotate(-90 " + fixed(x) + " " + fixed(y) + ")\"";
  out_ += ">" + escaped(text) + "</text>\n";
}

}  // namespace aft::cli
