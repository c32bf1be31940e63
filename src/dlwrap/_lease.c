/* See the header. */
#define _GNU_SOURCE
#include "_lease.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <time.h>

atomic_llong live_graphs;

static atomic_llong leases_made;
static atomic_llong exports_begun; /* changed with the lock only */
static atomic_llong exports_ended;
static _Atomic(Lease *) released;
static sem_t released_signal;
static _Atomic(Export *) retired;
static Export *spare;
static atomic_flag spare_lock = ATOMIC_FLAG_INIT;

/* ---- release: no interpreter, no allocation, no lock ---- */

void push_released(Lease *lease) {
    Lease *head = atomic_load(&released);
    do {
        lease->next = head;
    } while (!atomic_compare_exchange_weak(&released, &head, lease));
    if (head == NULL) {
        sem_post(&released_signal);
    }
}

void drop_hold(Lease *lease) {
    if (atomic_fetch_sub(&lease->holders, 1) == 1) {
        push_released(lease);
    }
}

long long take_only_hold(Lease *lease) {
    long long holders = 1;
    return atomic_compare_exchange_strong(&lease->holders, &holders, 0) ? 0 : holders - 1;
}

void retire(Export *export, uintptr_t generation) {
    if (generation % 2 == 1 ||
        !atomic_compare_exchange_strong(&export->generation, &generation, generation + 1)) {
        return;
    }
    Lease *lease = export->lease;
    atomic_fetch_add(&exports_ended, 1);
    Export *head = atomic_load(&retired);
    do {
        export->next = head;
    } while (!atomic_compare_exchange_weak(&retired, &head, export));
    drop_hold(lease);
}

/* The deleter of legacy capsules. */
static void delete_legacy(DLManagedTensor *tensor) {
    Export *export = tensor->manager_ctx;
    retire(export, atomic_load(&export->generation));
}

/* The deleter of versioned capsules. */
static void delete_versioned(DLManagedTensorVersioned *tensor) {
    Export *export = tensor->manager_ctx;
    retire(export, atomic_load(&export->generation));
}

void drop_graph(void *argument) {
    Lease *lease = argument;
    atomic_fetch_sub(&lease->graphs, 1);
    atomic_fetch_sub(&live_graphs, 1);
    drop_hold(lease);
}

/* ---- lending ---- */

Lease *new_lease(int32_t ndim) {
    size_t room = (size_t)(ndim > 0 ? ndim : 1);
    Lease *lease = calloc(1, sizeof(Lease) + 2 * room * sizeof(int64_t));
    if (lease != NULL) {
        atomic_fetch_add(&leases_made, 1);
        atomic_init(&lease->holders, 1);
        atomic_init(&lease->references, 2);
        lease->ndim = ndim;
        lease->strides = lease->shape + room;
    }
    return lease;
}

void discard_lease(Lease *lease) {
    atomic_fetch_sub(&leases_made, 1);
    free(lease);
}

long long count_leases(void) {
    return atomic_load(&leases_made);
}

bool add_hold(Lease *lease) {
    long long holders = atomic_load(&lease->holders);
    while (holders > 0) {
        if (atomic_compare_exchange_weak(&lease->holders, &holders, holders + 1)) {
            return true;
        }
    }
    return false;
}

void share_memory(Lease *lease) {
    atomic_fetch_add(&lease->references, 1);
}

void drop_memory(Lease *lease) {
    if (atomic_fetch_sub(&lease->references, 1) == 1) {
        free(lease);
    }
}

int64_t count_bytes(const Lease *lease) {
    int64_t elements = 1;
    for (int32_t i = 0; i < lease->ndim; i++) {
        elements *= lease->shape[i];
    }
    return elements * lease->dtype.bits / 8 * lease->dtype.lanes;
}

void note_uses(Lease *lease, int uses) {
    if ((atomic_load(&lease->uses) & uses) != uses) {
        atomic_fetch_or(&lease->uses, uses);
    }
}

/* Takes a spare export, or allocates one; NULL when out of memory. */
static Export *take_export(void) {
    while (atomic_flag_test_and_set(&spare_lock)) {
    }
    if (spare == NULL) {
        spare = atomic_exchange(&retired, NULL);
    }
    Export *export = spare;
    if (export != NULL) {
        spare = export->next;
    } else if ((export = calloc(1, sizeof(Export))) != NULL) {
        atomic_init(&export->generation, 1);
    }
    if (export != NULL) {
        long long begun = atomic_load_explicit(&exports_begun, memory_order_relaxed);
        atomic_store_explicit(&exports_begun, begun + 1, memory_order_release);
    }
    atomic_flag_clear_explicit(&spare_lock, memory_order_release);
    return export;
}

