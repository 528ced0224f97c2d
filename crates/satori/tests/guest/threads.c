/* Threads of the guest, for the boot tests: contention on a mutex and on an atomic counter, a
 * queue with a condition variable, thread-local storage, floating point in each thread, and pages that
 * go away while the others run, so that their processors' TLBs have to be flushed. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { THREADS = 8, ROUNDS = 5000 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t filled = PTHREAD_COND_INITIALIZER;
static long under_lock, queue_sum, pushed, taken;
static int queue[ROUNDS];
static atomic_long counted;
static _Thread_local long own;

static void fail(const char *what) {
    printf("threads: %s\n", what);
    exit(1);
}

static void *worker(void *number) {
    double sum = 0;
    for (int i = 1; i <= ROUNDS; i++) {
        own++;
        atomic_fetch_add(&counted, 1);
        pthread_mutex_lock(&lock);
        under_lock++;
        pthread_mutex_unlock(&lock);
        sum += 1.0 / i * (double)(long)number;
    }
    if (own != ROUNDS) fail("a thread's own variable was shared");
    double *result = malloc(sizeof *result);
    *result = sum / (double)(long)number;
    return result;
}

static void *taker(void *unused) {
    (void)unused;
    pthread_mutex_lock(&lock);
    while (taken < ROUNDS) {
        while (taken == pushed) pthread_cond_wait(&filled, &lock);
        queue_sum += queue[taken++];
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

/* Maps, fills, protects and unmaps pages again and again. */
static void churn(void) {
    for (int i = 0; i < 200; i++) {
        char *page = mmap(NULL, 16384, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (page == MAP_FAILED) fail("no memory");
        memset(page, i, 16384);
        if (mprotect(page, 16384, PROT_READ) || page[5000] != (char)i) fail("a page was lost");
        munmap(page, 16384);
    }
}

int main(void) {
    pthread_t threads[THREADS], reader;
    for (long i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, worker, (void *)(i + 1))) fail("no thread");
    if (pthread_create(&reader, NULL, taker, NULL)) fail("no thread");
    churn();
    for (int i = 0; i < ROUNDS; i++) {
        pthread_mutex_lock(&lock);
        queue[pushed++] = i;
        pthread_cond_signal(&filled);
        pthread_mutex_unlock(&lock);
    }
    for (int i = 0; i < THREADS; i++) {
        double *sum;
        pthread_join(threads[i], (void **)&sum);
        if (*sum < 9.0945088 || *sum > 9.0945089) fail("a sum is wrong");
    }
    pthread_join(reader, NULL);
    if (under_lock != THREADS * ROUNDS) fail("the mutex let two in");
    if (counted != THREADS * ROUNDS) fail("an atomic addition was lost");
    if (queue_sum != (long)ROUNDS * (ROUNDS - 1) / 2) fail("the queue lost something");
    puts("threads fine");
    return 0;
}
