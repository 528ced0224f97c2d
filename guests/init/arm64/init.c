/*
 * PID 1 of `satori run --arch arm64 -- COMMAND`: what `../src/` is for x86-64, with the same description of the command (`/satori/spec`), the same
 * lines on the port `satori.control` (`../src/main.rs` lists them) and the same words where something is missing.
 *
 * It is C because the pinned Rust has no library for AArch64, and Debian's cross compiler (gcc-aarch64-linux-gnu) builds it everywhere;
 * `crates/satori/build.rs` does so where that is installed.
 */
#include "init.h"

#define TIOCGPTPEER_NUMBER 0x5441

struct pair {
    int from, to;
};

static struct pair *pair(int from, int to) {
    struct pair *made = malloc(sizeof *made);
    if (!made) abort();
    *made = (struct pair){ from, to };
    return made;
}

/* From the command to the host, until no process has the other end open, or nobody reads at the host's: the command's next write is then
   that to a pipe without readers. */
static void *carry(void *argument) {
    struct pair *way = argument;
    char buffer[1 << 15];
    await_host(way->to, CONNECTING);
    for (ssize_t length; (length = read(way->from, buffer, sizeof buffer)) > 0; ) {
        if (!put_to_host(way->to, buffer, (size_t)length)) break;
    }
    close(way->from);
    return NULL;
}

/* From the host to the command, until the host closes. */
static void into_command(int port, int to) {
    char buffer[1 << 15];
    await_host(port, CONNECTING);
    for (;;) {
        ssize_t length = read(port, buffer, sizeof buffer);
        if (length < 0 && errno == EINTR) continue;
        if (length <= 0 || !write_all(to, buffer, (size_t)length)) break;
    }
    close(to);
    close(port);
}

static void *feed_pipe(void *argument) {
    struct pair *way = argument;
    await_reader(way->to);
    char *reason;
    /* The host reads nothing before the port is open. */
    int port = open_port("satori.stdin", &reason);
    if (port < 0) {
        console(reason);
        close(way->to);
    } else {
        into_command(port, way->to);
    }
    return NULL;
}

static void *feed_terminal(void *argument) {
    struct pair *way = argument;
    into_command(way->from, way->to);
    return NULL;
}

/* The command's standard streams, and who carries output and error. */
static int streams[3];
static pthread_t carriers[2];
static size_t carrier_count;

/* A port opens only once, and its file belongs to root. The command gets pipes that belong to its user, so that it can open /dev/stdout
   again, as can whoever it becomes, and that end as pipes do. */
static void make_pipes(void) {
    static const char *const ports[] = { "satori.stdin", "satori.stdout", "satori.stderr" };
    int ours[3];
    for (size_t i = 0; i < 3; i++) {
        int ends[2];
        if (pipe2(ends, O_CLOEXEC)) fail(INTERNAL, text("no pipe can be made (%s)", why(errno)));
        if (fchown(ends[1], spec.uid, spec.gid) || fchmod(ends[1], 0666)) continue;
        streams[i] = ends[i == 0 ? 0 : 1];
        ours[i] = ends[i == 0 ? 1 : 0];
    }
    if (spec.no_input) {
        close(streams[0]);
        close(ours[0]);
        streams[0] = open("/dev/null", O_RDONLY | O_CLOEXEC);
        if (streams[0] < 0) fail(INTERNAL, text("/dev/null cannot be opened (%s)", why(errno)));
    } else {
        note_others();
        start(feed_pipe, pair(-1, ours[0]));
    }
    for (size_t i = 1; i < 3; i++) {
        char *reason;
        int port = open_port(ports[i], &reason);
        if (port < 0) fail(INTERNAL, reason);
        if (fcntl(port, F_SETFL, O_NONBLOCK)) fail(INTERNAL, text("%s cannot be used (%s)", ports[i], why(errno)));
        carriers[carrier_count++] = start(carry, pair(ours[i], port));
    }
}

