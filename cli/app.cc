#include "cli/app.h"

#include "cli/commands.h"
#include "cli/measure/measure.h"

namespace aft::cli {

std::unique_ptr<CLI::App> make_app() {
  auto app = std::make_unique<CLI::App>(
      "The Attention Free Transformer: y_t = sigmoid(q_t) * "
      "sum_j exp(k_j + w_tj) v_j / sum_j exp(k_j + w_tj)",
      "aft");
  app->set_version_flag("--version", "aft " AFT_VERSION);
  app->require_subcommand(0, 1);  // run() has a better message for 0
  app->footer(
      std::string(
          "Examples:\n"
          "  aft presets                 list the models that can be trained\n"
          "  aft train text-aft-local-4x128 --data book.txt --out runs/text\n"
          "  aft generate runs/text --prompt 'Once upon'\n"
          "  aft train image-aft-local-4x128 --data photos/ --out runs/images\n"
          "  aft sample runs/images      generate images\n"
          "  aft train classify-aft-conv-4x96 --data flowers/ --out "
          "runs/classes\n"
          "  aft classify runs/classes photo.jpg\n"
          "  aft plot runs/classes       plot what the model has learned\n"
          "  aft launch -n 2 train text-aft-local-4x128   two processes\n"
          "  aft demo                    the four operators in a few seconds\n"
          "  aft bench runs/text         speed and memory on this machine\n"
          "  aft train --help            all options of one command\n"
          "\n") +
      kExitCodes);
  for (const auto add :
       {add_train, add_data, add_eval, add_generate, add_sample, add_complete,
        add_classify, add_import, add_export, add_compare, add_plot, add_curves,
        add_launch, add_info, add_demo, add_bench})
    add(*app);
  add_measure(*app);
  finish(*app);
  return app;
}

}  // namespace aft::cli
