// Reads and writes safetensors files without torch. A file consists of the
// header length (u64, little-endian), a JSON header {name: {dtype, shape,
// data_offsets}} with an optional string-to-string "__metadata__", and the
// tensors, row-major and little-endian, without gaps. The reader validates
// everything in the file; the writer replaces files atomically.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "aft/base/error.h"

namespace aft::io {

using base::Error;

/// Element types in the order of the reference implementation, which never
/// decreases in size.
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

/// Returns the size of one element in bytes. Throws Error for a value outside
/// the enum.
size_t dtype_size(DType dtype);

/// Returns the name used in the file: "BOOL", "U8", ..., "F32". Throws Error
/// for a value outside the enum.
const char* dtype_name(DType dtype);

/// A non-owning view of a tensor, row-major and little-endian. Shape [] is a
/// scalar (one element). A size of 0 makes the tensor empty; its data may be
/// null and must not be read. data may be UNALIGNED: other writers can place a
/// double at an odd address. Copy with memcpy, or check the address before
/// casting.
struct TensorView {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  const void* data = nullptr;
  size_t bytes = 0;  ///< product of shape * dtype_size(dtype)
};

/// A memory-mapped, read-only safetensors file. Opening reads only the header;
/// data pages are loaded on access. Views point into the mapping and remain
/// valid as long as this object, or the object it was moved to. Const members
/// are thread-safe. The file must not be truncated in place while it is mapped;
/// replacing it by rename, as save_safetensors does, is safe.
class SafeTensors {
 public:
  /// Maps the file and validates the whole header: every view is then in bounds
  /// and holds exactly the bytes that its shape and dtype require. Throws
  /// Error. Limits: a header of 100 MB (as in the reference implementation) and
  /// 64 dimensions per tensor.
  static SafeTensors open(const std::string& path);

  SafeTensors(SafeTensors&&) = default;
  SafeTensors& operator=(SafeTensors&&) = default;
  SafeTensors(const SafeTensors&) = delete;
  SafeTensors& operator=(const SafeTensors&) = delete;

  /// All tensors, in the order of their data in the file.
  const std::vector<TensorView>& tensors() const { return tensors_; }

  /// Returns the tensor with this name, or nullptr. O(log n).
  const TensorView* find(const std::string& name) const;

  /// Returns the tensor with this name. Throws an Error that names the file and
  /// the closest existing names.
  const TensorView& at(const std::string& name) const;

  /// The "__metadata__" of the file; empty if it has none.
  const std::map<std::string, std::string>& metadata() const {
    return metadata_;
  }

 private:
  SafeTensors() = default;

  std::string path_;
  std::shared_ptr<const void> map_;  // not shared; holds the munmap deleter
  std::vector<TensorView> tensors_;
  std::vector<size_t> by_name_;  // indices into tensors_, sorted by name
  std::map<std::string, std::string> metadata_;
};

/// A checksum of names, types, shapes, values and metadata, as 16 hexadecimal
/// digits; the order of the tensors does not matter. Detects damage, not
/// forgery.
std::string checksum(const std::vector<TensorView>& tensors,
                     const std::map<std::string, std::string>& metadata);

/// Writes tensors (in any order) and metadata to `path` in the layout of the
/// Python package: sorted by descending dtype, then by name, with the header
/// padded with spaces to a multiple of 8. Every tensor is thus aligned to its
/// element size. The views may point into a SafeTensors of the same path.
///
/// Atomic: writes a temporary file in the same directory, syncs it, renames it
/// and syncs the directory. Keeps the mode of an existing file. Replaces a
/// symbolic link itself, not its target. Rejects an existing path that is not a
/// regular file.
///
/// On failure, removes the temporary file and throws an Error with the path and
/// the errno text. The old file is then unchanged, except if the final fsync of
/// the directory fails: the new file is then already in place, and the message
/// says so.
void save_safetensors(const std::string& path,
                      const std::vector<TensorView>& tensors,
                      const std::map<std::string, std::string>& metadata = {});

}  // namespace aft::io