static void make_terminal(void) {
    int unlock = 0, theirs = -1;
    struct winsize size = { .ws_row = spec.rows, .ws_col = spec.columns };
    terminal = open("/dev/pts/ptmx", O_RDWR | O_CLOEXEC | O_NOCTTY);
    if (terminal >= 0 && !ioctl(terminal, TIOCSPTLCK, &unlock))
        theirs = ioctl(terminal, TIOCGPTPEER_NUMBER, O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (theirs < 0 || ioctl(terminal, TIOCSWINSZ, &size))
        fail(INTERNAL, text("no terminal can be made (%s)", why(errno)));
    if (fchown(theirs, spec.uid, 5)) note(text("the terminal is not the user's (%s)", why(errno)));
    for (size_t i = 0; i < 3; i++) streams[i] = fcntl(theirs, F_DUPFD_CLOEXEC, 3);
    close(theirs);
    char *reason;
    int port = open_port("satori.tty", &reason);
    if (port < 0) fail(INTERNAL, reason);
    start(feed_terminal, pair(port, dup(terminal)));
    carriers[carrier_count++] = start(carry, pair(dup(terminal), port));
}

/* In the child: becomes the caller, and the command. Writes errno to `broken` where it cannot. */
static void become(int broken) {
    for (int i = 0; i < 3; i++) dup2(streams[i], i);
    signal(SIGPIPE, SIG_DFL);
    gid_t *groups = calloc(spec.groups.count + 1, sizeof *groups);
    for (size_t i = 0; groups && i < spec.groups.count; i++) groups[i] = (gid_t)strtoul(spec.groups.items[i], NULL, 10);
    if (groups && setsid() > 0 && (!spec.terminal || !ioctl(0, TIOCSCTTY, 0))
        && !setgroups(spec.groups.count, groups) && !setgid(spec.gid) && !setuid(spec.uid)) {
        umask(spec.umask);
        /* A folder that the guest does not have was told of. */
        if (!chdir("/") && chdir(spec.folder)) errno = 0;
        environ = spec.environment.items;
        execvp(spec.arguments.items[0], spec.arguments.items);
    }
    int error = errno;
    if (write(broken, &error, sizeof error)) _exit(NOT_FOUND);
    _exit(NOT_EXECUTABLE);
}

/* Whether the user may search a folder and all above it. */
static bool may_search(char *folder) {
    struct stat about;
    if (stat(*folder ? folder : "/", &about) || !S_ISDIR(about.st_mode)) return false;
    unsigned shift = about.st_uid == spec.uid ? 6 : 0;
    if (!shift && about.st_gid == spec.gid) shift = 3;
    for (size_t i = 0; !shift && i < spec.groups.count; i++)
        if (strtoul(spec.groups.items[i], NULL, 10) == about.st_gid) shift = 3;
    if (!(about.st_mode >> shift & 1)) return false;
    char *above = text("%s", folder), *slash = strrchr(above, '/');
    if (!*folder || !slash) return true;
    *slash = 0;
    return may_search(above);
}

/* Whether the caller sees a file of this name on its PATH. execvp(3) tells of a folder that may not be searched as it tells of a file that
   may not be executed; to shells the former holds nothing. */
static bool is_seen(const char *program) {
    char *path = NULL;
    for (size_t i = 0; i < spec.environment.count; i++)
        if (!strncmp(spec.environment.items[i], "PATH=", 5)) path = text("%s", spec.environment.items[i] + 5);
    if (!path || strchr(program, '/') || !spec.uid) return true;
    for (char *folder; (folder = strsep(&path, ":")); ) {
        struct stat about;
        char *place = *folder == '/' ? folder : text("%s/%s", spec.folder, folder);
        if (may_search(place) && !stat(text("%s/%s", place, program), &about) && S_ISREG(about.st_mode)) return true;
    }
    return false;
}

/* Runs the command to its end, and tells the host of that. */
static void command(void) {
    if (!spec.arguments.count) fail(INTERNAL, "no command is described");
    if (spec.terminal) make_terminal();
    else make_pipes();
    if (!is_folder(spec.folder)) note(text("there is no %s in the guest: the command begins in /", spec.folder));
    int broken[2], error = 0;
    if (pipe2(broken, O_CLOEXEC)) fail(INTERNAL, text("no pipe can be made (%s)", why(errno)));
    pid_t pid = fork();
    if (pid < 0) fail(NOT_EXECUTABLE, text("cannot execute '%s' (%s)", spec.arguments.items[0], why(errno)));
    if (!pid) become(broken[1]);
    close(broken[1]);
    for (size_t i = 0; i < 3; i++) close(streams[i]);
    if (read(broken[0], &error, sizeof error) == sizeof error) {
        bool hidden = error == EACCES && !is_seen(spec.arguments.items[0]);
        fail(error == ENOENT || hidden ? NOT_FOUND : NOT_EXECUTABLE,
             text("cannot execute '%s' (%s)", spec.arguments.items[0], why(error)));
    }
    session = pid;
    tell(text("started"));
    start(serve, NULL);
    /* Without children there is no command either. */
    int status = INTERNAL << 8, ended;
    for (pid_t who = 0; who != pid; ) {
        who = wait(&ended);
        if (who == pid) status = ended;
        if (who < 0 && errno == ECHILD) break;
    }
    /* Whoever was left behind holds the streams open. */
    kill(-1, SIGKILL);
    while (wait(NULL) > 0 || errno == EINTR) {}
    for (size_t i = 0; i < carrier_count; i++) pthread_join(carriers[i], NULL);
    sync();
    if (WIFSIGNALED(status)) tell(text("killed %d", WTERMSIG(status)));
    else tell(text("exited %d", WEXITSTATUS(status)));
}

int main(void) {
    if (getpid() != 1) {
        fputs("satori-init is the init of a guest: 'satori run -- COMMAND' starts it\n", stderr);
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    early();
    read_spec();
    char *wrong = load_modules();
    open_control(wrong);
    if (*wrong) note(wrong);
    set_clock();
    enter_root();
    inside();
    command();
    finish();
}
