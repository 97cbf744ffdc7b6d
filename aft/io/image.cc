// PNG and JPEG with libpng and libjpeg, which report errors by longjmp. A
// longjmp skips destructors, so functions here that call setjmp, and all
// callbacks, own no objects with a destructor; their callers do.
#include "aft/io/image.h"

// clang-format off
#include <cstdio>  // must precede jpeglib.h
#include <jpeglib.h>
// clang-format on
#include <jerror.h>
#include <png.h>

#include <algorithm>
#include <csetjmp>
#include <cstring>

#include "aft/base/escape.h"
#include "aft/io/file.h"
#include "aft/io/safetensors.h"

namespace aft::io {
namespace {

constexpr size_t kMaxBytes = 1'000'000'000;
// A hostile file can demand a pass over all pixels for every 10 bytes. Real
// files have about ten scans.
constexpr int kMaxScans = 200;

[[noreturn]] void fail(const std::string& name, const std::string& what) {
  throw Error(name + ": " + what);
}

void check_bytes(const std::string& name, uint64_t size) {
  if (size <= kMaxBytes) return;
  fail(name, "must have at most " + std::to_string(kMaxBytes) + " bytes, got " +
                 std::to_string(size));
}

// ---- Errors of the libraries ------------------------------------------------

// The jump target for errors of a library, and its message.
struct Escape {
  std::jmp_buf where;
  char message[JMSG_LENGTH_MAX] = "";
};

[[noreturn]] void leave(Escape* escape, const char* message) {
  std::snprintf(escape->message, sizeof(escape->message), "%s", message);
  std::longjmp(escape->where, 1);
}

[[noreturn]] void leave_png(png_structp png, png_const_charp message) {
  leave(static_cast<Escape*>(png_get_error_ptr(png)), message);
}

[[noreturn]] void leave_jpeg(j_common_ptr jpeg) {
  char message[JMSG_LENGTH_MAX];
  jpeg->err->format_message(jpeg, message);
  leave(static_cast<Escape*>(jpeg->client_data), message);
}

// ---- PNG --------------------------------------------------------------------

// Readers have the same interface: open() reads the size; can_hold() returns
// whether a file of `size` bytes can have that many pixels; read() writes
// height * width * channels bytes; blend() combines a channel c with the fourth
// channel. If one of them returns false, message() is the reason and the reader
// is unusable.
class PngReader {
 public:
  static constexpr char kFormat[] = "PNG";

  PngReader(const uint8_t* data, size_t size) : at_(data), left_(size) {}
  ~PngReader() { png_destroy_read_struct(&png_, &info_, nullptr); }
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;

  bool open() {
    if (setjmp(escape_.where)) return false;
    // Warnings are errors too, such as a wrong checksum or an ignored tRNS.
    png_ = png_create_read_struct(PNG_LIBPNG_VER_STRING, &escape_, leave_png,
                                  leave_png);
    if (png_) info_ = png_create_info_struct(png_);
    if (!info_) leave(&escape_, "out of memory");
    png_set_read_fn(png_, this, take);
    png_set_user_limits(png_, PNG_UINT_31_MAX,
                        PNG_UINT_31_MAX);  // checked later
    // Skip text, profiles, gamma and everything else that does not affect pixel
    // values, without decompressing it or warning about it. tRNS is kept.
    png_set_keep_unknown_chunks(png_, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);
    png_read_info(png_, info_);
    height = png_get_image_height(png_, info_);
    width = png_get_image_width(png_, info_);
    const bool alpha =
        (png_get_color_type(png_, info_) & PNG_COLOR_MASK_ALPHA) ||
        png_get_valid(png_, info_, PNG_INFO_tRNS);
    channels = alpha ? 4 : 3;
    return true;
  }

  // Deflate expands 2 bits to at most 258 bytes, so a byte to 1032. Each row
  // also has a filter byte; interlacing only adds rows.
  bool can_hold(size_t size) const {
    const uint64_t row = 1 + png_get_rowbytes(png_, info_);
    return static_cast<uint64_t>(height) * row <= 1032 * uint64_t{size};
  }

  bool read(uint8_t* out) {
    if (setjmp(escape_.where)) return false;
    uint8_t* rows = out;
    int64_t stride = width * channels;
    const bool palette =
        png_get_color_type(png_, info_) == PNG_COLOR_TYPE_PALETTE;
    if (palette) {  // first read the indices into the last bytes of out
      png_set_packing(png_);
      rows += height * (stride - width);
      stride = width;
    } else {
      png_set_expand(png_);
      png_set_scale_16(png_);
      png_set_gray_to_rgb(png_);
    }
    const int passes = png_set_interlace_handling(png_);
    png_read_update_info(png_, info_);
    if (png_get_rowbytes(png_, info_) != static_cast<size_t>(stride)) {
      leave(&escape_, "rows of an unexpected length");
    }
    for (int pass = 0; pass < passes; ++pass) {
      for (int64_t y = 0; y < height; ++y) {
        png_read_row(png_, rows + y * stride, nullptr);
      }
    }
    png_read_end(png_, nullptr);
    if (palette) look_up(rows, out);
    return true;
  }

