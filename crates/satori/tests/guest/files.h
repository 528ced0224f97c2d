// How files.c calls and tells.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

static const char *name(int e) { return e ? strerrorname_np(e) : "ok"; }
#define SAY(...) (printf(__VA_ARGS__), printf("\n"))
// A call's outcome: its value if that is 0 or more, else its error.
static void told(const char *what, long r) {
    int e = errno;
    if (r < 0) SAY("%s: %s", what, name(e));
    else SAY("%s: %ld", what, r);
}
// The same where the value is a descriptor, and not the same everywhere.
#define O(call)                                                                                                        \
    do {                                                                                                               \
        errno = 0;                                                                                                     \
        int fd_ = (call);                                                                                              \
        told(#call, fd_ < 0 ? fd_ : 0);                                                                                \
    } while (0)
#define T(call)                                                                                                        \
    do {                                                                                                               \
        errno = 0;                                                                                                     \
        told(#call, (long)(call));                                                                                     \
    } while (0)

static int put(const char *path, const char *text) {
    int fd = open(path, O_CREAT | O_RDWR | O_TRUNC, 0644);
    if (fd >= 0) write(fd, text, strlen(text));
    return fd;
}
static void show(const char *path) {
    char b[256];
    int fd = open(path, O_RDONLY);
    if (fd < 0) {
        SAY("%s: %s", path, name(errno));
        return;
    }
    long n = read(fd, b, sizeof b - 1);
    b[n < 0 ? 0 : n] = 0;
    SAY("%s = %ld '%s'", path, n, b);
    close(fd);
}
static void st(const char *path) {
    struct stat s;
    if (lstat(path, &s)) {
        SAY("stat %s: %s", path, name(errno));
        return;
    }
    SAY("stat %s: mode %o links %lu size %ld", path, s.st_mode, (long)s.st_nlink,
        S_ISDIR(s.st_mode) ? 0L : (long)s.st_size);
}
static void fst(const char *what, int fd) {
    struct stat s;
    if (fstat(fd, &s)) {
        SAY("fstat %s: %s", what, name(errno));
        return;
    }
    SAY("fstat %s: mode %o links %lu size %ld", what, s.st_mode, (long)s.st_nlink, (long)s.st_size);
}
static int child(int (*f)(void)) {
    fflush(stdout);
    pid_t p = fork();
    if (!p) {
        int r = f();
        fflush(stdout);
        _exit(r);
    }
    int s;
    waitpid(p, &s, 0);
    return WEXITSTATUS(s);
}
