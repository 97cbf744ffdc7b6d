// Matching of classes by name, by WordNet id and by index.
#include "aft/tasks/class_names.h"

#include <gtest/gtest.h>

#include "aft/data/label_table.h"
#include "tests/data/labelled_images_fixture.h"

namespace aft::tasks {
namespace {

using data::Strings;
using Indices = std::vector<int64_t>;

TEST(MatchClasses, ByNameOrWordNetId) {
  const Strings model{"n01 tench, Tinca tinca", "n02 goldfish", "cat", "n03"};
  EXPECT_EQ(match_classes({"n02", "n01 tench, Tinca tinca", "cat"}, model),
            (Indices{1, 0, 2}));
  EXPECT_EQ(match_classes({"n03 dog", "n0", "dog"}, model),
            (Indices{3, -1, -1}));
  // Neither the same words of other classes, nor other names of a class.
  EXPECT_EQ(match_classes({"cat tabby", "n01 carp"}, model), (Indices{-1, -1}));
  EXPECT_EQ(match_classes({"great"}, {"great white shark"}), Indices{-1});
  EXPECT_EQ(match_classes({"class"}, {"class 0"}), Indices{-1});
  // Unnamed classes, and different classes with the same name.
  EXPECT_EQ(
      match_classes({"class 2", "class 9", "class 01", "class 1x"}, model),
      (Indices{2, -1, -1, -1}));
  EXPECT_EQ(match_classes({"crane", "b", "crane"}, {"crane", "b", "crane"}),
            (Indices{0, 1, 2}));
}

TEST(MatchClasses, WordNetIdsAreNAndDigits) {
  for (const char* name : {"n01440764", "n01440764 tench, Tinca tinca"})
    EXPECT_EQ(data::wnid_of(name), "n01440764");
  for (const char* name : {"", "n", "n 1", "nail", "n1a", "01440764", "a n1"})
    EXPECT_EQ(data::wnid_of(name), "") << name;
}

/// A data set with a folder per class.
data::LabelledImages folders(const Strings& classes) {
  const std::string path = new_folder();
  for (const std::string& each : classes)
    data::write_image(path + "/" + each + "/0.png", 1);
  return data::LabelledImages::open(path, 0);
}

/// A data set with labels.tsv, one image per line.
data::LabelledImages table(const std::string& header, const Strings& lines) {
  const std::string path = new_folder();
  std::string text = "file\tclass_index" + header + "\n";
  for (size_t i = 0; i < lines.size(); ++i) {
    const std::string file = std::to_string(i) + ".png";
    data::write_image(path + "/" + file, 1);
    text += file + "\t" + lines[i] + "\n";
  }
  data::write(path + "/labels.tsv", text);
  return data::LabelledImages::open(path, 0);
}

TEST(MatchClasses, UnnamedClassesByIndexIfTheyHaveAnOrder) {
  const Strings none{"class 0", "class 1", "class 2"};
  const auto match = [&](const data::LabelledImages& data) {
    return match_classes(data, none, 3);
  };
  const auto fails = [&](const data::LabelledImages& data,
                         const std::string& count) {
    try {
      match(data);
      ADD_FAILURE() << "no error";
    } catch (const data::DataError& e) {
      for (const std::string& part :
           {": its " + count + " classes", std::string("the model's 3"),
            std::string("--labels FILE"), std::string("labels.tsv")})
        EXPECT_NE(std::string(e.what()).find(part), std::string::npos)
            << e.what();
    }
  };
  const Indices all{0, 1, 2};
  // A table gives indices, also of some of the classes.
  EXPECT_EQ(match(table("\twnid", {"0\tn5", "2\tn1", "1\tn3"})), all);
  EXPECT_EQ(match(table("\twnid", {"1\tn5"})), (Indices{0, 1}));
  EXPECT_EQ(match(table("", {"2"})), all);
  fails(table("\tname", {"3\tcat", "1\tdog"}), "4");
  // Folders in ImageNet's order, if none is missing.
  EXPECT_EQ(match(folders({"n3", "n1", "n2"})), all);
  fails(folders({"n3", "n1"}), "2");
  fails(folders({"ant", "bee", "cat"}), "3");
  fails(folders({"10", "2", "3"}), "3");
  // Folders with the names of unnamed classes.
  EXPECT_EQ(match(folders({"class 2", "class 1"})), (Indices{1, 2}));
  // A configuration without data.classes.
  EXPECT_EQ(match_classes(table("\tname", {"0\tcat", "1\tdog"}), {}, 2),
            (Indices{0, 1}));
  // The built-in shapes have an order; named models are matched by name.
  const auto shapes = data::LabelledImages::open("", 0);
  EXPECT_EQ(match_classes(shapes, {}, 6), (Indices{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(match_classes(shapes, {"ring", "disc"}, 2),
            (Indices{1, -1, -1, 0, -1, -1}));
}

TEST(AdoptClasses, TakesOverNamesByWordNetId) {
  const auto of = [](const Strings& classes) {
    return base::Json{{"data", {{"classes", classes}}}};
  };
  base::Json config = of({"n07", "n02", "cat", "n03 own name"});
  EXPECT_EQ(adopt_classes(config, of({"n01 tench", "n02 goldfish", "cat fish",
                                      "n03", "cat"})),
            (Indices{-1, 1, 4, 3}));
  EXPECT_EQ(config, of({"n07", "n02 goldfish", "cat", "n03 own name"}));
  // Without names, there is nothing to match.
  const base::Json before = config;
  EXPECT_EQ(adopt_classes(config, of({"class 0", "class 1"})), Indices{});
  EXPECT_EQ(config, before);
}

}  // namespace
}  // namespace aft::tasks
