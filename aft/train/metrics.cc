#include "aft/train/metrics.h"

#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>
#include <sstream>

#include "aft/io/file.h"
#include "aft/train/trainer.h"

namespace aft::train {

void append_metrics(const std::string& path, const Report& r) {
  nlohmann::ordered_json j = {
      {"step", r.step},       {"loss", r.loss},
      {"rate", r.rate},       {"norm", r.norm},
      {"seconds", r.seconds}, {"tokens_per_second", r.tokens_per_second}};
  if (r.validated) {
    j["validation"] = r.validation.loss;
    for (const auto& [name, share] : r.validation.shares) j[name] = share;
    if (r.sparsity) {
      j["kernel_entropy"] = r.sparsity->entropy;
      j["kernel_top"] = r.sparsity->top;
    }
  }
  io::append_file(path, j.dump() + "\n");
}

double forget_metrics(const std::string& path, int64_t step) {
  if (access(path.c_str(), F_OK) != 0 && errno == ENOENT) return 0;
  std::istringstream in(io::read_file(path, int64_t{1} << 30));
  double seconds = 0;
  std::string kept, line;
  while (std::getline(in, line)) {
    const auto j = nlohmann::json::parse(line, nullptr, false);
    if (!j.is_object() || !j.contains("step") || !j["step"].is_number() ||
        j["step"].get<double>() > static_cast<double>(step))
      continue;
    if (j.contains("seconds") && j["seconds"].is_number())
      seconds = j["seconds"].get<double>();
    kept += line + "\n";
  }
  io::write_file(path, kept);
  return seconds;
}

}  // namespace aft::train
