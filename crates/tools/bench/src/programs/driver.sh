#!/bin/bash
# Runs rows of programs, as a guest's init or in the same userland on the host, and tells what came out line by line as the static
# program does (crates/tools/bench/src/line.rs). The rows' functions follow behind.
export PATH=/usr/bin:/bin:/usr/sbin:/sbin HOME=/root LC_ALL=C TMPDIR=/tmp
what=$1
declare -A word=([budget]=200 [linger]=0)
shift
while [ $# -gt 1 ]; do
    word[${1#--}]=$2
    shift 2
done
if [ $$ = 1 ]; then
    busybox mount -t proc proc /proc
    busybox mount -t sysfs sys /sys
    busybox mount -t devtmpfs dev /dev
    busybox mount -t tmpfs tmp /tmp
    exec </dev/null
fi

say() { echo "satori-bench: $1"; }

finish() {
    if [ $$ = 1 ]; then
        busybox usleep $((word[linger] * 1000))
        busybox poweroff -f
    fi
    exit 0
}

# What is done before each sample, and not measured.
fresh() { :; }

# At least three samples, and as many as the budget has room for; their median is the row's time. A row that measures by itself leaves
# the nanoseconds of an operation in `own`.
measure() {
    local name=$1 times=() spent=0 first='' sum='' differing=false own a b status
    say "{\"start\":\"$name\"}"
    cd /tmp || return
    "prepare-$name" >/tmp/out 2>&1 </dev/null || {
        say "{\"row\":\"$name\",\"failed\":\"its files could not be made\"}"
        return
    }
    while [ ${#times[@]} -lt 3 ] || [ $((spent / 1000)) -lt "${word[budget]}" ]; do
        say "{\"start\":\"$name\"}"
        fresh
        own=''
        a=${EPOCHREALTIME/./}
        "row-$name" >/tmp/out 2>&1 </dev/null
        status=$?
        b=${EPOCHREALTIME/./}
        if [ $status != 0 ]; then
            say "{\"row\":\"$name\",\"failed\":\"it ended with status $status\"}"
            return
        fi
        sum=$(sha256sum </tmp/out)
        sum=${sum%% *}
        [ "${first:=$sum}" = "$sum" ] || differing=true
        times+=("${own:-$((b - a))000}")
        spent=$((spent + b - a))
    done
    # Numbers of one line each, in order, without a program: there are few.
    local i j least
    for ((i = 0; i < ${#times[@]}; i++)); do
        for ((j = i + 1; j < ${#times[@]}; j++)); do
            if [ "${times[j]}" -lt "${times[i]}" ]; then
                least=${times[j]} times[j]=${times[i]} times[i]=$least
            fi
        done
    done
    local median=${times[${#times[@]} / 2]}
    say "{\"row\":\"$name\",\"ns\":$median,\"median\":$median,\"samples\":${#times[@]},\"operations\":1,\"differing\":$differing,\"sum\":\"${sum:0:16}\"}"
}

main() {
    if [ "$what" = boot ]; then
        say '{"init":true,"tsc_khz":0}'
        finish
    fi
    read -r clock </sys/devices/system/clocksource/clocksource0/current_clocksource || clock=unknown
    say "{\"kernel\":\"$(uname -r)\",\"clocksource\":\"$clock\",\"cpus\":$(nproc)}"
    for name in ${word[rows]//,/ }; do
        measure "$name"
    done
    say '{"end":true}'
    finish
}

# What the rows work on.
text() {
    [ -s /tmp/text ] || cat /usr/lib/python3*/*.py | head -c 2097152 >/tmp/text
}
sources() {
    local count=$1 n
    mkdir -p /tmp/src
    for ((n = 0; n < count; n++)); do
        printf '#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\nstruct n%d { struct n%d *l, *r; int k; };\nstruct n%d *put%d(struct n%d *t, int k) { if (!t) { t = calloc(1, sizeof *t); if (t) t->k = k; return t; } if (k < t->k) t->l = put%d(t->l, k); else t->r = put%d(t->r, k); return t; }\nint sum%d(struct n%d *t) { return t ? sum%d(t->l) + t->k + sum%d(t->r) : 0; }\nint show%d(const char *s) { char b[64]; snprintf(b, sizeof b, "%%s %%zu", s, strlen(s)); return puts(b); }\n' \
            $n $n $n $n $n $n $n $n $n $n $n $n >/tmp/src/f$n.c
    done
}
machine_code() {
    cat >/tmp/mix.c <<'C'
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static int order(const void *a, const void *b) { int x = *(const int *)a, y = *(const int *)b; return (x > y) - (x < y); }
static int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
int main(void) {
    uint32_t h[8] = {1, 2, 3, 4, 5, 6, 7, 8}, total = 0;
    static int v[1 << 16];
    static char text[1 << 16];
    for (int round = 0; round < 12; round++) {
        for (int i = 0; i < 1 << 20; i++) {
            uint32_t t = h[i & 7] + ((h[(i + 3) & 7] >> 6) ^ (h[(i + 5) & 7] << 11)) + (uint32_t)i;
            h[i & 7] = t ^ (t >> 13);
        }
        for (int i = 0; i < 1 << 16; i++) v[i] = (int)(h[i & 7] * 2654435761u + (uint32_t)i * 40503u);
        qsort(v, 1 << 16, sizeof *v, order);
        for (int i = 0; i < (1 << 16) - 1; i++) text[i] = (char)('a' + (v[i] & 15));
        for (char *p = text; (p = strchr(p, 'e')); p++) total++;
        double x = 1.0;
        for (int i = 1; i < 200000; i++) x += 1.0 / (x + i);
        total += (uint32_t)(x * 1000) + (uint32_t)fib(24);
    }
    printf("%u %u\n", h[0], total);
    return 0;
}
C
    case $1 in
    -musl) musl-gcc -O2 -static -o /tmp/mix-musl /tmp/mix.c ;;
    *) gcc -O2 "$1" -o "/tmp/mix$1" /tmp/mix.c ;;
    esac
}
