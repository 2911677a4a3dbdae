/* chat_template.c - see chat_template.h.
 *
 *   zerotrain                          launch/chat-template
 *     {"messages": [...]}\n   ------>    renders
 *     report            <------   {"say": ...}\n      while it installs Jinja2
 *     text, or an error <------   {"text": ...}\n  or  {"error": ...}\n
 *
 * Both ways are one socket, so that writing to a process that has ended is an error and no signal. What it says on
 * stderr is kept in memory for the line that tells why it ended. It ends with its stdin, even after a kill -9 of ours.
 */
#include "train/text/chat_template.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "train/report/report.h"
#include "train/report/utf8.h"

extern char **environ;

struct chat_template {
    pid_t process;
    FILE *socket; /* read through it, written to its descriptor */
    int errors;   /* a file in memory: the process's stderr */
};

/* ---- starting ---- */

/* Finds the script: beside the build folder, or where `make install` puts it. */
static zero_status_t find_script(char script[PATH_MAX + 64])
{
    static const char *const places[] = {"../launch", "../../launch", "../share/zerotrain"};
    char program[PATH_MAX] = "";
    if (readlink("/proc/self/exe", program, sizeof program - 1) < 0)
        return report_error(ZERO_ERROR_IO, "generate: cannot find this program's own path: %s", strerror(errno));
    *strrchr(program, '/') = 0;
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        snprintf(script, PATH_MAX + 64, "%s/%s/chat-template", program, places[i]);
        if (access(script, X_OK) == 0)
            return ZERO_OK;
    }
    return report_error(ZERO_ERROR_USAGE,
                        "generate: chat-template is neither in '%s/../launch' nor in '%s/../share/zerotrain': run "
                        "zerotrain where it was built, or where make install has put it",
                        program, program);
}

/* Starts the script with one end of a socket as its stdin and stdout. */
static int spawn_script(const char *script, const char *directory, int socket, int errors, pid_t *process)
{
    char *const arguments[] = {(char *)script, (char *)directory, NULL};
    posix_spawn_file_actions_t actions;
    int error = posix_spawn_file_actions_init(&actions);
    if (error)
        return error;
    if ((error = posix_spawn_file_actions_adddup2(&actions, socket, STDIN_FILENO)) == 0 &&
        (error = posix_spawn_file_actions_adddup2(&actions, socket, STDOUT_FILENO)) == 0 &&
        (error = posix_spawn_file_actions_adddup2(&actions, errors, STDERR_FILENO)) == 0)
        error = posix_spawn(process, script, &actions, NULL, arguments, environ);
    posix_spawn_file_actions_destroy(&actions);
    return error;
}

