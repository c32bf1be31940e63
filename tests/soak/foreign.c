/* Threads without Python, as the worker threads of a GPU framework: they take imported tensors, look at them,
 * and drop them at random moments, in random order. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

enum { CAPACITY = 256, MAX_THREADS = 64, LONGEST_PAUSE = 500000 /* ns */ };

typedef struct Tensor {
    void *managed;
    void (*deleter)(void *managed);
    const volatile unsigned char *data;
    size_t nbytes;
    unsigned char expected; /* of every byte */
} Tensor;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static Tensor tensors[CAPACITY];
static int held;
static bool stopping;
static long deleted, wrong;
static pthread_t threads[MAX_THREADS];
static int thread_count;

/* Whether the memory is still there and what it was; memory that is not ends the process. */
static bool is_right(const Tensor *tensor) {
    return tensor->nbytes == 0 ||
           (tensor->data[0] == tensor->expected && tensor->data[tensor->nbytes - 1] == tensor->expected);
}

/* Takes a tensor at random, or none when all is done. */
static bool take(Tensor *tensor, unsigned *seed) {
    pthread_mutex_lock(&lock);
    while (held == 0 && !stopping) {
        pthread_cond_wait(&changed, &lock);
    }
    bool found = held > 0;
    if (found) {
        int index = rand_r(seed) % held;
        *tensor = tensors[index];
        tensors[index] = tensors[--held];
    }
    pthread_mutex_unlock(&lock);
    return found;
}

/* Counts a tensor that was looked at and dropped. */
static void count(bool right) {
    pthread_mutex_lock(&lock);
    deleted++;
    wrong += !right;
    pthread_mutex_unlock(&lock);
}

/* What a thread does. */
static void *drop_tensors(void *argument) {
    unsigned seed = (unsigned)(uintptr_t)argument;
    Tensor tensor;
    while (take(&tensor, &seed)) {
        struct timespec pause = {0, rand_r(&seed) % LONGEST_PAUSE};
        nanosleep(&pause, NULL);
        bool right = is_right(&tensor);
        tensor.deleter(tensor.managed);
        count(right);
    }
    return NULL;
}

/* Starts so many threads; returns how many there are. */
int foreign_start(int count_wanted, unsigned seed) {
    stopping = false;
    deleted = wrong = 0;
    while (thread_count < count_wanted && thread_count < MAX_THREADS &&
           pthread_create(&threads[thread_count], NULL, drop_tensors,
                          (void *)(uintptr_t)(seed + (unsigned)thread_count)) == 0) {
        thread_count++;
    }
    return thread_count;
}

/* Gives a tensor away; false when the threads have too many already. */
bool foreign_give(void *managed, void (*deleter)(void *), const void *data, size_t nbytes,
                  unsigned char expected) {
    pthread_mutex_lock(&lock);
    bool room = held < CAPACITY;
    if (room) {
        tensors[held++] = (Tensor){managed, deleter, data, nbytes, expected};
        pthread_cond_signal(&changed);
    }
    pthread_mutex_unlock(&lock);
    return room;
}

/* Waits until every tensor is dropped and every thread has ended; returns how many were dropped. */
long foreign_stop(void) {
    pthread_mutex_lock(&lock);
    stopping = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    while (thread_count > 0) {
        pthread_join(threads[--thread_count], NULL);
    }
    return deleted;
}

/* How many tensors had other bytes than they should. */
long foreign_wrong(void) {
    return wrong;
}
