/* checkpoint_extents.c - see checkpoint_extents.h. */
#include "zero/checkpoint/checkpoint_extents.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/files.h"
#include "base/log.h"
#include "comm/comm.h"

/* ---- recording ---- */

/* Finishes the hash of the last extent. */
static void end_last(zero_extents_t *extents)
{
    if (!extents->last)
        return;
    extents->extents[extents->n_extents - 1].xxh3 = XXH3_64bits_digest(extents->last);
    XXH3_freeState(extents->last);
    extents->last = NULL;
}

static zero_status_t append(zero_extents_t *extents, const zero_extent_t *extent)
{
    zero_extent_t *grown = zero_grow(extents->extents, extents->n_extents, &extents->capacity, sizeof *grown);
    if (!grown)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory to list more than %zu runs of saved bytes", extents->n_extents);
    extents->extents = grown;
    extents->extents[extents->n_extents++] = *extent;
    return ZERO_OK;
}

/* Returns whether bytes at `offset` of a file follow the last extent. */
static bool follows_last(const zero_extents_t *extents, size_t file, uint64_t offset)
{
    const zero_extent_t *last = extents->last ? &extents->extents[extents->n_extents - 1] : NULL;
    return last && last->file == file && last->offset + last->n_bytes == offset;
}

zero_status_t zero_extents_add(zero_extents_t *extents, size_t file, uint64_t offset, const void *data, size_t n_bytes)
{
    if (!follows_last(extents, file, offset)) {
        end_last(extents);
        ZERO_TRY(append(extents, &(zero_extent_t){.file = file, .offset = offset}));
        extents->last = XXH3_createState();
        if (!extents->last || XXH3_64bits_reset(extents->last) != XXH_OK)
            return zero_fail(ZERO_ERROR_MEMORY, "no memory to hash what is saved");
    }
    extents->extents[extents->n_extents - 1].n_bytes += n_bytes;
    XXH3_64bits_update(extents->last, data, n_bytes);
    return ZERO_OK;
}

void zero_extents_destroy(zero_extents_t *extents)
{
    XXH3_freeState(extents->last);
    free(extents->extents);
    *extents = (zero_extents_t){0};
}

/* ---- sharing ---- */

