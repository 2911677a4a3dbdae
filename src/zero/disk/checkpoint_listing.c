/* checkpoint_listing.c - see checkpoint_listing.h. */
#include "zero/disk/checkpoint_listing.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "zero/disk/checkpoint_removal.h"
#include "base/grow.h"
#include "base/log.h"

#define STEP_PREFIX "step-"

void zero_step_name(char name[ZERO_STEP_NAME_BYTES], const char *prefix, uint64_t step)
{
    snprintf(name, ZERO_STEP_NAME_BYTES, "%s" STEP_PREFIX "%08" PRIu64, prefix, step);
}

bool zero_step_name_parse(const char *name, uint64_t *step)
{
    char again[ZERO_STEP_NAME_BYTES];
    if (strncmp(name, STEP_PREFIX, strlen(STEP_PREFIX)) != 0 || strlen(name) >= ZERO_STEP_NAME_BYTES)
        return false;
    *step = strtoull(name + strlen(STEP_PREFIX), NULL, 10);
    zero_step_name(again, "", *step);
    return strcmp(name, again) == 0;
}

bool zero_step_name_is_temporary(const char *name)
{
    char step_text[ZERO_STEP_NAME_BYTES];
    uint64_t step;
    size_t n_prefix = strlen(ZERO_TEMPORARY_PREFIX), n_suffix = strlen(ZERO_REPLACED_SUFFIX), n_bytes = strlen(name);
    if (strncmp(name, ZERO_TEMPORARY_PREFIX, n_prefix) != 0 || n_bytes >= ZERO_STEP_NAME_BYTES)
        return false;
    strcpy(step_text, name + n_prefix);
    n_bytes -= n_prefix;
    if (n_bytes > n_suffix && strcmp(step_text + n_bytes - n_suffix, ZERO_REPLACED_SUFFIX) == 0)
        step_text[n_bytes - n_suffix] = 0;
    return zero_step_name_parse(step_text, &step);
}

static int by_step(const void *a, const void *b)
{
    const zero_listing_entry_t *x = a, *y = b;
    return (x->step > y->step) - (x->step < y->step);
}

static zero_status_t list_one(void *user, const char *parent, int fd, const char *name)
{
    zero_listing_t *listing = user;
    uint64_t step;
    if (!zero_step_name_parse(name, &step) || !zero_checkpoint_is_there(fd, name))
        return ZERO_OK;
    zero_listing_entry_t *entries =
        zero_grow(listing->entries, listing->n_entries, &listing->capacity, sizeof *entries);
    if (!entries)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory to list '%s'", parent);
    listing->entries = entries;
    zero_listing_entry_t *entry = &listing->entries[listing->n_entries++];
    *entry = (zero_listing_entry_t){.step = step};
    snprintf(entry->name, sizeof entry->name, "%s", name);
    return ZERO_OK;
}

zero_status_t zero_directory_visit(const char *parent, zero_visit_fn visit, void *user)
{
    zero_status_t status = ZERO_OK;
    DIR *directory = opendir(parent);
    if (!directory)
        return zero_fail(ZERO_ERROR_IO, "cannot read the directory '%s': %s", parent, strerror(errno));
    for (struct dirent *item; status == ZERO_OK && (item = readdir(directory)) != NULL;)
        status = visit(user, parent, dirfd(directory), item->d_name);
    closedir(directory);
    return status;
}

zero_status_t zero_listing_read(const char *parent, zero_listing_t *listing)
{
    zero_status_t status = zero_directory_visit(parent, list_one, listing);
    if (status == ZERO_OK && listing->n_entries > 0)
        qsort(listing->entries, listing->n_entries, sizeof *listing->entries, by_step);
    return status;
}
