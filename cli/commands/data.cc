// `aft data`: what a text or a set of pictures is before one trains on it;
// public ones from their home.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iostream>
#include <memory>

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
  std::string what, mode = "bytes", out = ".", from, sheet;
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
      << "\n`aft data NAME --download` gets one; `aft data FILE` "
         "describes any file, `aft data DIR` any folder of pictures; `aft "
         "data built-in` and `aft data built-in-pictures`\nwhat the "
         "program has itself\n";
}

/// Bits a symbol that a model without any context would need.
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

/// Control characters and the like as dots.
std::string preview(const data::Text& text) {
  std::string out;
  const data::Bytes part = text.train();
  for (int64_t i = 0; i < part.size && i < 60; ++i) {
    const int byte = text.codec().byte_of(part.data[i]);
    out += byte >= 32 && byte < 127 ? static_cast<char>(byte) : '.';
  }
  return out;
}

void describe_pictures(const std::string& name, const std::string& path,
                       const Options& o) {
  const data::RawImages pictures = open_images(path, o.size, o.size, 0);
  base::Json j{{"name", name}, {"size", o.size}};
  std::vector<std::vector<std::string>> rows;
  ImageList shown;
  for (const char* split : {"train", "test"}) {
    const data::ImagePart part = pictures.split(split);
    const double bits =
        part.count > 0 ? entropy({part.data, part.count * part.size}) : 0;
    j["splits"][split] = {{"images", part.count}, {"entropy_bits", bits}};
    rows.push_back({split, std::to_string(part.count), number(bits)});
    for (int64_t i = 0; i < part.count && shown.size() < 64; ++i)
      shown.emplace_back(part[i], part[i] + part.size);
  }
  if (!o.sheet.empty())
    io::write_png(
        o.sheet,
        image_grid(shown, o.size, o.size,
                   std::min<int64_t>(8, static_cast<int64_t>(shown.size())),
                   4));
  if (o.json) {
    std::cout << j.dump(2) << '\n';
    return;
  }
  std::cout << name << ": pictures at " << o.size << "x" << o.size << "\n\n"
            << table({"split", "images", "entropy_bits"}, rows, 1)
            << "\nentropy_bits: what a model without any context would "
               "reach\n";
}

void describe(const std::string& name, const std::string& path,
              const Options& o, const data::Dataset* known) {
  if (is_directory(path)) return describe_pictures(name, path, o);
  if (!o.sheet.empty())
    throw UsageError("data: --sheet is for pictures, and " + name +
                     " is a text");
  const data::Text text = data::Text::open(path, o.mode);
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
  std::cout << name << ": " << all << " symbols (" << o.mode << "), vocabulary "
            << text.codec().vocabulary()
            << (known ? "; size and SHA-256 are those of " + known->name : "")
            << "\n"
            << preview(text) << "\n\n"
            << table({"split", "symbols", "entropy_bits"}, rows, 1)
            << "\nentropy_bits: what a model without any context would reach\n";
}

void run(const Options& o) {
  if (o.what.empty()) {
    if (o.download)
      throw UsageError("data: expected what to download, got nothing");
    return list(o.json);
  }
  if (o.what == "built-in-pictures") return describe_pictures(o.what, "", o);
  if (o.what == "built-in") return describe("built-in", "", o, nullptr);
  const data::Dataset* known = data::find_dataset(o.what);
  if (o.download) {
    if (!known) {
      std::string names;
      for (const auto& set : data::datasets())
        names += (names.empty() ? "" : ", ") + set.name;
      throw UsageError("data: --download knows " + names + ", got '" + o.what +
                       "'");
    }
    data::Dataset set = *known;
    if (!o.from.empty()) set.address = o.from;
    const std::string path = data::fetch(set, o.out, !isatty(STDERR_FILENO));
    return describe(path, path, o, known);
  }
  const std::string path =
      known && o.out != "." ? o.out + "/" + o.what : o.what;
  if (known && access(path.c_str(), F_OK) != 0) {
    throw data::DataError(path + ": is not here; `aft data " + known->name +
                          " --download` gets it from " + known->address);
  }
  if (known && !known->archive) data::check_file(*known, path);
  describe(path, path, o, known);
}

}  // namespace

void add_data(CLI::App& app) {
  auto o = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "data", "Check and describe a text or pictures; download public ones");
  command->add_option(
      "what", o->what,
      "A text, a folder of pictures, a known data set, built-in "
      "or built-in-pictures; default: list the known ones");
  command->add_flag("--download", o->download,
                    "Get a known data set with curl, and check it");
  command
      ->add_option("--out", o->out,
                   "Directory of known data sets; default: here")
      ->type_name("DIR");
  command
      ->add_option("--from", o->from,
                   "Download from this address instead, for example a mirror")
      ->needs("--download")
      ->type_name("URL");
  command->add_option("--mode", o->mode, "Text: bytes (default), txl or eos")
      ->type_name("NAME");
  command
      ->add_option("--size", o->size,
                   "Images: height and width to bring them to; default: 32")
      ->check(CLI::Range(int64_t{1}, int64_t{4096}).description(""))
      ->type_name("N");
  command
      ->add_option("--sheet", o->sheet,
                   "Images: show the first 64 on a sheet (PNG)")
      ->type_name("FILE");
  command->add_flag("--json", o->json, "JSON instead of a table");
  command->footer(
      "Modes: bytes, every byte is itself; txl, newlines dropped and symbols "
      "numbered by frequency, as Transformer-XL\n"
      "prepares enwik8; eos, the same with newlines. Parts: 90, 5 and 5 of "
      "100.\n"
      "\n"
      "Examples:\n"
      "  aft data\n"
      "  aft data enwik8 --download\n"
      "  aft data book.txt --mode txl\n"
      "  aft data holiday/ --size 16 --sheet holiday.png");
  command->callback([o] { run(*o); });
}

}  // namespace aft::cli
