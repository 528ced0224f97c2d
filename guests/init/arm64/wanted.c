/* Whether the command, or a process of it, waits for its standard input: `../src/wanted.rs` says why, and how that is found. */
#include "init.h"

/* Processes that were there before the command: this one and the kernel's threads. */
static struct list others;

static bool is_number(const char *name) {
    return *name && !name[strspn(name, "0123456789")];
}

static bool is_other(const char *name) {
    for (size_t i = 0; i < others.count; i++)
        if (!strcmp(others.items[i], name)) return true;
    return false;
}

/* From here on this process' folder is /proc: a path from the root would ask the host's file server for its first name again and again. */
void note_others(void) {
    if (chdir("/proc")) return;
    DIR *folder = opendir(".");
    for (struct dirent *entry; folder && (entry = readdir(folder)); )
        if (is_number(entry->d_name)) put(&others, text("%s", entry->d_name));
    if (folder) closedir(folder);
}

/* Whether descriptor `fd` of a process leads to `pipe`, as proc(5) names it. */
static bool leads(const char *process, unsigned long long fd, const char *pipe) {
    char path[64], link[64] = { 0 };
    snprintf(path, sizeof path, "%.20s/fd/%llu", process, fd);
    return readlink(path, link, sizeof link - 1) > 0 && !strcmp(link, pipe);
}

static bool in_memory(const char *process, unsigned long long at, void *into, size_t length) {
    char path[40];
    snprintf(path, sizeof path, "%.20s/mem", process);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    bool got = fd >= 0 && pread(fd, into, length, (off_t)at) == (ssize_t)length;
    if (fd >= 0) close(fd);
    return got;
}

/* Whether an epoll descriptor of a process watches `pipe`. */
static bool watches(const char *process, unsigned long long epoll, const char *pipe) {
    char path[64];
    snprintf(path, sizeof path, "%.20s/fdinfo/%llu", process, epoll);
    FILE *lines = fopen(path, "re");
    char line[256];
    unsigned long long fd;
    bool found = false;
    while (lines && !found && fgets(line, sizeof line, lines))
        found = sscanf(line, "tfd: %llu", &fd) == 1 && leads(process, fd, pipe);
    if (lines) fclose(lines);
    return found;
}

/* Whether a thread that is blocked in system call `call` waits for `pipe` (numbers of Linux, include/uapi/asm-generic/unistd.h). */
static bool awaits(const char *process, unsigned call, unsigned long long first, unsigned long long second, const char *pipe) {
    enum { MOST = 1024 };
    struct pollfd fds[MOST];
    unsigned char set[MOST / 8];
    switch (call) {
    case 63: case 65: case 76: case 77: /* read, readv, splice, tee */
        return leads(process, first, pipe);
    case 71: /* sendfile */
        return leads(process, second, pipe);
    case 73: /* ppoll */
        if (second > MOST) second = MOST;
        if (!in_memory(process, first, fds, second * sizeof *fds)) return false;
        for (size_t i = 0; i < second; i++)
            if (fds[i].events & POLLIN && leads(process, (unsigned)fds[i].fd, pipe)) return true;
        return false;
    case 72: /* pselect6 */
        if (first > MOST) first = MOST;
        if (!in_memory(process, second, set, (first + 7) / 8)) return false;
        for (size_t fd = 0; fd < first; fd++)
            if (set[fd / 8] >> fd % 8 & 1 && leads(process, fd, pipe)) return true;
        return false;
    case 22: case 441: /* epoll_pwait, epoll_pwait2 */
        return watches(process, first, pipe);
    case 426: /* io_uring_enter */
        return true;
    default:
        return false;
    }
}

/* Whether a process waits for `pipe`. */
static bool waits(const char *process, const char *pipe) {
    char path[64];
    snprintf(path, sizeof path, "%.20s/task", process);
    DIR *tasks = opendir(path);
    bool found = false;
    for (struct dirent *entry; tasks && !found && (entry = readdir(tasks)); ) {
        unsigned call;
        unsigned long long first, second;
        snprintf(path, sizeof path, "%.20s/task/%.20s/syscall", process, entry->d_name);
        char *told = is_number(entry->d_name) ? whole(path, NULL) : NULL;
        found = told && sscanf(told, "%u 0x%llx 0x%llx", &call, &first, &second) == 3
            && awaits(process, call, first, second, pipe);
        free(told);
    }
    if (tasks) closedir(tasks);
    return found;
}

/* Waits until a process waits for what is written to `to`: bytes that nobody here reads belong to whoever reads them next at the host's. */
void await_reader(int to) {
    char path[40], pipe[64] = { 0 };
    snprintf(path, sizeof path, "self/fd/%d", to);
    /* A kernel that does not tell, or a root without /proc: the input is taken at once. */
    if (readlink(path, pipe, sizeof pipe - 1) <= 0 || access("self/syscall", R_OK)) return;
    /* Microseconds. Each look takes the processor from the command: a pause is no longer than 50 ms or a sixteenth of the time that was
       waited, up to most of a second. */
    unsigned long waited = 0;
    for (unsigned long pause = 1000, most; ; ) {
        DIR *folder = opendir(".");
        bool found = false;
        for (struct dirent *entry; folder && !found && (entry = readdir(folder)); )
            found = is_number(entry->d_name) && !is_other(entry->d_name) && waits(entry->d_name, pipe);
        if (folder) closedir(folder);
        if (found) return;
        rest((unsigned)pause);
        waited += pause;
        most = waited / 16 < 50000 ? 50000 : waited / 16 > 900000 ? 900000 : waited / 16;
        pause = pause * 2 > most ? most : pause * 2;
    }
}
