/* Races of leases, exports and releases: threads that export, threads that call deleters, and a lifetime
 * manager.
 *
 * A program of its own, so that nothing but _lease.c and the C library is under the sanitizer it is built
 * with: cc -fsanitize=thread native_races.c; native_races SECONDS SEED
 */
#include "../../src/dlwrap/_lease.c"

#include <stdio.h>

enum { EXPORTERS = 3, DELETERS = 3, SLOTS = 32, MOST_HOLDS = 5, MOST_LEASES = 1 << 21, VALUE = 7 };

typedef enum Kind { LEGACY_EXPORT, VERSIONED_EXPORT, GRAPH, KINDS } Kind;

/* What an exporter hands to whichever deleter comes by. */
typedef struct Parcel {
    Kind kind;
    void *held; /* a managed tensor, or the lease that a graph holds */
    uintptr_t generation;
} Parcel;

static _Atomic(Parcel *) slots[SLOTS];
static atomic_bool stop_exporting, stop_deleting, stop_managing;
static atomic_uchar times_released[EXPORTERS][MOST_LEASES];
static uint64_t made[EXPORTERS];
static atomic_ullong faults;
static unsigned first_seed;

/* Notes what broke a promise. */
static void fault(const char *what, uint64_t key) {
    fprintf(stderr, "lease %#llx: %s\n", (unsigned long long)key, what);
    atomic_fetch_add(&faults, 1);
}

/* What names a lease here, in the place of Python's notes. */
static uint64_t key_of(const Lease *lease) {
    return (uint64_t)(uintptr_t)lease->loan;
}

/* A lease with one holder, as native_lend() makes it. */
static Lease *make_lease(uint64_t key) {
    Lease *lease = new_lease(1);
    lease->loan = (void *)(uintptr_t)key;
    lease->shape[0] = VALUE;
    return lease;
}

/* One more hold on the lease, as make_capsule() and hold_by_graph() take it. */
static Parcel *make_parcel(Lease *lease, Kind kind) {
    Parcel *parcel = malloc(sizeof(Parcel));
    if (!add_hold(lease)) {
        fault("has a wrapper, and takes no more holders", key_of(lease));
    }
    *parcel = (Parcel){kind, lease, 0};
    if (kind == GRAPH) {
        atomic_fetch_add(&lease->graphs, 1);
        atomic_fetch_add(&live_graphs, 1);
        return parcel;
    }
    Export *export = begin_export(lease, kind == LEGACY_EXPORT ? -1 : 0, false, false);
    parcel->held = &export->tensor;
    parcel->generation = atomic_load(&export->generation);
    return parcel;
}

/* Ends what a parcel holds, as a consumer does that looks at the tensor first. */
static void end_parcel(Parcel *parcel, unsigned *seed) {
    Export *export = parcel->held;
    int64_t seen = VALUE;
    switch (parcel->kind) {
    case LEGACY_EXPORT:
        seen = export->tensor.legacy.dl_tensor.shape[0];
        export->tensor.legacy.deleter(&export->tensor.legacy);
        break;
    case VERSIONED_EXPORT:
        seen = export->tensor.versioned.dl_tensor.shape[0];
        export->tensor.versioned.deleter(&export->tensor.versioned);
        break;
    default:
        drop_graph(parcel->held);
    }
    if (seen != VALUE) {
        fault("has lost its shape", 0);
    }
    if (parcel->kind != GRAPH && rand_r(seed) % 2 == 0) {
        retire(export, parcel->generation); /* the capsule is dropped too: nothing may happen */
    }
    free(parcel);
}

/* Wraps, exports, and drops or closes, again and again. */
static void *export_leases(void *argument) {
    uintptr_t me = (uintptr_t)argument;
    unsigned seed = first_seed + (unsigned)me;
    while (!atomic_load(&stop_exporting) && made[me] < MOST_LEASES) {
        Lease *lease = make_lease((uint64_t)me << 32 | made[me]++);
        for (int holds = rand_r(&seed) % MOST_HOLDS; holds > 0; holds--) {
            Parcel *parcel = make_parcel(lease, (Kind)(rand_r(&seed) % KINDS));
            parcel = atomic_exchange(&slots[rand_r(&seed) % SLOTS], parcel);
            if (parcel != NULL) {
                end_parcel(parcel, &seed);
            }
        }
        if (rand_r(&seed) % 2 == 0 || take_only_hold(lease) != 0) {
            drop_hold(lease);
        } else {
            push_released(lease); /* as close() does */
        }
        drop_memory(lease);
    }
    return NULL;
}

