/* users.h - what still uses a communicator, a device or an engine. One that is destroyed before its users are is kept
 * until the last of them has gone, and an error line names them: a program in the wrong order leaves no pointer to
 * memory that is free, and all is freed in the end. */
#ifndef ZERO_USERS_H
#define ZERO_USERS_H

#include <stdbool.h>

typedef enum zero_user { ZERO_USER_ENGINE, ZERO_USER_SAVE, ZERO_USER_CHECKPOINT, ZERO_N_USERS } zero_user_t;

/* All zero: nobody uses it. */
typedef struct zero_users {
    int n[ZERO_N_USERS];
    bool is_destroyed; /* by the caller, and kept for those */
} zero_users_t;

void zero_users_join(zero_users_t *users, zero_user_t user);
/* Takes note that the caller destroys the object. Returns whether it can go now; else `call` is told who uses it. */
bool zero_users_let_go(zero_users_t *users, const char *call);
/* Returns whether the object was destroyed before and this was its last user: it goes now. */
bool zero_users_leave(zero_users_t *users, zero_user_t user);

#endif
