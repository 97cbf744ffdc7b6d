// safetensors files, torch-free: u64 little-endian header length, JSON header
// {name: {dtype, shape, data_offsets}} with an optional string-to-string
// "__metadata__", then the tensors, row-major little-endian, without gaps. The
// reader trusts nothing in the file; the writer replaces a file in one step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace aft::io {

/// Every failure of this room. The message names the file, the tensor if there
/// is one, what was expected and what came.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Element types, in the order in which the reference implementation ranks them
/// (size never falls along the list).
enum class DType {
  kBool,
  kU8,
  kI8,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kF64,
  kI64,
  kU64
};

/// Bytes of one element. Throws Error for a value outside the enum.
size_t dtype_size(DType dtype);

/// The name in the file: "BOOL", "U8", ..., "F32". Throws Error for a value
/// outside the enum.
const char* dtype_name(DType dtype);

/// A tensor that lies in someone else's memory; row-major, little-endian. Shape
/// [] is a scalar (one element); a size of 0 makes an empty tensor, whose data
/// must not be read and may be null. data carries NO promise of alignment:
/// files of other writers may put a double at an odd address. Copy with memcpy,
/// or check the address before a cast.
struct TensorView {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  const void* data = nullptr;
  size_t bytes = 0;  ///< product of shape * dtype_size(dtype)
};

/// A safetensors file, read-only and memory mapped: opening costs the header
/// only, pages come in as they are read. Views point into the mapping and live
/// as long as this object or the one it was moved to. Const members may be
/// called from many threads. As with every mapping, the file must not be
/// truncated in place meanwhile; replacing it by rename, as save_safetensors
/// does, is fine.
class SafeTensors {
 public:
  /// Maps and checks the whole header: after this, every view is in bounds and
  /// holds exactly shape * dtype bytes. Throws Error. Limits: header 100 MB (as
  /// the reference implementation), 64 dimensions a tensor.
  static SafeTensors open(const std::string& path);

  SafeTensors(SafeTensors&&) = default;
  SafeTensors& operator=(SafeTensors&&) = default;
  SafeTensors(const SafeTensors&) = delete;
  SafeTensors& operator=(const SafeTensors&) = delete;

  /// All tensors, in the order of their data in the file.
  const std::vector<TensorView>& tensors() const { return tensors_; }

  /// The tensor of that name, or nullptr. O(log n).
  const TensorView* find(const std::string& name) const;

  /// The tensor of that name. Throws an Error that names the file and the
  /// nearest name in it.
  const TensorView& at(const std::string& name) const;

  /// "__metadata__" of the file; empty if there is none.
  const std::map<std::string, std::string>& metadata() const {
    return metadata_;
  }

 private:
  SafeTensors() = default;

  std::string path_;
  std::shared_ptr<const void> map_;  // never shared: for its own deleter
  std::vector<TensorView> tensors_;
  std::vector<size_t> by_name_;  // indices into tensors_, sorted by name
  std::map<std::string, std::string> metadata_;
};

/// Writes tensors (in any order) and metadata to path, laid out as the Python
/// package does: by dtype descending, then by name, header padded with spaces
/// to a multiple of 8, so that every tensor is aligned to its element.
///
/// Atomic: a temporary file in the same directory, fsync, rename, fsync of the
/// directory. On failure throws an Error with path and errno text, removes the
/// temporary file, and the old file stays as it was (one exception: when the
/// last fsync, that of the directory, fails, the new file is in place already;
/// the message says so). The views may point into a SafeTensors of the same
/// path. The mode of a replaced file is kept; a symbolic link at path is itself
/// replaced; anything else than a regular file at path is refused.
void save_safetensors(const std::string& path,
                      const std::vector<TensorView>& tensors,
                      const std::map<std::string, std::string>& metadata = {});

}  // namespace aft::io
