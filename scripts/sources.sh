# Sourced by format.sh and lint.sh, from the top of the project: where C++ lives.
source_dirs=(aft cli tests bench examples)
torch_free_dirs=(aft/kernels aft/io aft/runtime)

# cpp_files DIR...: the .cc and .h files below those directories that exist.
cpp_files() {
  local dir
  for dir in "$@"; do
    [ -d "$dir" ] && find "$dir" -name '*.cc' -o -name '*.h'
  done | sort
}
