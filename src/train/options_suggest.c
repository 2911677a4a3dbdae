/* options_suggest.c - near misses: which name was meant, by edit distance. */
#include "train/options_table.h"

#include <ctype.h>
#include <limits.h>
#include <string.h>

#define MAX_WORD 63

/* Fewest insertions, deletions, substitutions and swaps of neighbours (optimal string alignment; Damerau 1964) that
 * make b of a, letters' case aside. Words beyond MAX_WORD are like no other. */
static int edit_distance(const char *a, const char *b)
{
    size_t n_a = strlen(a), n_b = strlen(b);
    if (n_a > MAX_WORD || n_b > MAX_WORD)
        return INT_MAX;
    int cost[MAX_WORD + 1][MAX_WORD + 1]; /* [i][j]: of the first i letters of a and j of b */
    for (size_t i = 0; i <= n_a; i++)
        for (size_t j = 0; j <= n_b; j++) {
            if (i == 0 || j == 0) {
                cost[i][j] = (int)(i + j);
                continue;
            }
            int x = tolower((unsigned char)a[i - 1]), y = tolower((unsigned char)b[j - 1]);
            int least = cost[i - 1][j - 1] + (x != y);
            if (cost[i - 1][j] + 1 < least)
                least = cost[i - 1][j] + 1;
            if (cost[i][j - 1] + 1 < least)
                least = cost[i][j - 1] + 1;
            bool swapped =
                i > 1 && j > 1 && x == tolower((unsigned char)b[j - 2]) && y == tolower((unsigned char)a[i - 2]);
            if (swapped && cost[i - 2][j - 2] + 1 < least)
                least = cost[i - 2][j - 2] + 1;
            cost[i][j] = least;
        }
    return cost[n_a][n_b];
}

/* A third of the letters may be wrong, and one of a short word. */
near_miss_t near_miss_begin(const char *typed)
{
    size_t length = strlen(typed);
    int most = length > MAX_WORD ? 0 : length < 6 ? 1 : (int)(length / 3);
    return (near_miss_t){.typed = typed, .distance = most + 1};
}

void near_miss_offer(near_miss_t *near, const char *name, const void *candidate)
{
    int distance = edit_distance(near->typed, name);
    if (distance >= near->distance || distance >= (int)strlen(name))
        return;
    near->distance = distance;
    near->best = candidate;
}

void suggest_key(const char *section, const char *key, char *text, size_t n_bytes)
{
    near_miss_t near = near_miss_begin(key);
    for (int own = 1; own >= 0; own--) /* of equally near keys, those of the same section come first */
        for (int i = 0; i < n_option_rows; i++)
            if ((strcmp(option_rows[i].section, section) == 0) == own)
                near_miss_offer(&near, option_rows[i].key, &option_rows[i]);
    const option_row_t *best = near.best;
    if (best)
        snprintf(text, n_bytes, "; did you mean [%s] %s?", best->section, best->key);
    else
        snprintf(text, n_bytes, "; zerotrain --help lists all");
}

void suggest_section(const char *section, char *text, size_t n_bytes)
{
    near_miss_t near = near_miss_begin(section);
    for (int i = 0; i < n_option_rows; i++)
        near_miss_offer(&near, option_rows[i].section, option_rows[i].section);
    if (near.best)
        snprintf(text, n_bytes, "; did you mean [%s]?", (const char *)near.best);
    else
        snprintf(text, n_bytes, "; zerotrain --help lists all");
}
