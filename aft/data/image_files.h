// Where pictures come from: batches of CIFAR-10, or folders of PNG and JPEG
// files; and what sets of pictures share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

namespace aft::tasks {

enum class PictureSource { kBuiltIn, kCifar, kFolder };

/// What a path holds; "": built in. A directory with any batch of CIFAR-10
/// holds CIFAR-10. Throws DataError for a path that is no directory.
PictureSource picture_source(const std::string& path);

// ---- Folders ----------------------------------------------------------------

/// All pictures below a folder, by their names (.png, .jpg, .jpeg), with those
/// in folders below it, in the order of their paths. hidden: also what begins
/// with a dot. No file is opened. Throws DataError.
std::vector<std::string> list_pictures(const std::string& folder, bool hidden);

/// The first of `names` that is a folder beside path/train; "" where one of
/// the two is missing.
std::string test_folder(const std::string& path,
                        std::initializer_list<const char*> names);

// ---- Sets of pictures -------------------------------------------------------

/// Throw DataError, which names what must be changed.
void check_side(const std::string& name, int64_t side);
void check_valid(int64_t valid);

/// How many of `train` pictures are for validation if `valid` are wanted.
int64_t valid_count(int64_t valid, int64_t train);

/// Throws DataError unless there is a picture or more of both, which training
/// needs; path "": built in.
void check_parts(const std::string& path, int64_t train, int64_t valid);

/// 0, 1, 2 for train, valid, test. Throws DataError.
int split_number(const std::string& name);

/// A hash of these bytes and of what came before them.
uint64_t hash_bytes(uint64_t before, const void* data, size_t size);

}  // namespace aft::tasks
