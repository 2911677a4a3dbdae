/* peer_window.h - windows in GPU memory that the other ranks of a host map and read directly. Ranks of several hosts
 * make them together; each maps those of its own. */
#ifndef ZERO_PEER_WINDOW_H
#define ZERO_PEER_WINDOW_H

#include "base/log.h"
#include "comm/comm.h"

/* Creates a window with every byte set to `fill`. Failures are logged at `level`; if one rank fails, all do.
 * [collective] */
zero_status_t zero_peer_window_create(zero_comm_t *comm, size_t n_bytes, int fill, zero_log_level_t level,
                                      zero_window_t *window);
/* Destroys it, when no stream of this rank uses it any more. [collective, unless the communicator failed] */
void zero_peer_window_destroy(zero_comm_t *comm, zero_window_t *window);

/* Returns the address at which this process reads what `rank`, of this host, published. */
char *zero_peer_window_part(const zero_window_t *window, int rank);

#endif
