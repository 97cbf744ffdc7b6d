#include "aft/tasks/class_names.h"

#include <algorithm>
#include <charconv>
#include <numeric>
#include <unordered_map>

#include "aft/data/label_table.h"

namespace aft::tasks {
namespace {

using Names = std::vector<std::string>;

std::string unnamed_class(size_t i) { return "class " + std::to_string(i); }

/// The i of "class i" if it is below `count`; otherwise -1.
int64_t index_of_unnamed(const std::string& name, size_t count) {
  size_t i = 0;
  if (name.compare(0, 6, "class ") != 0) return -1;
  std::from_chars(name.data() + 6, name.data() + name.size(), i);
  return i < count && name == unnamed_class(i) ? static_cast<int64_t>(i) : -1;
}

}  // namespace

bool unnamed(const Names& classes) {
  for (size_t i = 0; i < classes.size(); ++i)
    if (classes[i] != unnamed_class(i)) return false;
  return true;
}

std::vector<int64_t> match_classes(const Names& data, const Names& model) {
  // The first class with that name or WordNet id.
  std::unordered_map<std::string, size_t> names, ids;
  for (size_t i = 0; i < model.size(); ++i) {
    names.emplace(model[i], i);
    if (const std::string id = data::wnid_of(model[i]); !id.empty())
      ids.emplace(id, i);
  }
  const auto find = [&](const std::string& name, size_t i) {
    // Two classes can have the same name, such as ImageNet's two cranes.
    if (i < model.size() && model[i] == name) return static_cast<int64_t>(i);
    if (const auto at = names.find(name); at != names.end())
      return static_cast<int64_t>(at->second);
    const std::string id = data::wnid_of(name);
    const auto& known = id == name ? ids : names;
    if (const auto at = known.find(id); !id.empty() && at != known.end())
      return static_cast<int64_t>(at->second);
    return index_of_unnamed(name, model.size());
  };
  std::vector<int64_t> out;
  for (size_t i = 0; i < data.size(); ++i) out.push_back(find(data[i], i));
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
