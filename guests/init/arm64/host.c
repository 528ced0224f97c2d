/* Memory, files, and the ports to the host. */
#include "init.h"

static int control = -1;
pid_t session;
int terminal = -1;
static pthread_mutex_t over_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t over_bell = PTHREAD_COND_INITIALIZER;
static bool over;

/* Text of any length; there is memory for it, or there is no guest. */
__attribute__((format(printf, 1, 2))) char *text(const char *format, ...) {
    char *made = NULL;
    va_list arguments;
    va_start(arguments, format);
    if (vasprintf(&made, format, arguments) < 0) abort();
    va_end(arguments);
    return made;
}

/* An error as Rust words it, so that messages are those of x86. */
char *why(int error) {
    return text("%s (os error %d)", strerror(error), error);
}

void put(struct list *list, char *item) {
    list->items = realloc(list->items, (list->count + 2) * sizeof *list->items);
    if (!list->items) abort();
    list->items[list->count++] = item;
    list->items[list->count] = NULL;
}

/* A whole file with a NUL behind it; none if it cannot be read. */
char *whole(const char *path, size_t *length) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return NULL;
    char *bytes = NULL;
    size_t size = 0;
    for (ssize_t got = 1; got > 0; size += (size_t)got) {
        bytes = realloc(bytes, size + 65537);
        if (!bytes) abort();
        got = read(fd, bytes + size, 65536);
        if (got <= 0) break;
    }
    close(fd);
    bytes[size] = 0;
    if (length) *length = size;
    return bytes;
}

bool write_all(int fd, const char *bytes, size_t length) {
    while (length) {
        ssize_t written = write(fd, bytes, length);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) return false;
        bytes += written;
        length -= (size_t)written;
    }
    return true;
}

/* Tells whoever reads the kernel's console, where the host cannot be told otherwise. */
void console(const char *said) {
    int fd = open("/dev/console", O_WRONLY | O_CLOEXEC | O_NOCTTY);
    if (fd < 0) return;
    char *line = text("satori-init: %s\n", said);
    write_all(fd, line, strlen(line));
    close(fd);
}

/* Gives the host the moment that it takes to connect to a port: one that it has left looks as one that it has not found yet. */
void await_host(int port, uint64_t patience) {
    for (uint64_t begun = milliseconds(); milliseconds() - begun < patience; rest(1000)) {
        struct pollfd fd = { .fd = port, .events = POLLIN };
        poll(&fd, 1, 0);
        if (!(fd.revents & POLLHUP) || fd.revents & POLLIN) return;
    }
}

/* Writes all to a port whose writes do not wait: one that waits would wait for ever for a host that has left. */
bool put_to_host(int port, const char *bytes, size_t length) {
    while (length) {
        struct pollfd fd = { .fd = port, .events = POLLOUT };
        poll(&fd, 1, -1);
        if (fd.revents & POLLHUP) return false;
        ssize_t written = write(port, bytes, length);
        if (written < 0 && errno != EAGAIN && errno != EINTR) return false;
        if (written > 0) bytes += written, length -= (size_t)written;
    }
    return true;
}

/* The host's next line, cut to the room there is. False if the host has left. */
static bool hear(char *line, size_t room) {
    for (size_t at = 0;;) {
        char byte;
        ssize_t got = read(control, &byte, 1);
        if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
            struct pollfd fd = { .fd = control, .events = POLLIN };
            poll(&fd, 1, -1);
            continue;
        }
        if (got != 1) return false;
        if (byte == '\n') {
            line[at] = 0;
            return true;
        }
        if (at < room - 1) line[at++] = byte;
    }
}

/* Tells the host a line, if it has not left. */
void tell(char *line) {
    for (char *at = line; *at; at++)
        if (*at == '\n') *at = ' ';
    line = text("%s\n", line);
    put_to_host(control, line, strlen(line));
}

void note(const char *said) {
    tell(text("note %s", said));
}

/* Sets the clock to what the host's shows, as it told in a line, and so much more. */
static bool set_time(const char *line, uint64_t more) {
    unsigned long long seconds, nanoseconds;
    if (sscanf(line, "time %llu %llu", &seconds, &nanoseconds) != 2) return false;
    nanoseconds += more;
    struct timespec now = {
        .tv_sec = (time_t)(seconds + nanoseconds / 1000000000), .tv_nsec = (long)(nanoseconds % 1000000000),
    };
    if (clock_settime(CLOCK_REALTIME, &now)) note(text("the clock cannot be set (%s)", why(errno)));
    return true;
}

