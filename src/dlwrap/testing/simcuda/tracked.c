/* Host memory whose end is watched: freeing it while it is registered or work is pending on it aborts. */
#include "sim.h"

#include <stdlib.h>
#include <sys/mman.h>

static size_t alive, counts; /* allocations that are counted; how often counting began anew */

/* Map zeroed memory, and tell its count, which `dlwrap_sim_host_free` takes. Its pages go back to the system
 * when it is freed, so that late accesses fault. */
API void *dlwrap_sim_host_allocate(size_t nbytes, size_t *count) {
    void *start = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED)
        return NULL;
    lock();
    alive++;
    *count = counts;
    unlock();
    return start;
}

/* Unmap it. A child of fork() has only a copy, which nothing can be pending on. */
API void dlwrap_sim_host_free(void *start, size_t nbytes, size_t count) {
    lock();
    const Range *range = range_overlapping(start, nbytes);
    if (!sim.forked && range != NULL)
        misuse("freeing host memory %p while %p (%zu bytes) is registered", start, (void *)range->start,
               range->nbytes);
    if (!sim.forked && work_touches(start, nbytes))
        misuse("freeing host memory %p with work pending on it", start);
    munmap(start, nbytes);
    alive -= count == counts;
    unlock();
}

/* Count none of what there is: it may never be freed. */
API void dlwrap_sim_host_count_anew(void) {
    lock();
    alive = 0;
    counts++;
    unlock();
}

/* How many watched allocations there are, of those made since counting began. */
API size_t dlwrap_sim_host_alive(void) {
    lock();
    size_t count = alive;
    unlock();
    return count;
}
