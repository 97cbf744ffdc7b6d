// Passes any lines as arguments, one per line, to `aft`, or to `aft-bench` if
// the first line is that name. Expects success, help or a UsageError (exit code
// 2). No command is run.
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "bench/bench.h"
#include "cli/app.h"
#include "cli/program.h"
#include "tests/fuzz/fuzz.h"

namespace {

/// Thrown instead of running a command.
struct Parsed {};

/// The innermost parsed command.
const CLI::App& leaf(const CLI::App& app) {
  return app.get_subcommands().empty() ? app : leaf(*app.get_subcommands()[0]);
}

/// Runs before the callbacks of the commands, which cannot be removed since
/// they own the variables that the options write to.
void stop_before_work(CLI::App& app) {
  app.parse_complete_callback([&app] {
    for (const CLI::App* command : leaf(app).get_subcommands(nullptr))
      if (!command->get_group().empty()) return;  // it only groups others
    throw Parsed();
  });
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr size_t kMost = 40;
  std::istringstream lines(std::string(data, data + size));
  std::vector<std::string> words;
  for (std::string line; words.size() < kMost && std::getline(lines, line);)
    words.push_back(line.substr(0, line.find('\0')));
  const bool bench = !words.empty() && words[0] == "aft-bench";
  if (!bench) words.insert(words.begin(), "aft");
  std::vector<const char*> argv;
  for (const std::string& word : words) argv.push_back(word.c_str());

  // Created once: hundreds of options take longer to create than to parse. Each
  // parse starts by clearing the results of the one before.
  static const std::unique_ptr<CLI::App> programs[] = {aft::cli::make_app(),
                                                       aft::bench::make_app()};
  CLI::App& app = *programs[bench];
  stop_before_work(app);
  std::ostringstream out;
  std::streambuf* const before = std::cout.rdbuf(out.rdbuf());
  try {
    const int code =
        aft::cli::run(app, static_cast<int>(argv.size()), argv.data());
    aft::fuzz::expect(code == 0, "the exit code must be 0, got another");
  } catch (const Parsed&) {
    aft::fuzz::expect(out.str().empty(),
                      "output on stdout before the command runs");
  } catch (const aft::cli::UsageError& e) {
    aft::fuzz::expect(e.what()[0] != 0, "an empty error message");
    aft::fuzz::expect(out.str().empty(), "output on stdout for a usage error");
  }
  std::cout.rdbuf(before);
  return 0;
}
