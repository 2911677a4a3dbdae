/* users.h - counts what still uses a communicator, a device or an engine. If a program destroys one of these before its
 * users, the object is kept until its last user is gone, and an error line lists the users. So a wrong order of
 * destruction leaves no dangling pointer, and everything is freed in the end. */
#ifndef ZERO_USERS_H
#define ZERO_USERS_H

#include <stdbool.h>

typedef enum zero_user { ZERO_USER_ENGINE, ZERO_USER_SAVE, ZERO_USER_CHECKPOINT, ZERO_N_USERS } zero_user_t;

/* All zero: no users. */
typedef struct zero_users {
    int n[ZERO_N_USERS];
    bool is_destroyed; /* by the caller, but kept for its users */
} zero_users_t;

void zero_users_join(zero_users_t *users, zero_user_t user);
/* Records that the caller destroys the object. Returns true if it can go now. Otherwise logs that `call` came too early
 * and lists the users. */
bool zero_users_release(zero_users_t *users, const char *call);
/* Returns true if the object was destroyed before and this was its last user: it must go now. */
bool zero_users_leave(zero_users_t *users, zero_user_t user);

#endif
