/* users.c - see users.h. */
#include "comm/users.h"

#include <stdio.h>

#include "base/log.h"

void zero_users_join(zero_users_t *users, zero_user_t user)
{
    users->n[user]++;
}

static int count(const zero_users_t *users)
{
    int n = 0;
    for (int user = 0; user < ZERO_N_USERS; user++)
        n += users->n[user];
    return n;
}

/* Writes "2 engines, 1 save". */
static void list(const zero_users_t *users, char *text, size_t n_bytes)
{
    static const char *const names[ZERO_N_USERS] = {"engine", "save", "checkpoint"};
    size_t length = 0;
    text[0] = '\0';
    for (int user = 0; user < ZERO_N_USERS && length < n_bytes; user++)
        if (users->n[user] > 0)
            length += (size_t)snprintf(text + length, n_bytes - length, "%s%d %s%s", length > 0 ? ", " : "",
                                       users->n[user], names[user], users->n[user] > 1 ? "s" : "");
}

bool zero_users_release(zero_users_t *users, const char *call)
{
    char text[96];
    if (count(users) == 0)
        return true;
    list(users, text, sizeof text);
    zero_log(ZERO_LOG_ERROR, "%s%s while something still uses it (%s): it is kept until that is gone; end that first",
             call, users->is_destroyed ? ", once more," : "", text);
    users->is_destroyed = true;
    return false;
}

bool zero_users_leave(zero_users_t *users, zero_user_t user)
{
    users->n[user]--;
    return users->is_destroyed && count(users) == 0;
}
