/* name_table.h - finds a record by its name: a hash table of the records' numbers, so that a model is declared in time
 * proportional to its size. Unlike base/names.h, which sorts a finished list, it grows with every record. The records
 * and their names are the caller's: an array that may move between calls. */
#ifndef ZERO_NAME_TABLE_H
#define ZERO_NAME_TABLE_H

#include <stddef.h>
#include <stdint.h>

#include "zero.h"

/* All zero: empty. */
typedef struct zero_name_table {
    uint32_t n_entries; /* a power of two, or 0 */
    uint32_t n_names;
    int32_t *entries; /* open addressing: a record's number + 1; 0: free */
} zero_name_table_t;

/* Records of record_bytes each, with a null-terminated name at name_offset. */
typedef struct zero_named {
    const void *records;
    size_t record_bytes, name_offset;
} zero_named_t;

/* Returns the number of the record with this name; -1 if there is none. */
int zero_name_table_find(const zero_name_table_t *names, zero_named_t records, const char *name);
/* Adds record `number`, whose name no other has. ZERO_ERROR_MEMORY leaves the table as it was. */
zero_status_t zero_name_table_add(zero_name_table_t *names, zero_named_t records, int number);
void zero_name_table_destroy(zero_name_table_t *names);

#endif