DLTensor describe(Lease *lease, bool on_host) {
    return (DLTensor){
        .data = on_host ? lease->host_data : lease->device_data,
        .device = {on_host ? DL_CPU : DL_CUDA, on_host ? 0 : lease->device_id},
        .ndim = lease->ndim,
        .dtype = lease->dtype,
        .shape = lease->shape,
        .strides = lease->strides,
        .byte_offset = 0,
    };
}

/* Fills the fields that only versioned capsules have. */
static void fill_versioned(Export *export, Lease *lease, bool on_host, bool copied, unsigned minor) {
    export->tensor.versioned = (DLManagedTensorVersioned){
        .version = {DLPACK_MAJOR, minor < DLPACK_MINOR ? minor : DLPACK_MINOR},
        .manager_ctx = export,
        .deleter = delete_versioned,
        .flags = (lease->read_only ? DL_FLAG_READ_ONLY : 0) | (copied ? DL_FLAG_IS_COPIED : 0),
        .dl_tensor = describe(lease, on_host),
    };
}

Export *begin_export(Lease *lease, int minor, bool on_host, bool copied) {
    Export *export = take_export();
    if (export == NULL) {
        return NULL;
    }
    export->lease = lease;
    if (minor < 0) {
        export->tensor.legacy = (DLManagedTensor){describe(lease, on_host), export, delete_legacy};
    } else {
        fill_versioned(export, lease, on_host, copied, (unsigned)minor);
    }
    /* Nobody else has it yet; whoever gets it sees the fields too. */
    uintptr_t generation = atomic_load_explicit(&export->generation, memory_order_relaxed);
    atomic_store_explicit(&export->generation, generation + 1, memory_order_release);
    return export;
}

long long count_live_exports(void) {
    long long ended = atomic_load(&exports_ended);
    return atomic_load(&exports_begun) - ended;
}

/* ---- the released list, as the lifetime manager sees it ---- */

/* A thread that the child of a fork does not have may have had the lock, and left the list halfway. */
static void renew_spare(void) {
    spare = NULL;
    atomic_flag_clear(&spare_lock);
}

int prepare_released(void) {
    int error = pthread_atfork(NULL, NULL, renew_spare);
    if (error != 0) {
        return error;
    }
    return sem_init(&released_signal, 0, 0) == 0 ? 0 : errno;
}

bool is_any_released(void) {
    return atomic_load(&released) != NULL;
}

#pragma weak sem_clockwait

/* A clock that is set back must not stretch the wait where the C library can help. */
void wait_for_released(double seconds) {
    if (seconds < 0) {
        while (sem_wait(&released_signal) != 0 && errno == EINTR) {
        }
        return;
    }
    clockid_t clock = sem_clockwait != NULL ? CLOCK_MONOTONIC : CLOCK_REALTIME;
    struct timespec until;
    clock_gettime(clock, &until);
    until.tv_sec += (time_t)seconds;
    until.tv_nsec += (long)((seconds - (double)(time_t)seconds) * 1e9);
    if (until.tv_nsec >= 1000000000L) {
        until.tv_sec += 1;
        until.tv_nsec -= 1000000000L;
    }
    if (sem_clockwait != NULL) {
        sem_clockwait(&released_signal, clock, &until);
    } else {
        sem_timedwait(&released_signal, &until);
    }
}

void wake_up(void) {
    sem_post(&released_signal);
}

Lease *take_released(void) {
    Lease *last_first = atomic_exchange(&released, NULL), *first_first = NULL;
    while (last_first != NULL) {
        Lease *next = last_first->next;
        last_first->next = first_first;
        first_first = last_first;
        last_first = next;
    }
    return first_first;
}

/* Does something to every lease of a list, which may take it off. */
static void for_each(Lease *lease, void (*act)(Lease *)) {
    while (lease != NULL) {
        Lease *next = lease->next;
        act(lease);
        lease = next;
    }
}

void put_back(Lease *taken) {
    for_each(taken, push_released);
}

void forget(Lease *taken) {
    for_each(taken, drop_memory);
}
