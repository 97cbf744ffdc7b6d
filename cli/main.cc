// The program `aft`.
#include "cli/app.h"
#include "cli/program.h"

int main(int argc, char** argv) {
  return aft::cli::run_program(*aft::cli::make_app(), argc, argv);
}
