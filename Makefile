# Two commands suffice on a fresh Debian 12: `make quickstart` and `make test`. The build itself is in CMakeLists.txt.
JOBS ?= $(shell scripts/jobs.sh)
MAKEFLAGS += --no-print-directory

# A fuzz target stops after this many seconds without new coverage.
FUZZ_SECONDS ?= 60

.PHONY: help setup build test quickstart bench format format-check lint kernels asan asan-kernels tsan valgrind fuzz clean

help:
	@echo 'make setup         install missing packages (needs root or sudo; does nothing if none is missing)'
	@echo 'make build         build everything in build/release'
	@echo 'make test          build everything and run every test'
	@echo 'make quickstart    build the program, train a small model on built-in stories for a minute, and generate text'
	@echo 'make bench         build everything and measure the operators (`aft-bench ops`)'
	@echo 'make kernels       build and test the torch-free modules only, in build/kernels (seconds)'
	@echo 'make asan          build and test everything with address and undefined-behaviour sanitizers and assertions'
	@echo 'make asan-kernels  the same for the torch-free modules only, in build/asan-kernels (minutes)'
	@echo 'make tsan          build and test the torch-free modules and the data workers with the thread sanitizer'
	@echo 'make valgrind      run the kernel tests under valgrind'
	@echo 'make fuzz          fuzz every file reader until FUZZ_SECONDS (60) pass without new coverage'
	@echo 'make format        format the sources with clang-format; make format-check only checks'
	@echo 'make lint          format-check, and clang-tidy and cppcheck (if installed) on the torch-free modules'
	@echo 'make clean         remove the build directories'

setup:
	@scripts/setup.sh

build: setup
	cmake --preset release
	cmake --build --preset release -j $(JOBS)

test: build
	ctest --preset release -j $(JOBS)

quickstart:
	@scripts/setup.sh program
	cmake --preset release -D AFT_TESTS=OFF
	cmake --build --preset release -j $(JOBS) --target aft_cli
	scripts/quickstart.sh build/release/aft

bench: build
	build/release/aft-bench ops

kernels asan asan-kernels tsan: setup
	cmake --preset $@
	cmake --build --preset $@ -j $(JOBS)
	ctest --preset $@ -j $(JOBS)

valgrind: setup
	@scripts/setup.sh valgrind
	cmake --preset kernels
	cmake --build --preset kernels -j $(JOBS)
	scripts/valgrind.sh build/kernels $(JOBS)

fuzz: build
	@scripts/setup.sh fuzz
	cmake --preset fuzz
	cmake --build --preset fuzz -j $(JOBS)
	scripts/fuzz.sh build/fuzz $(FUZZ_SECONDS)

format: setup
	scripts/format.sh

format-check: setup
	scripts/format.sh --check

lint: format-check
	cmake --preset kernels
	scripts/lint.sh build/kernels

clean:
	rm -rf build/release build/kernels build/asan build/asan-kernels build/tsan build/fuzz