static int start(chat_template_t *chat, const char *script, const char *directory)
{
    int ends[2];
    chat->errors = memfd_create("chat-template", MFD_CLOEXEC);
    if (chat->errors < 0 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
        return errno;
    int error = spawn_script(script, directory, ends[1], chat->errors, &chat->process);
    close(ends[1]);
    if (!error && (chat->socket = fdopen(ends[0], "r")) != NULL)
        return 0;
    error = error ? error : errno;
    close(ends[0]);
    return error;
}

zero_status_t chat_template_open(const char *directory, chat_template_t **chat)
{
    char script[PATH_MAX + 64];
    ZERO_TRY(find_script(script));
    chat_template_t *opened = calloc(1, sizeof *opened);
    if (!opened)
        return report_rank_error(ZERO_ERROR_MEMORY, "generate: no memory for a chat template");
    opened->errors = -1;
    int error = start(opened, script, directory);
    if (error) {
        chat_template_close(opened);
        return report_error(ZERO_ERROR_IO, "generate: cannot run '%s': %s", script, strerror(error));
    }
    *chat = opened;
    return ZERO_OK;
}

void chat_template_close(chat_template_t *chat)
{
    if (!chat)
        return;
    if (chat->socket)
        fclose(chat->socket);
    if (chat->process > 0) {
        kill(chat->process, SIGKILL); /* it has nothing to save */
        waitpid(chat->process, NULL, 0);
    }
    if (chat->errors >= 0)
        close(chat->errors);
    free(chat);
}

/* ---- asking ---- */

static bool send_all(int fd, const char *bytes, size_t n_bytes)
{
    while (n_bytes > 0) {
        ssize_t n = send(fd, bytes, n_bytes, MSG_NOSIGNAL);
        if (n < 0 && errno != EINTR)
            return false;
        bytes += n > 0 ? n : 0;
        n_bytes -= n > 0 ? (size_t)n : 0;
    }
    return true;
}

static bool send_dialogue(chat_template_t *chat, const json_t *dialogue)
{
    char *line = json_dumps(dialogue, JSON_COMPACT);
    if (!line)
        return false;
    bool is_sent =
        send_all(fileno(chat->socket), line, strlen(line)) && send_all(fileno(chat->socket), "\n", strlen("\n"));
    free(line);
    return is_sent;
}

/* Reports that the process has ended: with the last line that it said, else with how it ended. */
static zero_status_t report_end(chat_template_t *chat, const char *where)
{
    char said[512] = "";
    int state = 0;
    if (chat->process > 0)
        waitpid(chat->process, &state, 0); /* its end of the socket is closed: it ends or has ended */
    chat->process = 0;
    const off_t n_bytes = lseek(chat->errors, 0, SEEK_END), n_last = sizeof said - 1;
    (void)!pread(chat->errors, said, sizeof said - 1, n_bytes > n_last ? n_bytes - n_last : 0);
    for (size_t n = strlen(said); n > 0 && (said[n - 1] == '\n' || said[n - 1] == ' '); n--)
        said[n - 1] = 0;
    const char *last = strrchr(said, '\n') ? strrchr(said, '\n') + 1 : said;
    if (!*last && WIFSIGNALED(state))
        snprintf(said, sizeof said, "%s", strsignal(WTERMSIG(state)));
    else if (!*last)
        snprintf(said, sizeof said, "exit code %d", WEXITSTATUS(state));
    return report_error(ZERO_ERROR_IO, "%s: launch/chat-template, which renders the chat template, has ended: %s",
                        where, last);
}

/* Takes a line of the process. Returns whether it is the answer: *text is set, or *status. */
static bool take_line(json_t *line, const char *where, char **text, size_t *n_bytes, zero_status_t *status)
{
    const json_t *rendered = json_object_get(line, "text");
    const char *said = json_string_value(json_object_get(line, "say")),
               *error = json_string_value(json_object_get(line, "error"));
    if (said) {
        report("%s", said);
        return false;
    }
    if (!json_is_string(rendered) && !where) {
        *status = ZERO_ERROR_USAGE;
        return true;
    }
    if (!json_is_string(rendered)) {
        *status = report_error(ZERO_ERROR_USAGE, "%s: %s", where, error ? error : "no text came from the template");
        return true;
    }
    *n_bytes = json_string_length(rendered);
    if ((*text = malloc(*n_bytes + 1)) != NULL)
        memcpy(*text, json_string_value(rendered), *n_bytes + 1);
    else
        *status = report_rank_error(ZERO_ERROR_MEMORY, "%s: no memory for %zu bytes", where, *n_bytes);
    return true;
}

zero_status_t chat_template_render(chat_template_t *chat, const char *where, const json_t *dialogue, char **text,
                                   size_t *n_bytes)
{
    char *line = NULL;
    size_t capacity = 0;
    bool is_answered = false;
    zero_status_t status = ZERO_OK;
    (void)send_dialogue(chat, dialogue); /* if it has ended, it has perhaps said why */
    while (!is_answered && getline(&line, &capacity, chat->socket) > 0) {
        json_t *parsed = json_loads(line, JSON_ALLOW_NUL, NULL);
        is_answered = take_line(parsed, where, text, n_bytes, &status);
        json_decref(parsed);
    }
    free(line);
    return is_answered ? status : report_end(chat, where ? where : "generate");
}

zero_status_t chat_add_message(json_t *dialogue, const char *role, const char *content, size_t n_bytes)
{
    size_t n_repaired = 0;
    char *repaired = utf8_repaired(content, n_bytes, &n_repaired);
    json_t *message = repaired ? json_pack("{s:s, s:s%}", "role", role, "content", repaired, n_repaired) : NULL;
    free(repaired);
    if (json_array_append_new(json_object_get(dialogue, "messages"), message) == 0)
        return ZERO_OK;
    return report_rank_error(ZERO_ERROR_MEMORY, "generate: no memory for a message of %zu bytes", n_bytes);
}