static int by_file_and_offset(const void *a, const void *b)
{
    const zero_extent_t *x = a, *y = b;
    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

/* Finds the largest number of extents that a rank has: an all-gather takes the same size from every rank. */
static zero_status_t find_most(zero_comm_t *comm, size_t n_here, size_t *most)
{
    uint64_t n = n_here, *all = malloc((size_t)comm->size * sizeof *all);
    ZERO_TRY(zero_comm_agree(comm, all ? ZERO_OK
                                       : zero_fail(ZERO_ERROR_MEMORY, "no memory to compare %d ranks", comm->size)));
    zero_status_t status = comm->ops->host_all_gather(comm, &n, sizeof n, all);
    *most = 0;
    for (int rank = 0; rank < comm->size && status == ZERO_OK; rank++)
        *most = all[rank] > *most ? all[rank] : *most;
    free(all);
    return status;
}

/* Copies all of this rank's extents to `here`; the rest of it stays extents of 0 bytes. */
static void collect(zero_extents_t *lists, size_t n_lists, zero_extent_t *here)
{
    for (size_t l = 0; l < n_lists; l++) {
        end_last(&lists[l]);
        if (lists[l].n_extents > 0)
            memcpy(here, lists[l].extents, lists[l].n_extents * sizeof *here);
        here += lists[l].n_extents;
    }
}

static zero_status_t keep_mine(const zero_comm_t *comm, const zero_extent_t *all, size_t n_all, zero_extents_t *mine)
{
    for (size_t i = 0; i < n_all; i++)
        if (all[i].n_bytes > 0 && all[i].file % (uint64_t)comm->size == (uint64_t)comm->rank)
            ZERO_TRY(append(mine, &all[i]));
    if (mine->n_extents > 0)
        qsort(mine->extents, mine->n_extents, sizeof *mine->extents, by_file_and_offset);
    return ZERO_OK;
}

zero_status_t zero_extents_share(zero_comm_t *comm, zero_extents_t *lists, size_t n_lists, zero_extents_t *mine)
{
    size_t n_here = 0, most;
    for (size_t l = 0; l < n_lists; l++)
        n_here += lists[l].n_extents;
    ZERO_TRY(find_most(comm, n_here, &most));
    size_t n_all = most * (size_t)comm->size;
    zero_extent_t *here = calloc(most + 1, sizeof *here), *all = malloc((n_all + 1) * sizeof *all);
    zero_status_t status =
        here && all ? ZERO_OK : zero_fail(ZERO_ERROR_MEMORY, "no memory for %zu runs of saved bytes", n_all);
    status = zero_comm_agree(comm, status);
    if (status == ZERO_OK) {
        collect(lists, n_lists, here);
        status = comm->ops->host_all_gather(comm, here, most * sizeof *here, all);
    }
    if (status == ZERO_OK)
        status = zero_comm_agree(comm, keep_mine(comm, all, n_all, mine));
    free(all);
    free(here);
    return status;
}

/* ---- verifying ---- */

typedef struct verifier {
    const char *path;
    XXH3_state_t *whole, *part; /* of the file and of the current extent */
    const zero_extent_t *extent, *end;
    uint64_t at; /* how many bytes of the file have been read */
} verifier_t;

static zero_status_t end_extent(verifier_t *v)
{
    if (XXH3_64bits_digest(v->part) != v->extent->xxh3)
        return zero_fail(ZERO_ERROR_IO,
                         "'%s' does not hold at bytes %" PRIu64 " to %" PRIu64 " what was written there: something "
                         "else writes into it, or the disk does not keep it; this checkpoint is given up",
                         v->path, v->extent->offset, v->at);
    v->extent++;
    XXH3_64bits_reset(v->part);
    return ZERO_OK;
}

static zero_status_t take_block(void *user, const void *block, size_t n_bytes)
{
    verifier_t *v = user;
    const unsigned char *from = block;
    XXH3_64bits_update(v->whole, block, n_bytes);
    while (n_bytes > 0) {
        if (v->extent == v->end)
            return zero_fail(ZERO_ERROR_IO,
                             "'%s' has more than the %" PRIu64 " bytes that were written: something else writes into "
                             "it; this checkpoint is given up",
                             v->path, v->at);
        uint64_t left = v->extent->offset + v->extent->n_bytes - v->at;
        size_t n = left < n_bytes ? (size_t)left : n_bytes;
        XXH3_64bits_update(v->part, from, n);
        v->at += n;
        from += n;
        n_bytes -= n;
        if (n == left)
            ZERO_TRY(end_extent(v));
    }
    return ZERO_OK;
}

/* Checks that extents follow each other without gap or overlap: that ranks have written every element, and once. */
static zero_status_t check_cover(const verifier_t *v)
{
    uint64_t end = 0;
    for (const zero_extent_t *extent = v->extent; extent < v->end; extent++) {
        if (extent->offset != end)
            return zero_fail(ZERO_ERROR_IO,
                             "'%s': the ranks have not written bytes %" PRIu64 " to %" PRIu64 " once each; this "
                             "checkpoint is given up",
                             v->path, end < extent->offset ? end : extent->offset,
                             end < extent->offset ? extent->offset : end);
        end += extent->n_bytes;
    }
    return ZERO_OK;
}

static zero_status_t verify(verifier_t *v)
{
    ZERO_TRY(check_cover(v));
    ZERO_TRY(zero_file_read_blocks(v->path, take_block, v));
    if (v->extent == v->end)
        return ZERO_OK;
    return zero_fail(ZERO_ERROR_IO,
                     "'%s' has %" PRIu64 " bytes, but %" PRIu64 " were written: something else writes into it; this "
                     "checkpoint is given up",
                     v->path, v->at, v->end[-1].offset + v->end[-1].n_bytes);
}

zero_status_t zero_extents_verify(const zero_extents_t *mine, size_t file, const char *path, uint64_t *n_bytes,
                                  uint64_t *xxh3)
{
    size_t first = 0;
    while (first < mine->n_extents && mine->extents[first].file < file)
        first++;
    size_t end = first;
    while (end < mine->n_extents && mine->extents[end].file == file)
        end++;
    verifier_t v = {.path = path,
                    .whole = XXH3_createState(),
                    .part = XXH3_createState(),
                    .extent = mine->extents + first,
                    .end = mine->extents + end};
    zero_status_t status = ZERO_ERROR_MEMORY;
    if (v.whole && v.part && XXH3_64bits_reset(v.whole) == XXH_OK && XXH3_64bits_reset(v.part) == XXH_OK)
        status = verify(&v);
    else
        zero_fail(status, "no memory to check '%s'", path);
    if (status == ZERO_OK) {
        *n_bytes = v.at;
        *xxh3 = XXH3_64bits_digest(v.whole);
    }
    XXH3_freeState(v.part);
    XXH3_freeState(v.whole);
    return status;
}
