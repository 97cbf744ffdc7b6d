#include "aft/tasks/class_names.h"

#include <algorithm>
#include <numeric>

#include "aft/data/label_table.h"

namespace aft::tasks {
namespace {

using Names = std::vector<std::string>;

std::string unnamed_class(size_t i) { return "class " + std::to_string(i); }

bool same_class(const std::string& a, const std::string& b) {
  const std::string id = data::wnid_of(a);
  return a == b ||
         (!id.empty() && id == data::wnid_of(b) && (a == id || b == id));
}

int64_t find_class(const std::string& name, size_t index, const Names& model) {
  // Two classes can have the same name, such as ImageNet's two cranes.
  if (index < model.size() && model[index] == name)
    return static_cast<int64_t>(index);
  for (size_t i = 0; i < model.size(); ++i)
    if (same_class(name, model[i])) return static_cast<int64_t>(i);
  for (size_t i = 0; i < model.size(); ++i)
    if (name == unnamed_class(i)) return static_cast<int64_t>(i);
  return -1;
}

}  // namespace

bool unnamed(const Names& classes) {
  for (size_t i = 0; i < classes.size(); ++i)
    if (classes[i] != unnamed_class(i)) return false;
  return true;
}

std::vector<int64_t> match_classes(const Names& data, const Names& model) {
  std::vector<int64_t> out;
  for (size_t i = 0; i < data.size(); ++i)
    out.push_back(find_class(data[i], i, model));
  return out;
}

std::vector<int64_t> match_classes(const data::LabelledImages& data,
                                   const Names& model, int64_t count) {
  std::vector<int64_t> out = match_classes(data.classes(), model);
  if (!unnamed(model) || *std::min_element(out.begin(), out.end()) >= 0)
    return out;
  const size_t classes = data.classes().size();
  if (!data.has_order_of(count))
    throw data::DataError(
        data.path() + ": its " + std::to_string(classes) +
        " classes cannot be matched with the model's " + std::to_string(count) +
        ", which have no names (data.classes); expected a labels.tsv with "
        "indices below " +
        std::to_string(count) + ", or a model imported with --labels FILE");
  std::iota(out.begin(), out.end(), int64_t{0});
  return out;
}

std::vector<int64_t> adopt_classes(base::Json& config,
                                   const base::Json& other) {
  const auto of = [](const base::Json& c) {
    return c.at("data").value("classes", Names());
  };
  Names names = of(config);
  const Names known = of(other);
  if (unnamed(names) || unnamed(known)) return {};
  const std::vector<int64_t> out = match_classes(names, known);
  for (size_t i = 0; i < names.size(); ++i) {
    if (out[i] < 0 || names[i] != data::wnid_of(names[i])) continue;
    names[i] = known[static_cast<size_t>(out[i])];
  }
  config["data"]["classes"] = names;
  return out;
}

}  // namespace aft::tasks
