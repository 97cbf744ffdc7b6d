# Sourced by format.sh and lint.sh in the top directory: the directories with C++ files.
source_dirs=(aft cli tests bench)
torch_free_dirs=(aft/base aft/kernels aft/io)

# cpp_files DIR...: prints the .cc and .h files below those directories.
cpp_files() {
  local dir
  for dir in "$@"; do
    [ -d "$dir" ] && find "$dir" -name '*.cc' -o -name '*.h'
  done | sort
}
