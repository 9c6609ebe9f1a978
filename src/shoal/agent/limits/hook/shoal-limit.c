/*
 * shoal-limit SOCKET UUID=BYTES...: an OCI createRuntime hook.
 *
 * Asks the agent to limit the device memory of the container that is being created, and succeeds only if the agent says
 * that it did. The container's state comes on standard input; its cgroup is read here, since only the host sees its
 * full path. Build it statically: the host need not have a C library of ours.
 */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#define MAX_STATE (1 << 20)
#define MAX_LINE 8192
#define SECONDS 15
/* Tests build it with a folder and a patience of their own. */
#ifndef PROC
#define PROC "/proc"
#endif
#ifndef AWAY_SECONDS
#define AWAY_SECONDS 10
#endif

static int fail(const char *what, const char *why)
{
    fprintf(stderr, "shoal-limit: %s: %s\n", what, why);
    return 1;
}

/* The number of the key "pid" of the outermost object; 0 if there is none. Keys further in do not count. */
static long pid_of(const char *text)
{
    int depth = 0;
    for (const char *at = text; *at; at++) {
        if (*at == '{' || *at == '[') {
            depth++;
        } else if (*at == '}' || *at == ']') {
            depth--;
        } else if (*at == '"') {
            const char *begin = ++at;
            while (*at && *at != '"')
                at += (*at == '\\' && at[1]) ? 2 : 1;
            if (!*at)
                return 0;
            if (depth == 1 && at - begin == 3 && !strncmp(begin, "pid", 3)) {
                const char *after = at + 1;
                while (isspace((unsigned char)*after))
                    after++;
                if (*after == ':')
                    return strtol(after + 1, NULL, 10);
            }
        }
    }
    return 0;
}

/* The path of a process's cgroup (version 2) into `line`. */
static int cgroup_of(long pid, char *line)
{
    char path[4096];
    snprintf(path, sizeof path, PROC "/%ld/cgroup", pid);
    FILE *file = fopen(path, "r");
    int found = 0;
    if (!file)
        return 0;
    while (!found && fgets(line, MAX_LINE, file)) {
        size_t length = strcspn(line, "\n");
        found = !strncmp(line, "0::/", 4) && line[length] == '\n';
        line[length] = 0;
    }
    fclose(file);
    if (found)
        memmove(line, line + 3, strlen(line + 3) + 1);
    return found;
}

static int dial(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct timeval patience = {.tv_sec = SECONDS};
    if (strlen(path) >= sizeof address.sun_path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    strcpy(address.sun_path, path);
    int door = socket(AF_UNIX, SOCK_STREAM, 0);
    if (door < 0)
        return -1;
    setsockopt(door, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    setsockopt(door, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    if (!connect(door, (struct sockaddr *)&address, sizeof address))
        return door;
    int failed = errno;
    close(door);
    errno = failed;
    return -1;
}

/* An agent that is being replaced is away for a moment, and many a pod has one try only. */
static int dial_until_answered(const char *path)
{
    for (int tries = 0;; tries++) {
        int door = dial(path);
        if (door >= 0 || (errno != ENOENT && errno != ECONNREFUSED) || tries >= AWAY_SECONDS * 10)
            return door;
        usleep(100 * 1000);
    }
}

int main(int count, char **words)
{
    static char state[MAX_STATE + 1], cgroup[MAX_LINE], answer[MAX_LINE];
    if (count < 3)
        return fail("usage", "shoal-limit SOCKET UUID=BYTES...");
    size_t length = fread(state, 1, MAX_STATE, stdin);
    state[length] = 0;
    long pid = pid_of(state);
    if (pid < 1)
        return fail("the container's state", "has no pid");
    if (!cgroup_of(pid, cgroup))
        return fail("the container's cgroup", "cannot be read; is it cgroup v2?");
    int door = dial_until_answered(words[1]);
    if (door < 0)
        return fail(words[1], strerror(errno));
    FILE *out = fdopen(dup(door), "w");
    if (!out)
        return fail(words[1], strerror(errno));
    fprintf(out, "limit 1\n%s\n", cgroup);
    for (int place = 2; place < count; place++)
        fprintf(out, "%s\n", words[place]);
    if (fclose(out) || shutdown(door, SHUT_WR))
        return fail(words[1], strerror(errno));
    size_t got = 0;
    ssize_t more;
    while (got < sizeof answer - 1 && (more = read(door, answer + got, sizeof answer - 1 - got)) > 0)
        got += (size_t)more;
    answer[got] = 0;
    answer[strcspn(answer, "\n")] = 0;
    return strcmp(answer, "ok") ? fail("the agent", *answer ? answer : "gave no answer") : 0;
}
