/* rates_cache.h - the rates that `zerotrain calibrate` has measured, in a file of the user's: an entry for each kind of
 * machine and number of ranks on a host. It is replaced as a whole, by rename.
 *
 * A file that cannot be used costs one line, and built-in rates are taken.
 */
#ifndef ZEROTRAIN_RATES_CACHE_H
#define ZEROTRAIN_RATES_CACHE_H

#include "train/options/options.h"
#include "train/rates/rates.h"

#define FIT_CACHE_VERSION 2 /* another one is not read: what a rate means may have changed */

/* What was measured, and on what. */
typedef struct fit_measured {
    char device[64]; /* what the vendor calls the GPU; of a CPU fit_cpu_name */
    bool is_gpu;
    int threads, ranks; /* threads of a rank, on the CPU; ranks of a host */
    char date[24];      /* 2026-01-31T12:00:00Z */
    fit_rates_t rates;  /* NaN: not measured. Of memory_bytes: of a GPU, CUDA's included */
} fit_measured_t;

/* Sets all rates to "not measured". */
void fit_measured_clear(fit_measured_t *measured);

/* Finds where the file is: $XDG_CACHE_HOME/zerotrain/rates.json, or below ~/.cache. false: there is no such place. */
bool fit_cache_path(char path[OPTIONS_MAX_PATH]);

/* Writes an entry to the file, in place of one of the same device, threads and ranks. A file that cannot be used is
 * replaced. */
zero_status_t fit_cache_save(const fit_measured_t *measured);

/* Names this machine's CPU: "AMD EPYC 9654, 192 cores". */
void fit_cpu_name(char *name, size_t n_bytes);

/* Whose rates are wanted. */
typedef struct fit_wanted {
    bool is_gpu;
    const char *vendor_name; /* of a GPU that is here, or of this CPU; NULL: any */
    const char *gpu;         /* as --gpu names it; NULL or "": not named */
    int threads, ranks;      /* as in fit_measured_t */
    int cores;               /* of a host whose ranks may have more threads than that; 0: there are enough */
} fit_wanted_t;

/* Sets *rates to those that were measured, for the rest to built-in ones; of this rank's file. Without an entry:
 * built-in ones. Of entries for other numbers of ranks the nearest is taken. Returns false if a GPU is named that is
 * neither built in nor measured. */
bool fit_rates_look_up(const fit_wanted_t *wanted, fit_rates_t *rates);

/* The same on every rank, of rank 0's file. [collective] */
zero_status_t fit_rates_choose(zero_comm_t *comm, const fit_wanted_t *wanted, fit_rates_t *rates, bool *is_known);
/* The same for CPU ranks like these, when a device has set how many threads each has. */
zero_status_t fit_rates_of_this_cpu(zero_comm_t *comm, fit_rates_t *rates);

#endif
