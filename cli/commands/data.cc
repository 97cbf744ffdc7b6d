// `aft data`: describes text and images before training, and downloads public
// data sets.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iostream>
#include <memory>

#include "aft/base/counted.h"
#include "aft/data/download.h"
#include "aft/data/raw_images.h"
#include "aft/data/text.h"
#include "aft/io/image.h"
#include "cli/commands.h"
#include "cli/image_grid.h"
#include "cli/model.h"
#include "cli/table.h"

namespace aft::cli {
namespace {

struct Options {
  std::string what, mode = "bytes", out = ".", from, grid;
  int64_t size = 32;
  bool download = false, json = false;
};

void list(bool json) {
  base::Json all = base::Json::array();
  std::vector<std::vector<std::string>> rows;
  for (const data::Dataset& set : data::datasets()) {
    all.push_back({{"name", set.name},
                   {"about", set.about},
                   {"bytes", set.size},
                   {"sha256", set.sha256},
                   {"address", set.address}});
    rows.push_back(
        {set.name, count(static_cast<double>(set.size)) + "B", set.about});
  }
  if (json) {
    std::cout << all.dump(2) << '\n';
    return;
  }
  std::cout
      << table({"data set", "size", "what"}, rows, 3)
      << "\n`aft data NAME --download` downloads one; `aft data FILE` "
         "describes any file, `aft data DIR` any folder of images, `aft data "
         "built-in` and\n`aft data built-in-images` the built-in data\n";
}

constexpr char kEntropyNote[] =
    "\nentropy_bits: the loss of the best model without context\n";

/// The bits per symbol that the best model without context needs.
double entropy(data::Bytes part) {
  std::array<int64_t, 256> counts{};
  for (int64_t i = 0; i < part.size; ++i) ++counts[part.data[i]];
  double bits = 0;
  for (const int64_t n : counts) {
    if (n == 0) continue;
    const double p = static_cast<double>(n) / static_cast<double>(part.size);
    bits -= p * std::log2(p);
  }
  return bits;
}

/// The start of the text, with dots for unprintable bytes.
std::string preview(const data::Text& text) {
  std::string out;
  const data::Bytes part = text.train();
  for (int64_t i = 0; i < part.size && i < 60; ++i) {
    const int byte = text.codec().byte_of(part.data[i]);
    out += byte >= 32 && byte < 127 ? static_cast<char>(byte) : '.';
  }
  return out;
}

void describe_images(const std::string& name, const std::string& path,
                     const Options& o) {
  if (!o.grid.empty()) prepare_output("--sheet", o.grid);
  const data::RawImages images = open_images(path, o.size, o.size, 0);
  base::Json j{{"name", name}, {"size", o.size}};
  std::vector<std::vector<std::string>> rows;
  ImageList shown;
  for (const char* split : {"train", "test"}) {
    const data::ImagePart part = images.split(split);
    const double bits =
        part.count > 0 ? entropy({part.data, part.count * part.size}) : 0;
    j["splits"][split] = {{"images", part.count}, {"entropy_bits", bits}};
    rows.push_back({split, std::to_string(part.count), number(bits)});
    for (int64_t i = 0; i < part.count && shown.size() < 64; ++i)
      shown.emplace_back(part[i], part[i] + part.size);
  }
  if (!o.grid.empty())
    io::write_png(o.grid, image_grid(shown, o.size, o.size,
                                     std::min<int64_t>(
                                         8, static_cast<int64_t>(shown.size())),
                                     4));
  if (o.json) {
    std::cout << j.dump(2) << '\n';
    return;
  }
  std::cout << name << ": images at " << o.size << "x" << o.size << "\n\n"
            << table({"split", "images", "entropy_bits"}, rows, 1)
            << kEntropyNote;
}

void describe(const std::string& name, const std::string& path,
              const Options& o, const data::Dataset* known) {
  if (is_directory(path)) return describe_images(name, path, o);
  if (!o.grid.empty())
    throw UsageError("data: --sheet is for images, but " + name + " is text");
  const data::Text text = open_text(path, o.mode);
  int64_t all = 0;
  base::Json j{{"name", name},
               {"mode", o.mode},
               {"vocabulary", text.codec().vocabulary()}};
  std::vector<std::vector<std::string>> rows;
  for (const char* split : {"train", "valid", "test"}) {
    const data::Bytes part = text.split(split);
    all += part.size;
    const double bits = part.size > 0 ? entropy(part) : 0;
    j["splits"][split] = {{"symbols", part.size}, {"entropy_bits", bits}};
    rows.push_back({split, std::to_string(part.size), number(bits)});
  }
  j["symbols"] = all;
  j["checked"] = known != nullptr;
  if (o.json) {
    std::cout << j.dump(2) << '\n';
    return;
  }
  std::cout << name << ": " << base::counted(all, "symbol") << " (" << o.mode
            << "), vocabulary " << text.codec().vocabulary()
            << (known ? "; size and SHA-256 match " + known->name : "") << "\n"
            << preview(text) << "\n\n"
            << table({"split", "symbols", "entropy_bits"}, rows, 1)
            << kEntropyNote;
}

void run(const Options& o) {
  if (o.what.empty()) {
    if (o.download)
      throw UsageError("data: --download: expected a data set, got none");
    return list(o.json);
  }
  if (o.what == "built-in-images" || o.what == "built-in-pictures")  // old name
    return describe_images("built-in-images", "", o);
  if (o.what == "built-in") return describe("built-in", "", o, nullptr);
  if (o.what == "-") return describe("the standard input", "-", o, nullptr);
  const data::Dataset* known = data::find_dataset(o.what);
  if (o.download) {
    if (!known) {
      std::string names;
      for (const auto& set : data::datasets())
        names += (names.empty() ? "" : ", ") + set.name;
      throw UsageError("data: --download: expected one of " + names +
                       ", got '" + o.what + "'");
    }
    data::Dataset set = *known;
    if (!o.from.empty()) set.address = o.from;
    const std::string path = data::fetch(set, o.out, !isatty(STDERR_FILENO));
    return describe(path, path, o, known);
  }
  const std::string path =
      known && o.out != "." ? o.out + "/" + o.what : o.what;
  if (known && access(path.c_str(), F_OK) != 0) {
    throw data::DataError(path + ": does not exist; `aft data " + known->name +
                          " --download` downloads it from " + known->address);
  }
  if (known && !known->archive) data::check_file(*known, path);
  describe(path, path, o, known);
}

}  // namespace

void add_data(CLI::App& app) {
  auto o = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "data", "Describe text or images; download public data sets");
  command->add_option(
      "what", o->what,
      "A text file (-: the standard input), a folder of images, a known data "
      "set, built-in or "
      "built-in-images; default: list the known data sets");
  command->add_flag("--download", o->download,
                    "Download a known data set with curl and verify it");
  add_text(*command, "--out", o->out, "DIR",
           "Directory of known data sets; default: the current one");
  add_text(*command, "--from", o->from, "URL",
           "Download from this address instead, for example a mirror")
      ->needs("--download");
  add_text(*command, "--mode", o->mode, "NAME",
           "Text: bytes (default), txl or eos")
      ->check(one_of({"bytes", "txl", "eos"}));
  add_count(*command, "--size", o->size,
            "Images: height and width to scale to; default: 32", 1, 4096);
  add_text(*command, "--sheet", o->grid, "FILE",
           "Images: write the first 64 images as an image grid; a PNG file")
      ->check(ends_in(".png"));
  command->add_flag("--json", o->json, "Print JSON");
  command->footer(
      "Modes: bytes: symbols are bytes; txl: without newlines, symbols are "
      "numbered by frequency, as in Transformer-XL's\n"
      "preparation of enwik8; eos: the same with newlines. The splits train, "
      "valid and test are 90 %, 5 % and 5 %.\n"
      "\n"
      "Examples:\n"
      "  aft data\n"
      "  aft data enwik8 --download\n"
      "  aft data book.txt --mode txl\n"
      "  aft data holiday/ --size 16 --sheet holiday.png");
  command->callback([o] { run(*o); });
}

}  // namespace aft::cli
