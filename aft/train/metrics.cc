#include "aft/train/metrics.h"

#include <unistd.h>

#include <cerrno>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>

#include "aft/io/file.h"

namespace aft::train {
namespace {

/// The fields that every line has.
template <class M, class F>
void fields(M& m, const F& f) {
  f("loss", m.loss), f("rate", m.rate), f("norm", m.norm);
  f("seconds", m.seconds), f("tokens_per_second", m.tokens_per_second);
}

std::optional<Metrics> parse(const std::string& line) {
  const auto j = nlohmann::ordered_json::parse(line, nullptr, false);
  if (!j.is_object() || !j.contains("step") || !j["step"].is_number())
    return {};
  const double step = j["step"].get<double>();
  if (!(step >= 0 && step <= 0x1p53)) return {};
  Metrics out;
  out.step = static_cast<int64_t>(step);
  for (const auto& item : j.items()) {
    if (!item.value().is_number()) continue;
    const double x = item.value().get<double>();
    bool known = item.key() == "step";
    fields(out, [&](const char* name, double& field) {
      if (item.key() == name) field = x, known = true;
    });
    if (item.key() == "validation") {
      out.validation = x;
    } else if (item.key() == "stopped") {
      out.stopped = x != 0;
    } else if (!known) {
      out.values.emplace_back(item.key(), x);
    }
  }
  return out;
}

/// A file that cannot be accessed is not missing: reading it reports why.
bool missing(const std::string& path) {
  return access(path.c_str(), F_OK) != 0 && errno == ENOENT;
}

void for_each_line(
    const std::string& path,
    const std::function<void(const std::string&, Metrics)>& call) {
  if (missing(path)) return;
  constexpr size_t kLimit = size_t{1} << 30;  // millions of lines
  std::istringstream in(io::read_file(path, kLimit));
  for (std::string line; std::getline(in, line);)
    if (std::optional<Metrics> m = parse(line)) call(line, std::move(*m));
}

}  // namespace

double Metrics::value(const std::string& name) const {
  for (const auto& [key, x] : values)
    if (key == name) return x;
  return 0;
}

void append_metrics(const std::string& path, const Metrics& m) {
  nlohmann::ordered_json j = {{"step", m.step}};
  fields(m, [&](const char* name, double x) { j[name] = x; });
  if (m.validation) j["validation"] = *m.validation;
  if (m.stopped) j["stopped"] = 1;
  for (const auto& [name, x] : m.values) j[name] = x;
  io::append_file(path, j.dump() + "\n");
}

std::vector<Metrics> read_metrics(const std::string& path) {
  std::vector<Metrics> out;
  for_each_line(path, [&](const std::string&, Metrics m) {
    out.push_back(std::move(m));
  });
  return out;
}

Metrics truncate_metrics(const std::string& path, int64_t step) {
  if (missing(path)) return {};
  Metrics last;
  std::string kept;
  for_each_line(path, [&](const std::string& line, Metrics m) {
    if (m.step > step || m.stopped) return;
    kept += line + "\n", last = std::move(m);
  });
  io::write_file(path, kept);
  return last;
}

}  // namespace aft::train
