/* options_rows.c - the table of the command line's options, from which options_command_line.c parses them, and --help
 * and the man page print them. */
#include "train/options/options_rows.h"

#include <getopt.h>

#define FOR_TRAIN FOR(COMMAND_TRAIN)
#define FOR_WEIGHTS (FOR_TRAIN | FOR(COMMAND_EVALUATE)) /* those that read a checkpoint of checkpoint.dir */
#define FOR_MODEL (FOR_WEIGHTS | FOR(COMMAND_FIT) | FOR(COMMAND_GENERATE))

const command_line_row_t command_line_rows[] = {
    [ROW_STAGE] = {"stage", required_argument, "N", "ZeRO stage, 0 to 3; short for --set zero.stage=N", FOR_MODEL},
    [ROW_STEPS] = {"steps", required_argument, "N", "stop after step N; the schedule still follows train.steps",
                   FOR_TRAIN},
    [ROW_SET] = {"set", required_argument, "SECTION.KEY=VALUE", "override a setting; may be given several times",
                 FOR_CFG},
    [ROW_TRACE] = {"trace", required_argument, "FILE", "write a timeline of all ranks; short for --set log.trace=FILE",
                   FOR_TRAIN},
    [ROW_RESUME] = {"resume", optional_argument, "[DIR]",
                    "continue from checkpoint DIR, or from the latest in checkpoint.dir", FOR_WEIGHTS},
    [ROW_AUTO_RESUME] = {"auto-resume", no_argument, "",
                         "--resume if checkpoint.dir has a checkpoint, else begin at step 1", FOR_WEIGHTS},
    [ROW_FORCE] = {"force", no_argument, "", "with --resume: continue even if training data or seed have changed",
                   FOR_TRAIN},
    [ROW_OVERWRITE] = {"overwrite", no_argument, "", "begin at step 1 and replace the checkpoints in checkpoint.dir",
                       FOR_TRAIN},
    [ROW_PLAN] = {"plan", no_argument, "", "print the memory and traffic of each rank, and exit", FOR_MODEL},
    [ROW_HOSTS] = {"hosts", required_argument, "H", "with --plan: as if the ranks were spread evenly over H hosts",
                   FOR_MODEL},
    [ROW_GPUS] = {"gpus", required_argument, "N", "fit: plan for N GPUs, which need not be there", FOR(COMMAND_FIT)},
    [ROW_GPU_MEMORY] = {"gpu-memory", required_argument, "SIZE", "fit, --plan: memory of a GPU, such as 80GiB",
                        FOR(COMMAND_FIT) | FOR_PLAN},
    [ROW_HOST_MEMORY] = {"host-memory", required_argument, "SIZE", "fit, --plan: memory of a host, such as 512GiB",
                         FOR(COMMAND_FIT) | FOR_PLAN},
    [ROW_GPU] = {"gpu", required_argument, "NAME", "fit, --plan: kind of the GPUs: H200, H100, A100 or A100-40GB",
                 FOR(COMMAND_FIT) | FOR_PLAN},
    [ROW_SVG] = {"svg", required_argument, "FILE", "fit: draw time over memory into an SVG file", FOR(COMMAND_FIT)},
    [ROW_JSON] = {"json", no_argument, "", "fit, evaluate, --plan: print exact numbers as JSON",
                  FOR(COMMAND_FIT) | FOR(COMMAND_EVALUATE) | FOR_PLAN},
    [ROW_OUTPUT] = {"output", required_argument, "FILE", "report: the HTML file to write", FOR(COMMAND_REPORT)},
    [ROW_PROMPT] = {"prompt", required_argument, "TEXT", "generate: the text to continue", FOR(COMMAND_GENERATE)},
    [ROW_PROMPT_FILE] = {"prompt-file", required_argument, "FILE", "generate: continue the text in this file",
                         FOR(COMMAND_GENERATE)},
    [ROW_MAX_TOKENS] = {"max-tokens", required_argument, "N", "generate: at most N tokens (default 256)",
                        FOR(COMMAND_GENERATE)},
    [ROW_TEMPERATURE] = {"temperature", required_argument, "T", "generate: of sampling (default 0.8); 0: greedy",
                         FOR(COMMAND_GENERATE)},
    [ROW_TOP_K] = {"top-k", required_argument, "K", "generate: sample from the K likeliest tokens; 0: from all",
                   FOR(COMMAND_GENERATE)},
    [ROW_TOP_P] = {"top-p", required_argument, "P",
                   "generate: sample from the likeliest tokens that add up to probability P", FOR(COMMAND_GENERATE)},
    [ROW_SEED] = {"seed", required_argument, "S", "generate: seed of sampling (default 1)", FOR(COMMAND_GENERATE)},
    [ROW_HELP] = {"help", no_argument, "", "print this help and exit", FOR_CFG},
    [ROW_VERSION] = {"version", no_argument, "", "print the version and exit", FOR_CFG},
};
const int n_command_line_rows = N_ROWS;
