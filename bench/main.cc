// The program `aft-bench`.
#include "bench/bench.h"

int main(int argc, char** argv) {
  return aft::cli::run_program(*aft::bench::make_app(), argc, argv);
}
