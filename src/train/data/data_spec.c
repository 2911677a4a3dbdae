/* data_spec.c - the options' data as a specification of data.h. */
#include "train/data/data.h"

data_spec_t data_spec_of(const options_t *options, zero_comm_t *comm, const char *paths)
{
    return (data_spec_t){.paths = paths,
                         .format = (options_format_t)options->data.format,
                         .vocab_size = options->model.vocab_size,
                         .seq_len = options->model.seq_len,
                         .global_batch = options->train.global_batch,
                         .micro_batch = options->train.micro_batch,
                         .rank = zero_comm_rank(comm),
                         .world_size = zero_comm_size(comm),
                         .separate = options->data.documents == DOCUMENTS_SEPARATE};
}
