/* What the host wants: `key=value` with a NUL behind each. An unknown key is an error: host and init are of one build. */
#include "init.h"

struct spec spec = { .folder = "/", .hostname = "" };

void wrong_spec(const char *key) {
    fail(INTERNAL, text("the description of the command is wrong at '%s'", key));
}

static unsigned number(const char *key, const char *value) {
    char *end;
    unsigned long read = strtoul(value, &end, 10);
    if (!*value || *end || read > UINT_MAX) wrong_spec(key);
    return (unsigned)read;
}

static void parse_one(char *key, char *value) {
    if (!strcmp(key, "mount")) {
        char *tag = strsep(&value, ":"), *mode = strsep(&value, ":");
        if (!value || !mode || spec.share_count == sizeof spec.shares / sizeof *spec.shares) wrong_spec(key);
        spec.shares[spec.share_count++] =
            (struct share){ .tag = tag, .place = value, .read_only = !strcmp(mode, "ro") };
    } else if (!strcmp(key, "module")) {
        put(&spec.modules, value);
    } else if (!strcmp(key, "modules-share")) {
        spec.release = strsep(&value, ":");
        spec.modules_tag = strsep(&value, ":");
        if (!value || !spec.modules_tag) wrong_spec(key);
        spec.kept = !strcmp(value, "kept");
    } else if (!strcmp(key, "arg")) {
        put(&spec.arguments, value);
    } else if (!strcmp(key, "env")) {
        put(&spec.environment, value);
    } else if (!strcmp(key, "group")) {
        put(&spec.groups, value);
    } else if (!strcmp(key, "cwd")) {
        spec.folder = value;
    } else if (!strcmp(key, "hostname")) {
        spec.hostname = value;
    } else if (!strcmp(key, "network")) {
        spec.network = value;
    } else if (!strcmp(key, "umask")) {
        spec.umask = number(key, value);
    } else if (!strcmp(key, "uid")) {
        spec.uid = number(key, value);
    } else if (!strcmp(key, "gid")) {
        spec.gid = number(key, value);
    } else if (!strcmp(key, "input") && !strcmp(value, "none")) {
        spec.no_input = true;
    } else if (!strcmp(key, "terminal")) {
        spec.terminal = sscanf(value, "%hu %hu", &spec.rows, &spec.columns) == 2;
        if (!spec.terminal) wrong_spec(key);
    } else {
        wrong_spec(key);
    }
}

void read_spec(void) {
    size_t length;
    char *bytes = whole("/satori/spec", &length);
    if (!bytes) fail(INTERNAL, text("/satori/spec is missing (%s)", why(errno)));
    put(&spec.environment, NULL);
    spec.environment.count = 0;
    for (char *at = bytes; at < bytes + length; ) {
        char *next = at + strlen(at) + 1, *value = strchr(at, '=');
        if (!value) wrong_spec(at);
        *value++ = 0;
        parse_one(at, value);
        at = next;
    }
}
