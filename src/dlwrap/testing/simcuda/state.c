/* The one lock, the calling thread's own state, fork, and the way out on misuse. */
#include "sim.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const Settings DEFAULTS = {
    .devices = 1,
    .host_register = 1,
    .read_only_register = 1,
    .driver_version = 13000,
    .compute_major = 9,
    .abort_on_dead_handle = 1,
    .strict = 1,
    .concurrent_managed = 1,
};

Sim sim = {.lock = PTHREAD_MUTEX_INITIALIZER};

static _Thread_local Thread self;
static uint64_t threads_seen;

/* The calling thread's state; its number is never used again, unlike the system's. */
Thread *thread_self(void) {
    if (self.id == 0)
        self.id = __atomic_add_fetch(&threads_seen, 1, __ATOMIC_RELAXED);
    return &self;
}

/* Take the lock. */
void lock(void) {
    pthread_mutex_lock(&sim.lock);
}

/* Give the lock back. */
void unlock(void) {
    pthread_mutex_unlock(&sim.lock);
}

/* Wake every thread that waits for the state to become another. */
void changed(void) {
    pthread_cond_broadcast(&sim.changed);
}

/* Wait, without the lock, until some other thread changes the state. */
void wait_for_change(void) {
    pthread_cond_wait(&sim.changed, &sim.lock);
}

/* Likewise, up to a moment; false once that is past. */
bool wait_for_change_until(const struct timespec *deadline) {
    return pthread_cond_timedwait(&sim.changed, &sim.lock, deadline) == 0;
}

/* The moment that is so many seconds from now. */
struct timespec deadline_in(double seconds) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    int64_t nanoseconds = at.tv_nsec + (int64_t)(seconds * 1e9);
    at.tv_sec += nanoseconds / 1000000000;
    at.tv_nsec = nanoseconds % 1000000000;
    return at;
}

/* Say on stderr what the program did wrong, and abort. */
void misuse(const char *format, ...) {
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    dprintf(STDERR_FILENO, "dlwrap.testing: %s: %s\n", self.call != NULL ? self.call : "control", text);
    abort();
}

/* Zeroed memory; without any left there is nothing a test could still learn. */
void *allocate(size_t nbytes) {
    void *memory = calloc(1, nbytes);
    if (memory == NULL)
        misuse("out of memory");
    return memory;
}

/* The child shares no GPU state with its parent: every call but the stateless ones is refused from now on. */
static void after_fork_in_child(void) {
    sim.forked = sim.forked || sim.initialized;
    unlock();
}

/* Runs when the library is loaded. */
__attribute__((constructor)) static void start(void) {
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&sim.changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_atfork(lock, unlock, after_fork_in_child);
    sim.settings = DEFAULTS;
    for (int device = 0; device < MAX_DEVICES; device++) {
        sim.primaries[device].device = device;
        sim.primaries[device].primary = true;
        sim.primaries[device].id = ++sim.next_id;
    }
}