  int blend(int c, int a) const {
    return (c * a + 255 * (255 - a) + 127) / 255;
  }
  const char* message() const { return escape_.message; }

  int64_t height = 0, width = 0, channels = 0;

 private:
  // libpng can do this too, but it makes pixels outside the palette black.
  // `out` never overtakes `index`.
  void look_up(const uint8_t* index, uint8_t* out) {
    png_colorp colors = nullptr;
    png_bytep alphas = nullptr;
    int num_colors = 0, num_alphas = 0;
    png_get_PLTE(png_, info_, &colors, &num_colors);
    png_get_tRNS(png_, info_, &alphas, &num_alphas, nullptr);
    for (int64_t i = 0; i < height * width; ++i) {
      const int k = *index++;
      if (k >= num_colors) leave(&escape_, "a pixel outside the palette");
      *out++ = colors[k].red;
      *out++ = colors[k].green;
      *out++ = colors[k].blue;
      if (channels == 4) *out++ = k < num_alphas ? alphas[k] : 255;
    }
  }

  static void take(png_structp png, png_bytep out, size_t size) {
    auto* self = static_cast<PngReader*>(png_get_io_ptr(png));
    if (size > self->left_) leave(&self->escape_, "the file ends early");
    std::memcpy(out, self->at_, size);
    self->at_ += size;
    self->left_ -= size;
  }

  const uint8_t* at_;
  size_t left_;
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  Escape escape_;
};

class PngWriter {
 public:
  PngWriter() = default;
  ~PngWriter() { png_destroy_write_struct(&png_, &info_); }
  PngWriter(const PngWriter&) = delete;
  PngWriter& operator=(const PngWriter&) = delete;

  bool write(const Image& image) {
    if (setjmp(escape_.where)) return false;
    png_ = png_create_write_struct(PNG_LIBPNG_VER_STRING, &escape_, leave_png,
                                   leave_png);
    if (png_) info_ = png_create_info_struct(png_);
    if (!info_) leave(&escape_, "out of memory");
    png_set_write_fn(png_, this, give, nullptr);
    png_set_user_limits(png_, PNG_UINT_31_MAX, PNG_UINT_31_MAX);
    png_set_compression_level(png_, 6);
    png_set_filter(png_, PNG_FILTER_TYPE_BASE, PNG_ALL_FILTERS);
    png_set_IHDR(png_, info_, static_cast<png_uint_32>(image.width),
                 static_cast<png_uint_32>(image.height), 8, PNG_COLOR_TYPE_RGB,
                 PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT,
                 PNG_FILTER_TYPE_DEFAULT);
    png_write_info(png_, info_);
    for (int64_t y = 0; y < image.height; ++y) {
      png_write_row(png_, image.rgb.data() + y * image.width * 3);
    }
    png_write_end(png_, nullptr);
    return true;
  }

  const char* message() const { return escape_.message; }
  std::string bytes;

 private:
  static void give(png_structp png, png_bytep data, size_t size) {
    auto* self = static_cast<PngWriter*>(png_get_io_ptr(png));
    bool good = true;
    try {
      self->bytes.append(reinterpret_cast<const char*>(data), size);
    } catch (...) {  // exceptions must not pass through C code
      good = false;
    }
    if (!good) leave(&self->escape_, "out of memory");
  }

  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  Escape escape_;
};

// ---- JPEG -------------------------------------------------------------------

class JpegReader {
 public:
  static constexpr char kFormat[] = "JPEG";