/* Ends whatever it finds. */
static void *delete_exports(void *argument) {
    unsigned seed = first_seed + 1000 + (unsigned)(uintptr_t)argument;
    while (!atomic_load(&stop_deleting)) {
        Parcel *parcel = atomic_exchange(&slots[rand_r(&seed) % SLOTS], NULL);
        if (parcel != NULL) {
            end_parcel(parcel, &seed);
        }
    }
    return NULL;
}

/* Takes what is released, as native_wait() does. */
static void *manage(void *unused) {
    bool last_time;
    do {
        last_time = atomic_load(&stop_managing);
        if (!last_time && !is_any_released()) {
            wait_for_released(-1);
        }
        for (Lease *lease = take_released(), *next; lease != NULL; lease = next) {
            next = lease->next;
            if (atomic_load(&lease->holders) != 0) {
                fault("is released with holders", key_of(lease));
            }
            atomic_fetch_add(&times_released[key_of(lease) >> 32][(uint32_t)key_of(lease)], 1);
            drop_memory(lease);
        }
    } while (!last_time);
    return unused;
}

/* Ends what is left, and looks whether every lease was released once; gives how many there were. */
static uint64_t check_all(void) {
    uint64_t total = 0;
    for (int exporter = 0; exporter < EXPORTERS; exporter++) {
        for (uint64_t i = 0; i < made[exporter]; i++, total++) {
            if (atomic_load(&times_released[exporter][i]) != 1) {
                fault("is not released once", (uint64_t)exporter << 32 | i);
            }
        }
    }
    if (count_live_exports() != 0 || atomic_load(&live_graphs) != 0) {
        fault("exports or graphs are left", 0);
    }
    return total;
}

/* Lets a leak checker see that spare exports are kept on purpose. */
static void free_spares(void) {
    for (Export *export; (export = take_export()) != NULL;) {
        bool last = spare == NULL && atomic_load(&retired) == NULL;
        free(export);
        if (last) {
            break;
        }
    }
}

int main(int count, char **arguments) {
    pthread_t exporters[EXPORTERS], deleters[DELETERS], manager;
    double seconds = count > 1 ? atof(arguments[1]) : 1;
    first_seed = count > 2 ? (unsigned)strtoul(arguments[2], NULL, 10) : 1;
    unsigned seed = first_seed;
    prepare_released();
    pthread_create(&manager, NULL, manage, NULL);
    for (uintptr_t i = 0; i < EXPORTERS; i++) {
        pthread_create(&exporters[i], NULL, export_leases, (void *)i);
    }
    for (uintptr_t i = 0; i < DELETERS; i++) {
        pthread_create(&deleters[i], NULL, delete_exports, (void *)i);
    }
    nanosleep(&(struct timespec){(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)}, NULL);
    atomic_store(&stop_exporting, true);
    for (int i = 0; i < EXPORTERS; i++) {
        pthread_join(exporters[i], NULL);
    }
    atomic_store(&stop_deleting, true);
    for (int i = 0; i < DELETERS; i++) {
        pthread_join(deleters[i], NULL);
    }
    for (int i = 0; i < SLOTS; i++) {
        Parcel *parcel = atomic_exchange(&slots[i], NULL);
        if (parcel != NULL) {
            end_parcel(parcel, &seed);
        }
    }
    atomic_store(&stop_managing, true);
    wake_up();
    pthread_join(manager, NULL);
    uint64_t total = check_all();
    free_spares();
    printf("%llu leases, seed %u, %llu faults\n", (unsigned long long)total, first_seed,
           (unsigned long long)atomic_load(&faults));
    return total > 0 && atomic_load(&faults) == 0 ? 0 : 1;
}
