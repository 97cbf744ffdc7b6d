// LabelledImages from folders and tables: layouts, parts and errors.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <functional>
#include <set>

#include "tests/data/labelled_images_fixture.h"

namespace aft::data {
namespace {

// ---- Folders ----------------------------------------------------------------

TEST(LabelledFolders, TrainAndVal) {
  const std::string path = folder("imagenet");
  write_image(path + "/train/n02/b.JPEG", 2);
  write_image(path + "/train/n02/a.png", 1);
  write_image(path + "/train/n01/deep/er/c.jpg", 3);
  write_image(path + "/train/n10/d.PNG", 4);
  write_image(path + "/val/n10/e.png", 5);
  write_image(path + "/val/n01/f.png", 6);
  fs::create_directories(path + "/val/n02");  // no images in val: allowed
  // Ignored:
  write_image(path + "/train/n02/._a.png", 99);
  write_image(path + "/train/n02/.thumbnails/a.png", 99);
  write_image(path + "/train/.trash/a.png", 99);
  write_image(path + "/train/beside.png", 99);
  write_image(path + "/val/.trash/a.png", 99);
  write_image(path + "/other/n01/a.png", 99);
  write(path + "/train/n01/notes.txt", "no image");

  const LabelledImages all = LabelledImages::open(path, 0);
  EXPECT_EQ(all.classes(), (Strings{"n01", "n02", "n10"}));
  EXPECT_EQ(colours(all, all.train()), (std::vector<int>{3, 1, 2, 4}));
  EXPECT_EQ(labels(all, all.train()), (std::vector<int>{0, 1, 1, 2}));
  EXPECT_EQ(colours(all, all.test()), (std::vector<int>{6, 5}));
  EXPECT_EQ(labels(all, all.test()), (std::vector<int>{0, 2}));
  EXPECT_TRUE(all.valid().empty());
  EXPECT_EQ(all.name(0), path + "/train/n01/deep/er/c.jpg");
  EXPECT_EQ(all.name(5), path + "/val/n10/e.png");
  expect_partition(all);
  EXPECT_EQ(all.split("test"), all.test());
  EXPECT_EQ(all.split("all"), (LabelledPart{0, 1, 2, 3, 4, 5}));
  EXPECT_TRUE(all.has_test());
  EXPECT_THROW(all.split("val"), DataError);
  EXPECT_EQ(LabelledImages::open(path + "/", 0).fingerprint(),
            all.fingerprint());

  // val/ has precedence over test/, which is then ignored.
  write_image(path + "/test/unsorted.png", 7);
  EXPECT_EQ(all.fingerprint(), fingerprint(path));
  fs::remove_all(path + "/val");
  expect_error(path, {path + "/test: expected a folder of PNG or JPEG files "
                             "for each class, got none"});
  write_image(path + "/test/n02/g.png", 8);
  const LabelledImages other = LabelledImages::open(path, 0);
  EXPECT_EQ(colours(other, other.test()), (std::vector<int>{8}));
}

TEST(LabelledFolders, EveryTenthImageOfAClassIsForTesting) {
  const std::string path = folder("flat");
  for (int i = 0; i < 25; ++i)
    write_image(path + "/b/" + char('a' + i) + ".png", i);
  for (int i = 0; i < 9; ++i)
    write_image(path + "/a/" + char('a' + i) + ".png", 100 + i);
  for (int i = 0; i < 10; ++i)
    write_image(path + "/train/" + char('a' + i) + ".png", 200 + i);
  const LabelledImages all = LabelledImages::open(path, 0);
  EXPECT_EQ(all.classes(),
            (Strings{"a", "b", "train"}));  // a class called train
  EXPECT_EQ(colours(all, all.test()), (std::vector<int>{9, 19, 209}));
  EXPECT_EQ(labels(all, all.test()), (std::vector<int>{1, 1, 2}));
  EXPECT_EQ(histogram(all, all.train()),
            (std::map<int, int>{{0, 9}, {1, 23}, {2, 9}}));
  expect_partition(all);
}

TEST(LabelledFolders, ValidationIsEven) {
  const std::string path = folder("valid");
  const int counts[] = {40, 80, 10, 70};
  for (int label = 0; label < 4; ++label)
    for (int i = 0; i < counts[label]; ++i)
      write_image(path + "/train/" + std::to_string(label) + "/" +
                      std::to_string(100 + i) + ".png",
                  i);
  write_image(path + "/val/0/x.png", 0);
  const auto open = [&](int64_t valid) {
    return LabelledImages::open(path, valid);
  };
  // At most a tenth, from each class.
  for (const int64_t valid : {20, 21, 1000}) {
    const LabelledImages all = open(valid);
    EXPECT_EQ(histogram(all, all.valid()),
              (std::map<int, int>{{0, 4}, {1, 8}, {2, 1}, {3, 7}}));
    EXPECT_EQ(all.train().size(), 180u);
    expect_partition(all);
    // Evenly within a class: steps of ten.
    EXPECT_EQ(all.valid()[1] - all.valid()[0], 10);
  }
  // Half of that would be 2, 4, 0.5 and 3.5.
  EXPECT_EQ(histogram(open(10), open(10).valid()),
            (std::map<int, int>{{0, 2}, {1, 4}, {3, 4}}));
  EXPECT_EQ(open(1).valid(), (LabelledPart{100}));  // the middle
  EXPECT_EQ(open(7).valid(), open(7).valid());
  EXPECT_TRUE(open(0).valid().empty());
  EXPECT_EQ(open(20).fingerprint(), open(0).fingerprint());
  expect_error(path, {"data.valid_images must be 0 or more, got -1"}, -1);
}

TEST(LabelledFolders, Fingerprint) {
  const auto make = [](const std::string& name) {
    const std::string path = folder(name);
    write_image(path + "/train/a/1.png", 1);
    write_image(path + "/train/a/2.png", 2);
    write_image(path + "/train/b/3.png", 3);
    write_image(path + "/val/a/4.png", 4);
    return path;
  };
  const std::string path = make("print"), first = fingerprint(path);
  EXPECT_EQ(first.substr(0, 2), "4-");
  EXPECT_EQ(fingerprint(make("elsewhere")), first);
  std::set<std::string> different = {first};
  const auto changed = [&](const std::function<void()>& change) {
    make("print");
    change();
    EXPECT_TRUE(different.insert(fingerprint(path)).second);
  };
  changed([&] { write_image(path + "/val/b/5.png", 4); });
  changed(
      [&] { fs::rename(path + "/train/a/1.png", path + "/train/a/0.png"); });
  changed(
      [&] { fs::rename(path + "/train/a/1.png", path + "/train/b/1.png"); });
  changed([&] { fs::rename(path + "/train/a/1.png", path + "/val/a/1.png"); });
  changed([&] {
    fs::rename(path + "/train/a/1.png", path + "/train/a/2.png");
    fs::rename(path + "/train/b/3.png", path + "/train/b/13.png");
  });
  changed([&] { fs::rename(path + "/train/b", path + "/train/c"); });
}

TEST(LabelledFolders, Errors) {
  const std::string path = folder("errors");
  expect_error(path, {path + ": expected a folder of PNG or JPEG files for "
                             "each class, labels.tsv or batches of CIFAR-10",
                      "got none"});
  expect_error(path + "/missing",
               {path + "/missing: expected a folder of images (--data or "
                       "data.path), got nothing"});
  expect_error("/nowhere/cifar-10-batches-bin", {"--download"});
  write_image(path + "/loose.png", 1);
  expect_error(path, {"for each class", "got none"});
  expect_error(path + "/loose.png", {"a folder of images", "got one image"});

  write_image(path + "/train/cat/a.png", 1);
  expect_error(
      path, {path + ": expected train/ and val/ (or test/), got only train/"});
  fs::create_directories(path + "/val");
  expect_error(path, {path + "/val: expected a folder of PNG or JPEG files"});
  fs::create_directories(path + "/val/cat");
  expect_error(path, {path + "/val: expected a folder of PNG or JPEG files"});
  write_image(path + "/val/cat/b.png", 1);
  EXPECT_EQ(LabelledImages::open(path, 0).count(), 2);

  fs::create_directories(path + "/val/ant");
  expect_error(path, {path + "/val/ant: expected one of the 1 class"});
  fs::remove(path + "/val/ant");
  fs::create_directories(path + "/val/dog");
  expect_error(path, {path + "/val/dog: expected one of the 1 class in "
                             "train/, got 'dog'"});
  fs::create_directories(path + "/train/dog/empty");
  write(path + "/train/dog/a.gif", "GIF89a");
  expect_error(path, {path + "/train/dog: expected PNG or JPEG files of that "
                             "class, got none"});
  fs::remove_all(path + "/train"), fs::create_directories(path + "/train");
  fs::remove_all(path + "/val/dog"), fs::remove_all(path + "/val/cat");
  expect_error(path, {path + "/train: expected a folder of PNG or JPEG files "
                             "for each class, got none"});
  fs::remove_all(path + "/train");
  expect_error(path, {"expected train/ and val/ (or test/), got only val/"});

  // A file is opened only when it is read.
  write_image(path + "/train/cat/a.png", 1),
      write_image(path + "/val/cat/b.png", 2);
  write(path + "/train/cat/broken.png", "\x89PNG\r\n\x1a\n and no more");
  const LabelledImages all = LabelledImages::open(path, 0);
  EXPECT_EQ(all.read(2).rgb[0], 2);
  try {
    all.read(1);
    ADD_FAILURE() << "no error";
  } catch (const std::runtime_error& e) {
    EXPECT_NE(std::string(e.what()).find(path + "/train/cat/broken.png"),
              std::string::npos)
        << e.what();
  }
  for (const int64_t i : {-1, 3}) {
    EXPECT_THROW(all.label(i), std::out_of_range);
    EXPECT_THROW(all.read(i), std::out_of_range);
    EXPECT_THROW(all.name(i), std::out_of_range);
  }
}

// ---- labels.tsv -------------------------------------------------------------

/// A folder with a.png, images/b.png, images/c.png and the given table.
std::string table(const std::string& text) {
  const std::string path = folder("table");
  write_image(path + "/a.png", 1);
  write_image(path + "/images/b.png", 2);
  write_image(path + "/images/c.png", 3);
  write(path + "/labels.tsv", text);
  return path;
}

TEST(LabelledTable, ColumnsInAnyOrder) {
  const std::string path = table(
      "name\tclass_index\tmore\tfile\twnid\r\n"
      "tench, Tinca tinca\t2\t\tb.png\tn01440764\r\n"
      "\t0\tx\ta.png\tn1\r\n"
      "\n"
      "tench, Tinca tinca\t2\t\tc.png\tn01440764");
  const LabelledImages all = LabelledImages::open(path, 5);
  EXPECT_EQ(all.classes(),
            (Strings{"n1", "class 1", "n01440764 tench, Tinca tinca"}));
  EXPECT_TRUE(all.train().empty());
  EXPECT_TRUE(all.valid().empty());
  EXPECT_EQ(colours(all, all.test()), (std::vector<int>{2, 1, 3}));
  EXPECT_EQ(labels(all, all.test()), (std::vector<int>{2, 0, 2}));
  EXPECT_EQ(all.name(0), path + "/images/b.png");
  EXPECT_EQ(all.name(1), path + "/a.png");
  expect_partition(all);
  const auto classes = [](const std::string& text) {
    return LabelledImages::open(table(text), 0).classes();
  };
  EXPECT_EQ(classes("file\tclass_index\na.png\t1\n"),
            (Strings{"class 0", "class 1"}));
  EXPECT_EQ(classes("file\tclass_index\tname\na.png\t0\tx\nb.png\t1\t\n"),
            (Strings{"x", "class 1"}));
  EXPECT_EQ(classes("file\tclass_index\na.png\t99999\n").size(), 100000u);
}

TEST(LabelledTable, Fingerprint) {
  const std::string head = "file\tclass_index\tname\n";
  std::set<std::string> different;
  for (const char* rows :
       {"a.png\t0\tx\nb.png\t1\ty\n", "a.png\t0\tx\nb.png\t0\tx\n",
        "a.png\t0\tx\nc.png\t1\ty\n", "b.png\t0\tx\na.png\t1\ty\n",
        "a.png\t0\tx\nb.png\t1\tz\n", "a.png\t0\tx\n",
        "a.png\t0\tx\nb.png\t1\ty\nc.png\t0\tx\n",
        "a.png\t0\tx\nb.png\t1\ty\nc.png\t1\ty\n"})
    EXPECT_TRUE(different.insert(fingerprint(table(head + rows))).second)
        << rows;
  // The boundaries between names count.
  for (const char* rows : {"p\t0\tx\nqr\t0\tx\n", "pq\t0\tx\nr\t0\tx\n"}) {
    const std::string path = table(head + rows);
    for (const char* name : {"/p", "/qr", "/pq", "/r"})
      write_image(path + name, 1);
    EXPECT_TRUE(different.insert(fingerprint(path)).second) << rows;
  }
}

TEST(LabelledTable, Errors) {
  const auto bad = [](const std::string& text, const Strings& parts) {
    SCOPED_TRACE(text);
    const std::string path = table(text);
    expect_error(path, {path + "/labels.tsv: "});
    expect_error(path, parts);
  };
  const std::string head = "file\tclass_index\tname\n", good = "a.png\t7\tx\n";
  bad("", {"line 1: expected a column 'file'", "got ''"});
  bad("file,class_index\n", {"line 1", "'file'", "got 'file,class_index'"});
  bad("file\tclass\n", {"line 1: expected a column 'class_index'"});
  bad("file\tclass_index\tfile\n", {"line 1: expected one column 'file'"});
  bad(head, {"expected one line per image, got none"});
  bad(head + good + "b.png\t1\n", {"line 3: expected 3 columns", "got 2"});
  bad(head + "a.png\t1\tx\t\n", {"line 2: expected 3 columns", "got 4"});
  for (const char* number : {"", "x", "-1", "1.5", "1 ", " 1", "0x1", "100000",
                             "99999999999999999999"})
    bad(head + good + "b.png\t" + number + "\tx\n",
        {"line 3: class_index must be a number from 0 to 99999, got '" +
         std::string(number) + "'"});
  for (const char* file : {"d.png", "", "images", "/a.png/"})
    bad(head + good + "\n" + file + "\t1\tx\n",
        {"line 4: expected a file beside labels.tsv or in images/, got '" +
         std::string(file) + "'"});
  bad(head + good + "b.png\t1\tx\nc.png\t7\ty\n",
      {"line 4: class 7 is 'x' in line 2, got 'y'"});
  bad(head + good + "b.png\t7\t\n", {"line 3: class 7 is 'x' in line 2"});
  bad(head + "b.png\t7\t\n" + good, {"line 3: class 7 is '' in line 2"});
  bad(head + good + "a.png\t7\tx\n",
      {"line 3: expected each file once, got 'a.png' again, which was in line "
       "2"});
  const std::string path = table("");
  fs::remove(path + "/labels.tsv");
  fs::create_directories(path + "/labels.tsv");
  expect_error(path, {path + "/labels.tsv: "});
  fs::remove(path + "/labels.tsv");
  ASSERT_EQ(mkfifo((path + "/labels.tsv").c_str(), 0600), 0);  // must not block
  expect_error(path, {path + "/labels.tsv: must be a regular file"});
}

}  // namespace
}  // namespace aft::data
