// Small models of pictures by their names.
#pragma once

#include <string>

#include "aft/models/config.h"

namespace aft::tasks {

/// The part "model" of a configuration: a mixer of nn::mixer_kinds(true).
inline models::Json small_sequence(const std::string& mixer) {
  return {{"mixer", mixer}, {"layers", 2}, {"width", 16},   {"window", 5},
          {"rank", 3},      {"heads", 4},  {"dropout", 0.1}};
}

/// The same of a network.
inline models::Json small_network(const std::string& name) {
  if (name == "pixelcnn")
    return {{"network", name}, {"layers", 2}, {"width", 6}, {"first", 3}};
  models::Json out{{"network", name},
                   {"filters", 4},
                   {"resnets", 1},
                   {"mixtures", 2},
                   {"dropout", 0.1}};
  if (name == "pixelsnail")
    out["blocks"] = 1, out["key"] = 2, out["value"] = 2;
  else
    out["resolutions"] = 2;
  return out;
}

}  // namespace aft::tasks
