/* What the files of this init have in common. */
#pragma once
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <net/if.h>
#include <net/route.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* The status of what is Satori's own failure; found and not executed, and not found, as shells have it. */
enum { INTERNAL = 125, NOT_EXECUTABLE = 126, NOT_FOUND = 127 };

/* Milliseconds that a stream's port may be without its host after it was opened. */
enum { CONNECTING = 200 };

struct list {
    char **items;
    size_t count;
};

struct share {
    char *tag, *place;
    bool read_only;
};

/* What `/satori/spec` says: `key=value` between NULs. */
struct spec {
    struct share shares[64];
    size_t share_count;
    struct list arguments, environment, modules, groups;
    char *folder, *hostname, *network;
    /* The kernel's release, and the tag of a folder with its modules; a root that is kept is not changed for it. */
    char *release, *modules_tag;
    bool kept;
    unsigned umask, uid, gid;
    unsigned short rows, columns;
    bool terminal;
    /* Standard input is /dev/null. */
    bool no_input;
};
extern struct spec spec;

/* The session's first process, and our side of its terminal; they change before the thread that reads them is made. */
extern pid_t session;
extern int terminal;

/* host.c: memory, files, and whoever listens outside. */
__attribute__((format(printf, 1, 2))) char *text(const char *format, ...);
char *why(int error);
void put(struct list *list, char *item);
char *whole(const char *path, size_t *length);
void await_host(int port, uint64_t patience);
bool put_to_host(int port, const char *bytes, size_t length);
bool write_all(int fd, const char *bytes, size_t length);
void console(const char *said);
void tell(char *line);
void note(const char *said);
__attribute__((noreturn)) void fail(int status, const char *reason);
__attribute__((noreturn)) void finish(void);
void *serve(void *unused);
pthread_t start(void *(*work)(void *), void *argument);
uint64_t milliseconds(void);
void rest(unsigned microseconds);
int open_port(const char *name, char **reason);
void open_control(const char *otherwise);
void set_clock(void);

/* spec.c */
void read_spec(void);
__attribute__((noreturn)) void wrong_spec(const char *key);

/* mounts.c */
bool is_folder(const char *path);
void early(void);
char *load_modules(void);
void enter_root(void);
void inside(void);

/* wanted.c */
void note_others(void);
void await_reader(int to);
