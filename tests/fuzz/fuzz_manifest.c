/* fuzz_manifest.c - a checkpoint's manifest.json, beside files that are good. What is taken lists files of the
 * checkpoint's own folder with their true sizes and hashes; what can be loaded as well is what the files hold. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "engine.h"
#include "input.h"

static void check_listed(const char *name, const json_t *entry)
{
    char path[512], hash[17];
    size_t n_bytes;
    FUZZ_REQUIRE(!strchr(name, '/') && strlen(name) < 256, "%s is not in the checkpoint's folder", name);
    snprintf(path, sizeof path, FUZZ_CHECKPOINT "/%s", name);
    char *data = fuzz_read(path, &n_bytes);
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)XXH3_64bits(data, n_bytes));
    FUZZ_REQUIRE((size_t)json_integer_value(json_object_get(entry, "bytes")) == n_bytes, "%s has %zu bytes", name,
                 n_bytes);
    const char *listed = json_string_value(json_object_get(entry, "xxh3"));
    FUZZ_REQUIRE(listed && strcmp(listed, hash) == 0, "%s has the hash %s", name, hash);
    free(data);
}

static void check_manifest(const char *text, size_t n_bytes)
{
    const char *name;
    json_t *entry, *manifest = json_loadb(text, n_bytes, JSON_REJECT_DUPLICATES, NULL);
    FUZZ_REQUIRE(manifest, "a manifest that is no JSON is taken");
    json_t *files = json_object_get(manifest, "files");
    FUZZ_REQUIRE(json_object_get(files, "state.json"), "a manifest without the state is taken");
    json_object_foreach(files, name, entry)
    {
        check_listed(name, entry);
    }
    json_decref(manifest);
}

int fuzz_manifest(const uint8_t *data, size_t n_bytes)
{
    zero_checkpoint_t *checkpoint = NULL;
    fuzz_begin();
    zero_engine_t *engine = fuzz_engine();
    fuzz_make_checkpoint();
    fuzz_write(FUZZ_CHECKPOINT "/manifest.json", data, n_bytes);
    zero_status_t status = zero_checkpoint_open(fuzz_comm(), fuzz_path(FUZZ_CHECKPOINT), &checkpoint);
    if (status == ZERO_OK) {
        check_manifest((const char *)data, n_bytes);
        status = zero_load(engine, checkpoint);
        zero_checkpoint_close(checkpoint);
    }
    if (status != ZERO_OK) {
        fuzz_refused(status);
        return 0;
    }
    fuzz_accepted = true;
    fuzz_check_loaded();
    return 0;
}
