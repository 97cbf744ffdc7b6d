#!/usr/bin/env bash
# Installs the Debian packages that the project needs and this machine lacks. If none is missing, it does nothing and needs
# neither root nor network. The argument says what the packages are for:
#   setup.sh program    building the program `aft`
#   setup.sh            that, and every test, formatting and linting
#   setup.sh fuzz       that, and `make fuzz`
#   setup.sh valgrind   that, and `make valgrind`
set -euo pipefail

packages=(
  g++ cmake make                              # build
  libtorch-dev libhwy-dev libgloo-dev         # tensors, SIMD, distributed training
  libcli11-dev nlohmann-json3-dev             # command line, JSON
  libpng-dev libjpeg-dev                      # images
)
tests=(
  libgtest-dev                                # C++ tests
  python3-torch python3-numpy                 # the Python package and its tests
  chromium chromium-driver python3-selenium   # tests of HTML pages in a browser
  curl unzip                                  # aft data --download
  iproute2                                    # tests of several machines, as network namespaces
  clang-format clang-tidy                     # make format, make lint
)
case ${1:-} in
  program) tests=() ;;
  '') ;;
  fuzz) tests+=(clang libclang-rt-14-dev) ;;
  valgrind) tests+=(valgrind) ;;
  *) echo "usage: $0 [program|fuzz|valgrind]" >&2; exit 2 ;;
esac
packages+=("${tests[@]}")

installed() { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

if ! command -v dpkg-query >/dev/null; then
  echo "setup: dpkg was not found, so nothing is checked or installed. The project needs these Debian packages: ${packages[*]}"
  exit 0
fi

missing=()
for p in "${packages[@]}"; do
  installed "$p" || missing+=("$p")
done
# LibTorch works with any BLAS. The OpenMP build of OpenBLAS shares LibTorch's threads and is the fastest; another installed
# OpenBLAS is accepted.
installed libopenblas0-openmp || installed libopenblas0-pthread || installed libopenblas0-serial ||
  missing+=(libopenblas0-openmp)

if [ ${#missing[@]} -gt 0 ]; then
  echo "setup: installing ${missing[*]}"
  if [ "$(id -u)" = 0 ]; then
    root=(env)
  elif command -v sudo >/dev/null; then
    root=(sudo env)
  else
    echo "setup: installing packages needs root or sudo. As root, run:" >&2
    echo "  apt-get update && apt-get install -y --no-install-recommends ${missing[*]}" >&2
    exit 1
  fi
  "${root[@]}" DEBIAN_FRONTEND=noninteractive apt-get update
  "${root[@]}" DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}"
fi

blas=$(readlink -f "/usr/lib/$(uname -m)-linux-gnu/libblas.so.3" 2>/dev/null || true)
case $blas in
  '' | */openblas-openmp/*) ;;
  *)
    echo "setup: BLAS is $blas; LibTorch is faster on the OpenMP build of OpenBLAS (package libopenblas0-openmp;" \
      "choose it with: update-alternatives --config libblas.so.3-$(uname -m)-linux-gnu)"
    ;;
esac
