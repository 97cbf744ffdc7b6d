// Matches the classes of a data set or of a new model with those of a trained
// model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "aft/base/config.h"
#include "aft/data/labelled_images.h"

namespace aft::tasks {

/// Whether no class has a name: all are called "class i", or the list is empty.
bool unnamed(const std::vector<std::string>& classes);

/// Matches classes by name: returns the model's class for each class of the
/// data, or -1 if the model does not know it. Names match if they are equal or
/// one is the WordNet id that begins the other ("n01440764", "n01440764 tench,
/// Tinca tinca"); "class i", an unnamed class, matches class i.
std::vector<int64_t> match_classes(const std::vector<std::string>& data,
                                   const std::vector<std::string>& model);

/// The same for a model with `count` classes. If they are unnamed and those of
/// the data are not, class i of the data is class i of the model, provided that
/// the order of the data's classes has a meaning
/// (LabelledImages::has_order_of). Throws DataError if it has none.
std::vector<int64_t> match_classes(const data::LabelledImages& data,
                                   const std::vector<std::string>& model,
                                   int64_t count);

/// For a new classifier that starts with the weights of another: matches its
/// classes with those of the other configuration, and gives classes in `config`
/// that are called by their WordNet id the other's name. Returns {} if the
/// classes of either have no names.
std::vector<int64_t> adopt_classes(base::Json& config, const base::Json& other);

}  // namespace aft::tasks