  JpegReader(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  ~JpegReader() { jpeg_destroy_decompress(&jpeg_); }
  JpegReader(const JpegReader&) = delete;
  JpegReader& operator=(const JpegReader&) = delete;

  bool open() {
    jpeg_.err = jpeg_std_error(&errors_);
    jpeg_.client_data = &escape_;
    errors_.error_exit = leave_jpeg;
    errors_.emit_message = warn;
    if (setjmp(escape_.where)) return false;
    jpeg_create_decompress(&jpeg_);
    progress_.progress_monitor = limit_scans;
    jpeg_.progress = &progress_;
    jpeg_mem_src(&jpeg_, data_, static_cast<unsigned long>(size_));
    jpeg_read_header(&jpeg_, TRUE);
    height = jpeg_.image_height;
    width = jpeg_.image_width;
    const bool ink = jpeg_.num_components == 4;
    channels = ink ? 4 : 3;
    jpeg_.out_color_space = ink ? JCS_CMYK : JCS_RGB;
    return true;
  }

  // With Huffman coding each 8 x 8 block has at least one bit, the first of its
  // DC. With two channels of 4 x 1 and 1 x 4 subsampling, each has one block
  // per 256 pixels, so there are at most 1024 pixels per byte. Arithmetic
  // coding has no such bound; four times as much accepts all files except large
  // images of a single colour.
  bool can_hold(size_t size) const {
    return static_cast<uint64_t>(height * width) <= 4096 * uint64_t{size};
  }

  bool read(uint8_t* out) {
    if (setjmp(escape_.where)) return false;
    jpeg_start_decompress(&jpeg_);
    // The first scan of a channel provides its table. Without a scan libjpeg
    // would silently return a grey channel.
    for (int c = 0; c < jpeg_.num_components; ++c) {
      if (!jpeg_.comp_info[c].quant_table)
        leave(&escape_, "a channel is missing");
    }
    while (jpeg_.output_scanline < jpeg_.output_height) {
      JSAMPROW row = out + jpeg_.output_scanline * width * channels;
      jpeg_read_scanlines(&jpeg_, &row, 1);
    }
    jpeg_finish_decompress(&jpeg_);
    return true;
  }

  int blend(int c, int k) const {
    if (!jpeg_.saw_Adobe_marker) c = 255 - c, k = 255 - k;
    return (c * k + 127) / 255;
  }
  const char* message() const { return escape_.message; }

  int64_t height = 0, width = 0, channels = 0;

 private:
  static void warn(j_common_ptr jpeg, int level) {
    // Negative levels are warnings, such as "corrupt data" or "premature end".
    // Two of them are harmless: unknown JFIF versions, which old cameras write,
    // and stray bytes before a marker, which some ImageNet files have.
    const int code = jpeg->err->msg_code;
    if (level < 0 && code != JWRN_JFIF_MAJOR && code != JWRN_EXTRANEOUS_DATA)
      leave_jpeg(jpeg);
  }

  static void limit_scans(j_common_ptr jpeg) {
    const auto* self = reinterpret_cast<j_decompress_ptr>(jpeg);
    if (self->input_scan_number <= kMaxScans) return;
    leave(static_cast<Escape*>(jpeg->client_data), "too many scans");
  }

  const uint8_t* data_;
  size_t size_;
  jpeg_decompress_struct jpeg_{};
  jpeg_error_mgr errors_{};
  jpeg_progress_mgr progress_{};
  Escape escape_;
};

// ---- Both -------------------------------------------------------------------

template <typename Reader>
Image decode(const uint8_t* data, size_t size, const std::string& name) {
  Reader reader(data, size);
  const auto refuse = [&] {
    fail(name, std::string("must be a valid ") + Reader::kFormat +
                   ", got: " + reader.message());
  };
  if (!reader.open()) refuse();
  internal::check_size(name, reader.height, reader.width);
  if (!reader.can_hold(size))
    fail(name, "must have enough bytes for its " +
                   std::to_string(reader.height) + " x " +
                   std::to_string(reader.width) + " pixels, got " +
                   std::to_string(size));
  const int64_t pixels = reader.height * reader.width;
  Image image{reader.height, reader.width,
              std::vector<uint8_t>(pixels * reader.channels)};
  if (!reader.read(image.rgb.data())) refuse();
  if (reader.channels == 4) {
    const uint8_t* from = image.rgb.data();
    uint8_t* to = image.rgb.data();  // never ahead of from
    for (int64_t i = 0; i < pixels; ++i, from += 4) {
      const int a = from[3];
      for (int c = 0; c < 3; ++c) {
        *to++ = static_cast<uint8_t>(reader.blend(from[c], a));
      }
    }
    image.rgb.resize(pixels * 3);
    image.rgb.shrink_to_fit();
  }
  return image;
}

// The first bytes, for error messages.
std::string beginning(const uint8_t* data, size_t size) {
  return base::printable({data, data + std::min<size_t>(size, 8)});
}

}  // namespace

Image decode_image(const uint8_t* data, size_t size, const std::string& name) {
  if (size == 0) fail(name, "must be a PNG or JPEG, got an empty file");
  check_bytes(name, size);
  const auto begins = [&](const char* magic, size_t n) {
    return size >= n && std::memcmp(data, magic, n) == 0;
  };
  if (begins("\x89PNG\r\n\x1a\n", 8))
    return decode<PngReader>(data, size, name);
  if (begins("\xff\xd8\xff", 3)) return decode<JpegReader>(data, size, name);
  fail(name, "must be a PNG or JPEG, got a file that begins with \"" +
                 beginning(data, size) + "\"");
}

Image read_image(const std::string& path) {
  const std::string bytes = read_file(path, kMaxBytes);
  return decode_image(reinterpret_cast<const uint8_t*>(bytes.data()),
                      bytes.size(), path);
}

std::string encode_png(const Image& image, const std::string& name) {
  internal::check_image(name, image);
  PngWriter writer;
  if (!writer.write(image)) {
    fail(name, std::string("cannot be encoded as PNG: ") + writer.message());
  }
  return std::move(writer.bytes);
}

void write_png(const std::string& path, const Image& image) {
  write_file(path, encode_png(image, path));
}

}  // namespace aft::io
