#include "cli/curve.h"

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/language.h"
#include "cli/plot.h"

namespace aft::cli {

void write_curve(const std::string& directory) {
  Series training{"training", {}}, validation{"validation", {}};
  std::ifstream in(directory + "/metrics.jsonl");
  std::string line;
  while (std::getline(in, line)) {
    const auto j = nlohmann::json::parse(line, nullptr, false);
    if (j.is_discarded() || !j.contains("step")) continue;
    const double step = j["step"].get<double>();
    if (j.contains("loss") && j["loss"].get<double>() > 0)
      training.points.emplace_back(step, j["loss"].get<double>() * kBits);
    if (j.contains("validation") && j["validation"].get<double>() > 0)
      validation.points.emplace_back(step,
                                     j["validation"].get<double>() * kBits);
  }
  if (training.points.empty()) return;
  const std::string path = directory + "/curve.svg", part = path + ".part";
  std::ofstream out(part);
  out << plot(directory, "bits per symbol against the step",
              {{"", "step", "bits", {training, validation}, true}});
  out.close();
  if (out) rename(part.c_str(), path.c_str());
}

}  // namespace aft::cli