static uint64_t nanoseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* Sets the clock to the host's, which stamps what changes in folders; `../src/control.rs` says why. The answer that took least counts. */
void set_clock(void) {
    char best[80] = "";
    uint64_t shortest = UINT64_MAX, heard = 0;
    for (int tries = 0; tries < 5 && shortest >= 1000000; tries++) {
        uint64_t asked = nanoseconds();
        tell(text("clock"));
        char line[80];
        /* Other lines are passed over: there is no command yet that a signal could reach. */
        do {
            if (!hear(line, sizeof line)) return;
        } while (strncmp(line, "time ", 5));
        if (nanoseconds() - asked >= shortest) continue;
        heard = nanoseconds();
        shortest = heard - asked;
        memcpy(best, line, sizeof best);
    }
    set_time(best, shortest + (nanoseconds() - heard));
}

/* Ends the machine. */
static __attribute__((noreturn)) void power_off(void) {
    reboot(RB_POWER_OFF);
    for (;;) pause();
}

static void is_over(void) {
    pthread_mutex_lock(&over_lock);
    over = true;
    pthread_cond_broadcast(&over_bell);
    pthread_mutex_unlock(&over_lock);
}

/* Performs what the host asks for, until it closes. */
void *serve(void *unused) {
    char line[80];
    while (hear(line, sizeof line)) {
        int signal;
        struct winsize size = { 0 };
        if (sscanf(line, "signal %d", &signal) == 1) {
            if (session > 0) kill(-session, signal);
        } else if (sscanf(line, "size %hu %hu", &size.ws_row, &size.ws_col) == 2) {
            if (terminal >= 0) ioctl(terminal, TIOCSWINSZ, &size);
        } else if (set_time(line, 0)) {
            continue;
        } else if (!strncmp(line, "over", 4)) {
            is_over();
        }
    }
    /* A host that has left does not say so. */
    is_over();
    return unused;
}

pthread_t start(void *(*work)(void *), void *argument) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, work, argument)) {
        console("internal error: no thread can be made");
        power_off();
    }
    return thread;
}

/* Ends early: the host hears a status and a reason, then the machine ends. */
void fail(int status, const char *reason) {
    if (control < 0) {
        console(reason);
    } else {
        if (!session) start(serve, NULL);
        tell(text("failed %d %s", status, reason));
    }
    finish();
}

/* Ends the machine when the host has all that was written, however slow its readers are: what a device that is shut down has not taken yet is
   lost. It does not wait for a host that has left. */
void finish(void) {
    sync();
    if (control >= 0) {
        pthread_mutex_lock(&over_lock);
        while (!over) pthread_cond_wait(&over_bell, &over_lock);
        pthread_mutex_unlock(&over_lock);
    }
    power_off();
}

uint64_t milliseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

void rest(unsigned microseconds) {
    struct timespec time = { .tv_sec = 0, .tv_nsec = microseconds * 1000L };
    nanosleep(&time, NULL);
}

/* The device's file of the port of this name. */
static char *find_port(const char *name) {
    DIR *ports = opendir("/sys/class/virtio-ports");
    char *found = NULL;
    for (struct dirent *entry; ports && !found && (entry = readdir(ports)); ) {
        char *told = whole(text("/sys/class/virtio-ports/%s/name", entry->d_name), NULL);
        if (!told) continue;
        told[strcspn(told, "\n")] = 0;
        if (!strcmp(told, name)) found = text("/dev/%s", entry->d_name);
        free(told);
    }
    if (ports) closedir(ports);
    return found;
}

/* Opens the port of this name for both directions; its name comes a moment after the device. -1, with the reason. */
int open_port(const char *name, char **reason) {
    for (uint64_t begun = milliseconds(); ; rest(500)) {
        bool late = milliseconds() - begun > 5000;
        char *path = find_port(name);
        if (path) {
            int fd = open(path, O_RDWR | O_CLOEXEC);
            if (fd >= 0) return fd;
            *reason = text("%s: %s", path, why(errno));
        } else {
            *reason = text("no port is called %s", name);
        }
        if (late) return -1;
    }
}

/* Opens the port on which host and init talk. `otherwise` is what else went wrong, for whoever reads why there is none. */
void open_control(const char *otherwise) {
    char *reason;
    int port = open_port("satori.control", &reason);
    if (port < 0)
        fail(INTERNAL, text("there is no port for the host (%s): the kernel lacks virtio_console or virtio_pci. %s",
                            reason, otherwise));
    await_host(port, 5000);
    fcntl(port, F_SETFL, O_NONBLOCK);
    control = port;
}
