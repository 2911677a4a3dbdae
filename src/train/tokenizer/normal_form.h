/* normal_form.h - Unicode's normal form C (UAX 15), by utf8proc: characters and their marks composed, marks in order.
 */
#ifndef ZEROTRAIN_NORMAL_FORM_H
#define ZEROTRAIN_NORMAL_FORM_H

#include <stdbool.h>
#include <stddef.h>

/* Returns whether this build has utf8proc. */
bool normal_form_is_there(void);
/* Composes valid UTF-8. Returns it for free(), with a zero behind it, and its length; NULL: no memory, or not there. */
char *normal_form_c(const char *text, size_t n_bytes, size_t *n_out);

#endif
