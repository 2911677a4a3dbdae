/* mpi.h - what the transports of messages have in common: small host data and the end. They are entries of
 * zero_comm_ops_t (comm.h), for a communicator whose transport is messages.h's. */
#ifndef ZERO_MPI_H
#define ZERO_MPI_H

#include <mpi.h>

#include "comm/comm.h"
#include "comm/host/progress.h"
#include "zero.h"

size_t zero_mpi_staging_bytes(int size, size_t n_bytes);
zero_status_t zero_mpi_host_all_gather(zero_comm_t *comm, const void *mine, size_t n_bytes, void *all);
zero_status_t zero_mpi_host_broadcast(zero_comm_t *comm, void *data, size_t n_bytes, int root);
void zero_mpi_destroy(zero_comm_t *comm);

#endif
