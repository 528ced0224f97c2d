/* Modules, what is mounted where, and the network card. */
#include "init.h"

/* Mounts without devices of the host's in it; without set-user-ID only where the file system is no folder. 0, or an error. */
static int mount_at(const char *source, const char *place, const char *kind, bool read_only, const char *options) {
    unsigned long flags = MS_NOSUID | MS_NODEV;
    if (!strcmp(kind, "devtmpfs") || !strcmp(kind, "devpts")) flags = MS_NOSUID;
    if (!strcmp(kind, "virtiofs")) flags = MS_NODEV;
    if (read_only) flags |= MS_RDONLY;
    return mount(source, place, kind, flags, options) ? errno : 0;
}

static int make_folders(const char *path) {
    char *copy = text("%s", path);
    for (char *at = copy + 1; ; at++) {
        char was = *at;
        if (was != '/' && was) continue;
        *at = 0;
        if (mkdir(copy, 0777) && errno != EEXIST && (!was || access(copy, F_OK))) return errno;
        if (!was) break;
        *at = was;
    }
    return 0;
}

bool is_folder(const char *path) {
    struct stat about;
    return !stat(path, &about) && S_ISDIR(about.st_mode);
}

/* Mounts on a folder that is made where the root has none. */
static int mount_in(const char *source, const char *place, const char *kind, bool read_only, const char *options) {
    int error = is_folder(place) ? 0 : make_folders(place);
    return error ? error : mount_at(source, place, kind, read_only, options);
}

void early(void) {
    static const char *const all[][3] = {
        { "devtmpfs", "/dev", "mode=0755" }, { "proc", "/proc", "" }, { "sysfs", "/sys", "" } };
    for (size_t i = 0; i < 3; i++) {
        mkdir(all[i][1], 0777);
        mount_at(all[i][0], all[i][1], all[i][0], false, all[i][2]);
    }
}

/* Loads the modules in their order; tells what went wrong, in words. */
char *load_modules(void) {
    char *wrong = "";
    for (size_t i = 0; i < spec.modules.count; i++) {
        char *options = spec.modules.items[i], *path = strsep(&options, " ");
        size_t length = strlen(path);
        int flags = length > 3 && !strcmp(path + length - 3, ".xz") ? 4 : 0;
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        int failed = fd < 0 || syscall(SYS_finit_module, fd, options ? options : "", flags);
        if (failed && errno != EEXIST)
            wrong = text("%s%sthe module %s was not loaded (%s)", wrong, *wrong ? "; " : "", path, why(errno));
        if (fd >= 0) close(fd);
    }
    return wrong;
}

void enter_root(void) {
    if (!spec.share_count) fail(INTERNAL, "no root is described");
    mkdir("/root", 0777);
    int error = mount_at(spec.shares[0].tag, "/root", "virtiofs", spec.shares[0].read_only, "");
    if (error)
        fail(INTERNAL, text("the root cannot be mounted (%s): the kernel lacks virtiofs or virtio_pci", why(error)));
    if (chdir("/root") || mount(".", "/", "none", MS_MOVE, NULL) || chroot(".") || chdir("/"))
        fail(INTERNAL, text("the root cannot be entered (%s)", why(errno)));
}

static int interface_up(const char *name) {
    struct ifreq request = { 0 };
    strncpy(request.ifr_name, name, IFNAMSIZ - 1);
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    int failed = fd < 0 || ioctl(fd, SIOCGIFFLAGS, &request);
    request.ifr_flags |= IFF_UP;
    failed = failed || ioctl(fd, SIOCSIFFLAGS, &request);
    int error = failed ? errno : 0;
    if (fd >= 0) close(fd);
    return error;
}

static struct sockaddr address(const char *of) {
    struct sockaddr_in in = { .sin_family = AF_INET };
    if (of && inet_pton(AF_INET, of, &in.sin_addr) != 1) wrong_spec("network");
    struct sockaddr any;
    memcpy(&any, &in, sizeof any);
    return any;
}

static int set_address(int fd, unsigned long request, const char *of) {
    struct ifreq interface = { 0 };
    strncpy(interface.ifr_name, "eth0", IFNAMSIZ - 1);
    interface.ifr_addr = address(of);
    return ioctl(fd, request, &interface);
}

static bool put_file(const char *path, const char *content) {
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    bool done = fd >= 0 && write_all(fd, content, strlen(content));
    if (fd >= 0) close(fd);
    return done;
}

/* Puts a name server into resolv.conf(5), which is the host's file and stays as it is. */
static int names(const char *server) {
    static const char conf[] = "/etc/resolv.conf", own[] = "/run/satori-resolv.conf";
    char *content = text("nameserver %s\n", server), file[PATH_MAX];
    if (realpath(conf, file))
        return put_file(own, content) && !mount(own, file, "none", MS_BIND, NULL) ? 0 : errno;
    /* A link into /run, where nothing of the host's is, or no file at all. */
    char link[PATH_MAX] = { 0 };
    if (readlink(conf, link, sizeof link - 1) < 0) strcpy(link, conf);
    char *path = link[0] == '/' ? link : text("/etc/%s", link);
    char *folder = text("%s", path);
    *strrchr(folder, '/') = 0;
    if (*folder) make_folders(folder);
    return put_file(path, content) ? 0 : errno;
}

