// Small models of every kind.
#pragma once

#include <string>
#include <vector>

#include "aft/base/config.h"

namespace aft::tasks {

/// The section "model" of a configuration, for a mixer of
/// nn::mixer_kinds(true).
inline base::Json small_sequence(const std::string& mixer) {
  return {{"mixer", mixer}, {"layers", 2}, {"width", 16},   {"window", 5},
          {"rank", 3},      {"heads", 4},  {"dropout", 0.1}};
}

/// The same for a network.
inline base::Json small_network(const std::string& name) {
  if (name == "pixelcnn")
    return {{"network", name}, {"layers", 2}, {"width", 6}, {"first", 3}};
  base::Json out{{"network", name},
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

/// A small configuration of every kind.
inline std::vector<base::Json> small_configurations() {
  std::vector<base::Json> configs = {
      {{"task", "language"}, {"model", small_sequence("aft-local")}},
      {{"task", "language"}, {"model", small_sequence("aft-conv")}},
      {{"task", "language"}, {"model", small_sequence("reformer")}},
      {{"task", "language"}, {"model", small_sequence("performer")}},
      {{"task", "language"}, {"model", small_sequence("sparse")}},
      {{"task", "language"}, {"model", small_sequence("synthesizer")}},
      {{"task", "image"}, {"model", small_sequence("image-local2d")}},
      {{"task", "image"}, {"model", small_network("pixelcnn")}},
      {{"task", "image"}, {"model", small_network("pixelcnn++")}},
      {{"task", "image"}, {"model", small_network("pixelsnail")}},
      {{"task", "classification"},
       {"model",
        {{"network", "resnet"},
         {"layers", 14},
         {"width", 4},
         {"classes", 3}}}}};
  for (const char* mixer : {"aft-conv", "aft-full", "lambda", "attention"})
    configs.push_back({{"task", "classification"},
                       {"model",
                        {{"mixer", mixer},
                         {"layers", 1},
                         {"width", 16},
                         {"heads", 4},
                         {"patch", 16},
                         {"classes", 3}}}});
  for (base::Json& config : configs) {
    config["data"] = config["task"] == "language"
                         ? base::Json::object()
                         : base::Json{{"height", 32}, {"width", 32}};
    if (config["task"] == "language") config["model"]["length"] = 16;
  }
  return configs;
}

}  // namespace aft::tasks
