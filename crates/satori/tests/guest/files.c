// What a program finds of a folder, as lines: run on the host and in a guest they are the same.
#include "files.h"

static void renames(void) {
    int a = put("a", "of a"), b = put("b", "of b");
    char buf[8] = {0};
    T(rename("a", "b"));
    show("b");
    st("a");
    fst("the old b", b);
    pread(b, buf, 7, 0);
    SAY("old b reads %s", buf);
    fst("a's", a);
    T(write(a, "+", 1));
    show("b");
    close(a);
    close(b);
    mkdir("d", 0755);
    mkdir("e", 0755);
    close(put("e/f", "x"));
    T(rename("d", "e"));
    T(rename("e", "d"));
    T(rename("d", "d/in"));
    T(rename("b", "d"));
    T(rename("d", "b"));
    T(rename("nothing", "b"));
    T(renameat2(AT_FDCWD, "b", AT_FDCWD, "d/f", RENAME_NOREPLACE));
    T(renameat2(AT_FDCWD, "b", AT_FDCWD, "d/f", RENAME_EXCHANGE));
    show("b");
    show("d/f");
    T(renameat2(AT_FDCWD, "b", AT_FDCWD, "d", RENAME_EXCHANGE));
    st("b");
    st("d");
    T(renameat2(AT_FDCWD, "b", AT_FDCWD, "d", RENAME_EXCHANGE));
    int d = open("d", O_RDONLY | O_DIRECTORY);
    T(rename("d", "g"));
    T(openat(d, "f", O_RDONLY) >= 0);
    T(rmdir("g"));
    T(unlink("g"));
    T(link("b", "b2"));
    T(rename("b", "b2"));
    st("b");
    st("b2");
    close(d);
    if (chdir("g") == 0) {
        T(rename("../g", "../h"));
        char c[4096];
        SAY("cwd ends in %s", strrchr(getcwd(c, sizeof c), '/'));
        chdir("..");
    }
}
static void unlinked(void) {
    int fd = put("gone", "some words");
    T(unlink("gone"));
    fst("unlinked", fd);
    T(write(fd, "+more", 5));
    char b[32] = {0};
    T(pread(fd, b, 31, 0));
    SAY("reads %s", b);
    T(ftruncate(fd, 4));
    fst("cut", fd);
    T(fchmod(fd, 0600));
    fst("its mode", fd);
    struct timespec t[2] = {{1, 2}, {3, 4}};
    T(futimens(fd, t));
    struct stat s;
    fstat(fd, &s);
    SAY("mtime %ld.%ld", (long)s.st_mtim.tv_sec, s.st_mtim.tv_nsec);
    char p[64];
    sprintf(p, "/proc/self/fd/%d", fd);
    int again = open(p, O_RDONLY);
    SAY("opened by /proc: %d", again >= 0);
    if (again >= 0) close(again);
    T(linkat(AT_FDCWD, p, AT_FDCWD, "back", AT_SYMLINK_FOLLOW));
    T(fsync(fd));
    T(close(fd));
    mkdir("dir", 0755);
    int d = open("dir", O_RDONLY | O_DIRECTORY);
    T(rmdir("dir"));
    O(openat(d, "x", O_CREAT | O_RDWR, 0600));
    T(mkdirat(d, "y", 0700));
    struct stat ds;
    T(fstat(d, &ds));
    SAY("links %lu", (long)ds.st_nlink);
    close(d);
    int tmp = open(".", O_TMPFILE | O_RDWR, 0600);
    SAY("O_TMPFILE %s", tmp < 0 ? name(errno) : "ok");
    if (tmp >= 0) {
        write(tmp, "tmp", 3);
        sprintf(p, "/proc/self/fd/%d", tmp);
        T(linkat(AT_FDCWD, p, AT_FDCWD, "fromtmp", AT_SYMLINK_FOLLOW));
        show("fromtmp");
        close(tmp);
    }
}
static int appends(void) {
    int fd = open("log", O_WRONLY | O_APPEND);
    for (int i = 0; i < 200; i++) write(fd, "line\n", 5);
    close(fd);
    return 0;
}
static void appending(void) {
    int fd = put("log", "first\n"), ap = open("log", O_RDWR | O_APPEND);
    lseek(ap, 0, SEEK_SET);
    T(write(ap, "second\n", 7));
    T(lseek(ap, 0, SEEK_CUR));
    T(pwrite(ap, "third\n", 6, 0));
    show("log");
    T(ftruncate(fd, 0));
    T(write(ap, "new\n", 4));
    show("log");
    close(fd);
    close(ap);
    fflush(stdout);
    pid_t p[3];
    for (int i = 0; i < 3; i++)
        if (!(p[i] = fork())) _exit(appends());
    for (int i = 0; i < 3; i++) waitpid(p[i], 0, 0);
    st("log");
    O(open("log", O_CREAT | O_EXCL | O_RDWR, 0600));
    O(open("log/x", O_RDONLY));
    O(open(".", O_WRONLY));
    O(open("log", O_RDONLY | O_DIRECTORY));
    O(open("none", O_RDONLY));
}
static int mapped_child(void) {
    int fd = open("map", O_RDWR);
    char *p = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) {
        SAY("child mmap %s", name(errno));
        return 1;
    }
    memcpy(p + 4096, "child", 6);
    return p[0] == 'P' ? 0 : 2;
}
static void maps(void) {
    int fd = open("map", O_CREAT | O_RDWR, 0644);
    T(ftruncate(fd, 8192));
    char *p = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) {
        SAY("mmap %s", name(errno));
        return;
    }
    p[0] = 'P';
    SAY("child says %d", child(mapped_child));
    SAY("child wrote %s", p + 4096);
    T(pwrite(fd, "Q", 1, 0));
    SAY("map sees %c", p[0]);
    p[1] = 'z';
    char b[3] = {0};
    pread(fd, b, 2, 0);
    SAY("read sees %s", b);
    T(msync(p, 8192, MS_SYNC));
    T(munmap(p, 8192));
    int again = open("map", O_RDONLY);
    T(pread(again, b, 2, 0));
    SAY("again %s", b);
    char *r = mmap(0, 4096, PROT_READ, MAP_PRIVATE, again, 0);
    SAY("private %c", r[0]);
    pwrite(fd, "R", 1, 0);
    SAY("private sees %c", r[0]);
    T(mmap(0, 4096, PROT_WRITE, MAP_SHARED, again, 0) == MAP_FAILED);
    close(fd);
    close(again);
    // A file grows behind its mapping.
    fd = open("grow", O_CREAT | O_RDWR, 0644);
    p = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    T(ftruncate(fd, 100));
    memcpy(p, "grown", 5);
    T(munmap(p, 4096));
    close(fd);
    show("grow");
    st("grow");
}
static void links(void) {
    close(put("f", "text"));
    T(symlink("f", "s"));
    T(symlink("loop", "loop"));
    T(symlink("nowhere", "dangling"));
    T(symlink("", "empty"));
    show("s");
    show("loop");
    show("dangling");
    char b[64] = {0};
    T(readlink("s", b, 63));
    SAY("%s", b);
    T(readlink("f", b, 63));
    O(open("s", O_RDONLY | O_NOFOLLOW));
    T(lchown("s", getuid(), getgid()));
    O(open("dangling", O_CREAT | O_EXCL | O_RDWR, 0600));
    close(open("dangling", O_CREAT | O_RDWR, 0600));
    st("nowhere");
    struct timespec t[2] = {{5, 6}, {7, 8}};
    T(utimensat(AT_FDCWD, "s", t, AT_SYMLINK_NOFOLLOW));
    struct stat s;
    lstat("s", &s);
    SAY("link's mtime %ld", (long)s.st_mtim.tv_sec);
    stat("s", &s);
    SAY("file's is its own: %d", s.st_mtim.tv_sec != 7);
    T(link("f", "h1"));
    T(link("f", "h2"));
    T(link("s", "hs"));
    st("hs");
    T(link("f", "h1"));
    mkdir("d", 0755);
    T(link("d", "hd"));
    st("f");
    T(truncate("h1", 2));
    show("h2");
    T(unlink("f"));
    st("h2");
    T(link("h2", "f"));
    st("f");
    struct stat x, y;
    stat("h1", &x);
    stat("h2", &y);
    SAY("one inode: %d", x.st_ino == y.st_ino && x.st_dev == y.st_dev);
    char long_name[300];
    memset(long_name, 'n', 299);
    long_name[255] = 0;
    T(close(open(long_name, O_CREAT | O_RDWR, 0600)));
    long_name[255] = 'n';
    long_name[256] = 0;
    O(open(long_name, O_CREAT | O_RDWR, 0600));
    T(close(open("\xff\xfe odd \n name", O_CREAT | O_RDWR, 0600)));
    st("\xff\xfe odd \n name");
    char text[4096];
    memset(text, 't', 4095);
    text[4095] = 0;
    T(symlink(text, "long"));
    st("long");
}
static void sparse(void) {
    int fd = open("sparse", O_CREAT | O_RDWR, 0644);
    T(ftruncate(fd, 1L << 30));
    T(pwrite(fd, "x", 1, 512L << 20));
    struct stat s;
    fstat(fd, &s);
    SAY("small: %d", s.st_blocks < 4096);
    T(lseek(fd, 0, SEEK_DATA) <= 512L << 20 && lseek(fd, 0, SEEK_DATA) > 0);
    T(lseek(fd, 0, SEEK_HOLE));
    T(lseek(fd, 1L << 30, SEEK_DATA));
    T(lseek(fd, 0, SEEK_END));
    T(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 512L << 20, 4096));
    char c = 'c';
    T(pread(fd, &c, 1, 512L << 20));
    SAY("punched: %d", c);
    T(fallocate(fd, 0, 1L << 30, 4096));
    fst("longer", fd);
    T(fallocate(fd, FALLOC_FL_KEEP_SIZE, (1L << 30) + 4096, 8192));
    fst("as long", fd);
    T(posix_fallocate(fd, 0, 100));
    T(ftruncate(fd, -1));
    T(pwrite(fd, "x", 1, -1));
    T(fallocate(fd, FALLOC_FL_ZERO_RANGE, 0, 10) <= 0);
    int out = open("copy", O_CREAT | O_RDWR, 0644);
    off_t from = 0;
    int small = put("small", "copied text");
    T(copy_file_range(small, &from, out, 0, 100, 0));
    show("copy");
    close(fd);
    close(out);
    close(small);
}
static int tries_flock(void) {
    int fd = open("lock", O_RDWR);
    T(flock(fd, LOCK_EX | LOCK_NB));
    T(flock(fd, LOCK_SH | LOCK_NB));
    return 0;
}
static int tries_fcntl(void) {
    int fd = open("lock", O_RDWR);
    struct flock l = {.l_type = F_WRLCK, .l_start = 0, .l_len = 10};
    T(fcntl(fd, F_SETLK, &l));
    l.l_start = 10;
    T(fcntl(fd, F_SETLK, &l));
    l.l_start = 0;
    l.l_type = F_WRLCK;
    T(fcntl(fd, F_GETLK, &l));
    SAY("held as %d, by its parent: %d", l.l_type, l.l_pid == getppid());
    return 0;
}
static int tries_ofd(void) {
    int fd = open("lock", O_RDWR);
    struct flock l = {.l_type = F_WRLCK, .l_len = 10};
    T(fcntl(fd, F_OFD_SETLK, &l));
    return 0;
}
static void locks(void) {
    int fd = put("lock", "0123456789abcdef");
    T(flock(fd, LOCK_EX));
    child(tries_flock);
    T(flock(fd, LOCK_SH));
    child(tries_flock);
    T(flock(fd, LOCK_UN));
    child(tries_flock);
    struct flock l = {.l_type = F_WRLCK, .l_len = 10};
    T(fcntl(fd, F_SETLK, &l));
    child(tries_fcntl);
    int other = open("lock", O_RDONLY);
    close(other);
    child(tries_fcntl);
    l.l_pid = 0;
    l.l_type = F_WRLCK;
    T(fcntl(fd, F_OFD_SETLK, &l));
    child(tries_ofd);
    T(fcntl(fd, F_SETLEASE, F_WRLCK) <= 0);
    close(fd);
    child(tries_ofd);
}
static void attributes(void) {
    int fd = put("x", "");
    char b[64];
    T(setxattr("x", "user.one", "value", 5, 0));
    T(setxattr("x", "user.one", "v", 1, XATTR_CREATE));
    T(setxattr("x", "user.two", "w", 1, XATTR_REPLACE));
    T(getxattr("x", "user.one", b, 64));
    T(getxattr("x", "user.one", b, 2));
    T(getxattr("x", "user.none", b, 64));
    T(fsetxattr(fd, "user.two", "", 0, 0));
    T(listxattr("x", b, 64));
    T(removexattr("x", "user.one"));
    T(removexattr("x", "user.one"));
    T(getxattr("x", "user.two", b, 64));
    mkdir("dx", 0755);
    T(setxattr("dx", "user.d", "y", 1, 0));
    symlink("x", "sx");
    T(lsetxattr("sx", "user.l", "y", 1, 0));
    T(setxattr("x", "bad.name", "y", 1, 0));
    T(unlink("x"));
    T(fgetxattr(fd, "user.two", b, 64));
    T(fsetxattr(fd, "user.three", "3", 1, 0));
    close(fd);
}
static void modes(void) {
    umask(027);
    close(open("m", O_CREAT | O_RDWR, 0666));
    st("m");
    mkdir("md", 0777);
    st("md");
    umask(022);
    T(chmod("m", 04755));
    st("m");
    T(chmod("md", 03777));
    st("md");
    close(open("md/in", O_CREAT | O_RDWR, 0644));
    mkdir("md/sub", 0755);
    st("md/in");
    st("md/sub");
    int w = open("m", O_WRONLY);
    T(write(w, "x", 1));
    close(w);
    T(mkfifo("p", 0640));
    st("p");
    T(mknod("sock", S_IFSOCK | 0600, 0));
    st("sock");
    T(access("m", R_OK | W_OK | X_OK));
    T(chmod("m", 0));
    st("m");
    O(open("p", O_WRONLY | O_NONBLOCK));
    int pr = open("p", O_RDONLY | O_NONBLOCK), pw = open("p", O_WRONLY | O_NONBLOCK);
    T(write(pw, "pipe", 4));
    char b[8] = {0};
    T(read(pr, b, 8));
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    strcpy(a.sun_path, "s.sock");
    int l = socket(AF_UNIX, SOCK_STREAM, 0), c = socket(AF_UNIX, SOCK_STREAM, 0);
    T(bind(l, (void *)&a, sizeof a));
    T(listen(l, 1));
    T(connect(c, (void *)&a, sizeof a));
    st("s.sock");
    T(unlink("s.sock"));
    T(connect(socket(AF_UNIX, SOCK_STREAM, 0), (void *)&a, sizeof a));
    int sf = open("once", O_CREAT | O_RDWR, 0000);
    T(write(sf, "x", 1));
    st("once");
    O(open("no/way", O_CREAT | O_RDWR, 0600));
    T(mkdir("md", 0700));
    T(rmdir("md"));
    T(rmdir("m"));
    T(unlink("md"));
    T(rmdir("."));
    T(rmdir("md/.."));
    struct statvfs v;
    T(statvfs(".", &v));
    SAY("room: %d, names of %lu", v.f_blocks > 0, v.f_namemax);
}
static void times(void) {
    int fd = put("t", "x");
    struct timespec t[2] = {{1000000000, 123456789}, {2000000000, 987654321}};
    T(utimensat(AT_FDCWD, "t", t, 0));
    struct stat s;
    stat("t", &s);
    SAY("%ld.%09ld %ld.%09ld", (long)s.st_atim.tv_sec, s.st_atim.tv_nsec, (long)s.st_mtim.tv_sec, s.st_mtim.tv_nsec);
    t[0].tv_nsec = UTIME_OMIT;
    t[1].tv_sec = -5;
    t[1].tv_nsec = 0;
    T(utimensat(AT_FDCWD, "t", t, 0));
    stat("t", &s);
    SAY("%ld %ld", (long)s.st_atim.tv_sec, (long)s.st_mtim.tv_sec);
    t[1].tv_nsec = 2000000000;
    T(utimensat(AT_FDCWD, "t", t, 0));
    T(write(fd, "y", 1));
    fstat(fd, &s);
    SAY("written now: %d", s.st_mtim.tv_sec > 1600000000);
    long before = time(0) - 3;
    close(fd);
    stat("t", &s);
    SAY("and still: %d", s.st_mtim.tv_sec > before);
    t[0].tv_sec = 1;
    t[0].tv_nsec = 0;
    t[1].tv_sec = 2;
    t[1].tv_nsec = 0;
    close(put("dir-t", ""));
    mkdir("td", 0755);
    utimensat(AT_FDCWD, "td", t, 0);
    close(put("td/x", ""));
    stat("td", &s);
    SAY("a folder's time moves: %d", s.st_mtim.tv_sec > before);
    // Written and then given another time while it is open, as tar and cp -p do.
    fd = put("tar", "content");
    t[0].tv_sec = 11;
    t[1].tv_sec = 22;
    T(futimens(fd, t));
    close(fd);
    stat("tar", &s);
    SAY("kept %ld", (long)s.st_mtim.tv_sec);
    fd = open("tar", O_RDWR);
    char *p = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    p[0] = 'C';
    munmap(p, 4096);
    close(fd);
    show("tar");
}
static int by_name(const void *a, const void *b) { return strcmp(*(char **)a, *(char **)b); }
static void folders(void) {
    mkdir("many", 0755);
    char n[64];
    for (int i = 0; i < 3000; i++) {
        sprintf(n, "many/file-with-a-longer-name-%d", i);
        int fd = open(n, O_CREAT | O_WRONLY, 0644);
        if (fd < 0) {
            SAY("open %s", name(errno));
            return;
        }
        close(fd);
    }
    DIR *d = opendir("many");
    int count = 0, dots = 0, kinds = 0;
    struct dirent *e;
    while ((e = readdir(d))) {
        if (e->d_name[0] == '.') dots++;
        else count++;
        kinds += e->d_type == DT_REG;
        if (count == 1000) { unlink("many/file-with-a-longer-name-5"); }
    }
    SAY("%d dots, files or one less: %d, all of them regular: %d", dots, count == 3000 || count == 2999,
        kinds == count);
    rewinddir(d);
    count = 0;
    while ((e = readdir(d))) count++;
    SAY("again %d", count);
    rewinddir(d);
    for (int i = 0; i < 100; i++) readdir(d);
    long at = telldir(d);
    char was[256];
    strcpy(was, readdir(d)->d_name);
    for (int i = 0; i < 500; i++) readdir(d);
    seekdir(d, at);
    SAY("told place: %d", !strcmp(was, readdir(d)->d_name));
    closedir(d);
    d = opendir("many");
    int removed = 0;
    while ((e = readdir(d)))
        if (e->d_name[0] != '.') {
            snprintf(n, sizeof n, "many/%s", e->d_name);
            removed += unlink(n) == 0;
        }
    closedir(d);
    SAY("removed while read: %d", removed);
    T(rmdir("many"));
    char deep[] = "d1";
    int depth = 0;
    for (; depth < 200; depth++)
        if (mkdir(deep, 0755) || chdir(deep)) break;
    SAY("deep %d", depth);
    char c[8192];
    SAY("its name has %d", getcwd(c, sizeof c) != 0);
    for (; depth > 0; depth--) {
        chdir("..");
        rmdir(deep);
    }
    char *names[64];
    count = 0;
    mkdir("ls", 0755);
    for (int i = 0; i < 5; i++) {
        sprintf(n, "ls/%c", 'e' - i);
        close(open(n, O_CREAT | O_RDWR, 0600));
    }
    T(rename("ls/a", "ls/z"));
    T(unlink("ls/b"));
    T(link("ls/c", "ls/y"));
    d = opendir("ls");
    while ((e = readdir(d))) names[count++] = strdup(e->d_name);
    qsort(names, count, sizeof *names, by_name);
    for (int i = 0; i < count; i++) printf(" %s", names[i]);
    SAY(".");
    closedir(d);
    T(mkdir("ls/", 0755));
    T(mkdir("new/", 0755));
    O(open("ls/c/", O_RDONLY));
    T(close(open("ls/./../ls//c", O_RDONLY)));
}
static void watched(void) {
    int in = inotify_init1(IN_NONBLOCK);
    mkdir("w", 0755);
    T(inotify_add_watch(in, "w",
                        IN_CREATE | IN_DELETE | IN_MODIFY | IN_CLOSE_WRITE | IN_MOVED_FROM | IN_MOVED_TO | IN_ATTRIB));
    close(put("w/a", "x"));
    rename("w/a", "w/b");
    chmod("w/b", 0600);
    unlink("w/b");
    char b[4096];
    long n = read(in, b, sizeof b);
    for (long at = 0; at < n;) {
        struct inotify_event *e = (void *)(b + at);
        SAY("event %x %s", e->mask, e->len ? e->name : "");
        at += sizeof *e + e->len;
    }
}
static void big(void) {
    static char block[1 << 20], back[1 << 20];
    unsigned x = 1;
    int fd = open("big", O_CREAT | O_RDWR, 0644);
    for (int i = 0; i < 24; i++) {
        for (int j = 0; j < (1 << 20); j += 4) {
            x = x * 1664525 + 1013904223;
            memcpy(block + j, &x, 4);
        }
        if (write(fd, block, sizeof block) != sizeof block) {
            SAY("short");
            return;
        }
    }
    int again = open("big", O_RDONLY);
    x = 1;
    int same = 1;
    for (int i = 0; i < 24; i++) {
        if (read(again, back, sizeof back) != sizeof back) {
            SAY("short read");
            break;
        }
        for (int j = 0; j < (1 << 20); j += 4) {
            x = x * 1664525 + 1013904223;
            same &= !memcmp(back + j, &x, 4);
        }
    }
    SAY("same %d", same);
    T(read(again, back, 10));
    close(fd);
    close(again);
    void *al;
    posix_memalign(&al, 4096, 65536);
    memset(al, 'd', 65536);
    fd = open("direct", O_CREAT | O_RDWR | O_DIRECT, 0644);
    SAY("O_DIRECT %d", fd >= 0);
    if (fd >= 0) {
        T(pwrite(fd, al, 65536, 4096));
        memset(al, 0, 65536);
        T(pread(fd, al, 65536, 4096));
        SAY("%c", ((char *)al)[65535]);
        int buffered = open("direct", O_RDWR);
        T(pwrite(buffered, "B", 1, 8192));
        T(pread(fd, al, 4096, 8192));
        SAY("direct sees %c", *(char *)al);
        close(buffered);
        close(fd);
    }
    T(truncate("direct", 5000));
    st("direct");
    struct iovec v[3] = {{"a", 1}, {"", 0}, {"bc", 2}};
    fd = open("vec", O_CREAT | O_RDWR, 0644);
    T(writev(fd, v, 3));
    show("vec");
    T(lseek(fd, 100, SEEK_SET));
    T(write(fd, "end", 3));
    fst("vec", fd);
    O(open("vec", O_RDWR | O_TRUNC));
    fst("vec", fd);
    close(fd);
}
int main(void) {
    struct {
        const char *name;
        void (*f)(void);
    } all[] = {{"renames", renames}, {"unlinked", unlinked}, {"appending", appending}, {"maps", maps},
               {"links", links},     {"sparse", sparse},     {"locks", locks},         {"attributes", attributes},
               {"modes", modes},     {"times", times},       {"folders", folders},     {"watched", watched},
               {"big", big}};
    setvbuf(stdout, 0, _IOLBF, 0);
    umask(022);
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++) {
        SAY("== %s", all[i].name);
        mkdir(all[i].name, 0755);
        if (chdir(all[i].name)) {
            SAY("chdir %s", name(errno));
            continue;
        }
        all[i].f();
        fflush(stdout);
        if (chdir("..")) return 1;
    }
    SAY("== end");
    return 0;
}