/* Sets up the card with an address, a mask, a gateway and a name server, as many of them as there are. */
static void configure(char *addresses) {
    char *part[4] = { 0 };
    for (size_t count = 0; count < 4 && (part[count] = strtok(count ? NULL : addresses, " ")); count++) {}
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), error = 0;
    if (part[1] && (set_address(fd, SIOCSIFADDR, part[0]) || set_address(fd, SIOCSIFNETMASK, part[1])))
        return note(text("eth0: no address (%s)", why(errno)));
    if ((error = interface_up("eth0"))) return note(text("eth0: it is down (%s)", why(error)));
    if (part[2]) {
        struct rtentry route = { .rt_flags = RTF_UP | RTF_GATEWAY };
        route.rt_dst = route.rt_genmask = address(NULL);
        route.rt_gateway = address(part[2]);
        if (ioctl(fd, SIOCADDRT, &route)) return note(text("eth0: no way out (%s)", why(errno)));
    }
    if (part[3] && (error = names(part[3]))) note(text("eth0: no name server (%s)", why(error)));
    close(fd);
}

/* File systems of the guest's own: kind, place, options, and whether a kernel may be without it. */
static const struct {
    const char *kind, *place, *options;
    bool optional;
} INSIDE[] = {
    { "proc", "/proc", "", false },
    { "sysfs", "/sys", "", false },
    { "devtmpfs", "/dev", "mode=0755", false },
    { "devpts", "/dev/pts", "gid=5,mode=0620,ptmxmode=0666", false },
    { "tmpfs", "/dev/shm", "mode=1777", false },
    { "tmpfs", "/run", "mode=0755", false },
    { "cgroup2", "/sys/fs/cgroup", "", true },
    { "debugfs", "/sys/kernel/debug", "", true },
    { "tracefs", "/sys/kernel/tracing", "", true },
    { "securityfs", "/sys/kernel/security", "", true },
    { "bpf", "/sys/fs/bpf", "mode=0700", true },
};

/* Has modprobe(8), and the kernel where it calls that, find the kernel's modules. A root that has these keeps its own. */
static int offer_modules(void) {
    char *place = text("/lib/modules/%s", spec.release);
    /* A root without even that directory has no programs that look there, and stays as it was made. */
    if (!is_folder("/lib") || !access(text("%s/modules.dep.bin", place), F_OK)) return 0;
    int error;
    /* Over the root's own modules, which are of other kernels: a directory more would stay on the disk. */
    if (spec.kept && !is_folder(place)) {
        if (!is_folder("/lib/modules")) return 0;
        if ((error = mount_at("tmpfs", "/lib/modules", "tmpfs", false, "mode=0755"))) return error;
    }
    if ((error = make_folders(place))) return error;
    return mount_at(spec.modules_tag, place, "virtiofs", true, "");
}

/* Everything but the root, in the root. */
void inside(void) {
    int error;
    for (size_t i = 0; i < sizeof INSIDE / sizeof *INSIDE; i++) {
        error = mount_in(INSIDE[i].kind, INSIDE[i].place, INSIDE[i].kind, false, INSIDE[i].options);
        if (error && !INSIDE[i].optional)
            note(text("%s is not mounted on %s (%s)", INSIDE[i].kind, INSIDE[i].place, why(error)));
    }
    static const char *const links[][2] = { { "/proc/self/fd", "/dev/fd" },
                                            { "/proc/self/fd/0", "/dev/stdin" },
                                            { "/proc/self/fd/1", "/dev/stdout" },
                                            { "/proc/self/fd/2", "/dev/stderr" } };
    for (size_t i = 0; i < 4; i++)
        if (symlink(links[i][0], links[i][1])) continue;
    if (!mkdir("/run/lock", 0777)) chmod("/run/lock", 01777);
    char *runtime = text("/run/user/%u", spec.uid);
    error = make_folders(runtime);
    if (error || chmod(runtime, 0700) || chown(runtime, spec.uid, spec.gid))
        note(text("%s cannot be made (%s)", runtime, why(error ? error : errno)));
    for (size_t i = 1; i < spec.share_count; i++) {
        struct share *one = &spec.shares[i];
        if ((error = mount_in(one->tag, one->place, "virtiofs", one->read_only, "")))
            note(text("%s is not mounted on %s (%s)", one->tag, one->place, why(error)));
    }
    if (spec.release && (error = offer_modules())) note(text("modprobe finds no modules (%s)", why(error)));
    if (*spec.hostname && sethostname(spec.hostname, strlen(spec.hostname)))
        note(text("the host's name cannot be set (%s)", why(errno)));
    if ((error = interface_up("lo"))) note(text("the loopback interface is down (%s)", why(error)));
    if (spec.network) configure(spec.network);
}
