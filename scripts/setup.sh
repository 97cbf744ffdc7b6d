#!/usr/bin/env bash
# Installs the Debian packages that the project needs and this machine lacks. Where all are there it does nothing, and
# needs neither root nor network. `setup.sh fuzz`, `setup.sh valgrind`: also what `make fuzz`, `make valgrind` need.
set -euo pipefail

packages=(
  g++ cmake make                              # build
  libtorch-dev python3-torch python3-numpy    # tensors; the Python package
  libhwy-dev                                  # SIMD
  libgloo-dev                                 # several processes
  libcli11-dev nlohmann-json3-dev             # command line, JSON
  libpng-dev libjpeg-dev                      # pictures
  libgtest-dev                                # tests
  chromium chromium-driver python3-selenium   # tests of pages, in a browser
  curl unzip                                  # aft data --download
  iproute2                                    # tests of two machines, as network namespaces
  clang-format clang-tidy                     # make format, make lint
)
case ${1:-} in
  '') ;;
  fuzz) packages+=(clang libclang-rt-14-dev) ;;
  valgrind) packages+=(valgrind) ;;
  *) echo "usage: $0 [fuzz|valgrind]" >&2; exit 2 ;;
esac

installed() { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

if ! command -v dpkg-query >/dev/null; then
  echo "setup: no dpkg here, so nothing is checked or installed. Needed (Debian names): ${packages[*]}"
  exit 0
fi

missing=()
for p in "${packages[@]}"; do
  installed "$p" || missing+=("$p")
done
# LibTorch takes any BLAS. The OpenMP build of OpenBLAS shares LibTorch's threads and is the fastest; another OpenBLAS that
# is already there will do.
installed libopenblas0-openmp || installed libopenblas0-pthread || installed libopenblas0-serial ||
  missing+=(libopenblas0-openmp)

if [ ${#missing[@]} -gt 0 ]; then
  echo "setup: missing: ${missing[*]}"
  if [ "$(id -u)" = 0 ]; then
    root=(env)
  elif command -v sudo >/dev/null; then
    root=(sudo env)
  else
    echo "setup: neither root nor sudo here. As root, run:" >&2
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
