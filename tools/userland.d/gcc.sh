# gcc compiles a program that checks itself, at several levels; every level has to agree with the
# unoptimised one, bit for bit.
set -euo pipefail
cat >self.c <<'C'
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t state = 88172645463325252ull;
static uint64_t next(void) { state ^= state << 13; state ^= state >> 7; return state ^= state << 17; }
static uint64_t mix(uint64_t h, uint64_t v) { return (h ^ v) * 1099511628211ull; }

static uint64_t integers(void) {
    uint64_t h = 1469598103934665603ull;
    for (int i = 0; i < 200000; i++) {
        uint64_t a = next(), b = next() | 1;
        h = mix(h, a / b + a % b);
        h = mix(h, (uint64_t)((int64_t)a / (int32_t)(b | 3)));
        h = mix(h, (uint64_t)(((unsigned __int128)a * b) >> 64));
        h = mix(h, (uint64_t)__builtin_popcountll(a) + (uint64_t)__builtin_clzll(b) + (uint64_t)__builtin_ctzll(b));
        h = mix(h, (a << (b & 63)) | (a >> (64 - (b & 63) & 63)));
        h = mix(h, (uint16_t)((int16_t)a * (int8_t)b) + (uint8_t)(a / 3));
    }
    return h;
}
static uint64_t bits(double d) { uint64_t u; memcpy(&u, &d, 8); return u; }
static uint64_t floats(void) {
    uint64_t h = 7;
    for (int i = 0; i < 100000; i++) {
        double a = (double)(int64_t)next() / 1e12, b = (double)(int64_t)next() / 1e15;
        float f = (float)a;
        long double l = (long double)a / b;
        h = mix(h, bits(a * b) ^ bits(a / b) ^ bits(sqrt(fabs(a))));
        h = mix(h, (uint64_t)(int64_t)(f * 0.5f) ^ bits(floor(a)) ^ bits((double)l));
        h = mix(h, (uint64_t)(a < b) + 2 * (uint64_t)isnan(a - b) + 4 * (uint64_t)signbit(f));
        h = mix(h, bits((double)(uint32_t)next()) ^ bits((double)next()));
    }
    return h;
}
static uint64_t vectors(void) {
    typedef int32_t v4 __attribute__((vector_size(16)));
    typedef int16_t v8 __attribute__((vector_size(16)));
    v4 a = {1, 2, 3, 4}, b = {5, -6, 7, -8};
    v8 c = {1, -2, 3, -4, 5, -6, 7, -8};
    for (int i = 0; i < 100000; i++) {
        a = a * b + (a >> 3) - (b << 1);
        b ^= a > b;
        c = c * (v8)a + (v8)(c < (v8)b);
        b += (v4)c;
    }
    uint64_t h = 3;
    for (int i = 0; i < 4; i++) h = mix(mix(h, (uint32_t)a[i]), (uint32_t)b[i]);
    return h;
}
static uint64_t strings(void) {
    static char x[70000], y[70000];
    uint64_t h = 5;
    for (int i = 0; i < 2000; i++) {
        size_t n = next() % 60000, o = next() % 5000;
        memset(x + o, (int)(n & 0xff), n);
        memcpy(y + (o ^ 1), x + o, n);
        memmove(y + o + 3, y + o, n);
        x[o + n] = 0;
        h = mix(h, strlen(x + o) + (size_t)(memcmp(x, y, 60000) > 0));
        h = mix(h, memchr(y, 7, sizeof y) ? (uint64_t)((char *)memchr(y, 7, sizeof y) - y) : 1);
    }
    return h;
}
static jmp_buf jump;
static int depth(int n) { if (n == 0) longjmp(jump, 42); return depth(n - 1) + 1; }
static _Atomic uint64_t count;
static void *worker(void *p) { for (int i = 0; i < 100000; i++) count += (uintptr_t)p; return 0; }
static int compare(const void *a, const void *b) { return *(const int *)a < *(const int *)b ? -1 : *(const int *)a > *(const int *)b; }

int main(void) {
    printf("%016llx %016llx %016llx %016llx\n", (unsigned long long)integers(), (unsigned long long)floats(),
        (unsigned long long)vectors(), (unsigned long long)strings());
    int *v = malloc(sizeof(int) * 100000);
    for (int i = 0; i < 100000; i++) v[i] = (int)next();
    qsort(v, 100000, sizeof(int), compare);
    for (int i = 1; i < 100000; i++) if (v[i - 1] > v[i]) return 1;
    int jumped = setjmp(jump);
    if (!jumped) depth(1000);
    pthread_t t[4];
    for (uintptr_t i = 0; i < 4; i++) pthread_create(&t[i], 0, worker, (void *)(i + 1));
    for (int i = 0; i < 4; i++) pthread_join(t[i], 0);
    printf("%d %llu\n", jumped, (unsigned long long)count);
    return 0;
}
C
gcc -O0 -pthread -o self self.c -lm
./self >expected
tail -n 1 expected | grep -q '^42 1000000$'
for flags in -O1 -O2 -O3 -Os '-O3 -msse4.2 -mpopcnt' '-O2 -mfpmath=387 -mno-sse4' '-O2 -fsanitize=undefined'; do
    # The x87's wider intermediate results may differ: those runs need only not fail.
    gcc $flags -pthread -o self self.c -lm
    ./self >actual
    case $flags in *387*) ;; *) cmp expected actual ;; esac
done
