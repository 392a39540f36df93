#include "runtime/cli/input_flags.h"

#include <CLI/CLI.hpp>

namespace weft::runtime {

void add_input_flags(CLI::App& command, RequestInput& input, const char* group, bool continuations, bool greedy) {
  command
      .add_option("--input", input.paths,
                  "Requests, one JSON object per line, or a table (NAME.csv); either may be packed by gzip or zstd; -: "
                  "standard input. Several are one job, in this order")
      ->required()
      ->allow_extra_args(greedy)
      ->group(group);
  command
      .add_option("--prompt-column", input.columns.prompt,
                  "Column of a table that has the prompts (\"prompt\"); the others go to the answers' metadata")
      ->group(group);
  command
      .add_option("--prompt-template", input.columns.prompt_template,
                  "Prompts of a table, such as 'Translate: {text}'; {text} is a column, {{ and }} are braces")
      ->group(group);
  if (continuations)
    command
        .add_option("--continuation-column", input.columns.continuation,
                    "Column of a table that has the continuations of weft score")
        ->group(group);
}

}  // namespace weft::runtime
