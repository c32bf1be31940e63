/* What is lent out and how it comes back: leases, exports, deleters, the list of released leases. Nothing
 * here needs Python, so any thread may call it at any time, also after finalisation; `add_hold` and
 * `take_export` are for those that lend.
 *
 * A lease counts its holders: the wrapper, every live export, and captured graphs. The last one to go pushes
 * the lease on the released list; Python's lifetime manager takes them from there.
 */
#ifndef DLWRAP_LEASE_H
#define DLWRAP_LEASE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "_dlpack.h"

/* What is known of the streams that use the memory: the legacy default stream is one; some are not known;
 * Python's books have more. */
enum { USED_ON_LEGACY = 1, USED_ANYWHERE = 2, USED_AS_NOTED = 4 };

typedef struct Lease {
    atomic_llong holders;
    atomic_llong graphs;   /* those of the holders that are CUDA graphs */
    atomic_int references; /* to this memory: the Exporter's, the loan's, and the released list's */
    atomic_bool wrapped;   /* whether one of the holders is the wrapper; for reports */
    atomic_int uses;       /* bits of what is known of the streams */
    struct Lease *next;
    void *loan; /* Python's notes: the lifetime manager's, who gets them with the lease */
    void *device_data;
    void *host_data;
    int32_t device_id;
    int32_t ndim;
    DLDataType dtype;
    bool read_only;
    int64_t *strides;
    int64_t shape[]; /* then the strides; every export points here, the lease outlives them all */
} Lease;

typedef struct Export {
    union {
        DLManagedTensor legacy;
        DLManagedTensorVersioned versioned;
    } tensor;
    /* Even while the export lives, odd while it is spare. Exports are never given back to malloc, so that a
     * capsule that is dropped after its deleter ran still finds a generation to compare with its own. */
    atomic_uintptr_t generation;
    Lease *lease;
    struct Export *next;
} Export;

extern atomic_llong live_graphs;

/* Counts the leases that were ever made. */
long long count_leases(void);

/* Counts the live exports of all leases. */
long long count_live_exports(void);

/* Allocates a lease with one holder; NULL when out of memory. */
Lease *new_lease(int32_t ndim);

/* Frees a lease that nobody was lent. */
void discard_lease(Lease *lease);

/* Takes one more hold on a lease that still has one. */
bool add_hold(Lease *lease);

/* Gives up one hold on the lease. */
void drop_hold(Lease *lease);

/* Takes the only hold away, for `push_released`; otherwise tells how many others there are. */
long long take_only_hold(Lease *lease);

/* Hands a lease without holders over to the lifetime manager. */
void push_released(Lease *lease);

/* Takes one more reference to the lease's memory. */
void share_memory(Lease *lease);

/* Gives up one reference to the lease's memory. */
void drop_memory(Lease *lease);

/* Counts the bytes of all elements. */
int64_t count_bytes(const Lease *lease);

/* Notes uses. */
void note_uses(Lease *lease, int uses);

/* Describes the leased memory as seen from the device or from the host. */
DLTensor describe(Lease *lease, bool on_host);

/* Makes an export of a hold that was added already, legacy where minor is -1; NULL when out of memory. */
Export *begin_export(Lease *lease, int minor, bool on_host, bool copied);

/* Ends the export if it is still of that generation; a second call for the same export does nothing. */
void retire(Export *export, uintptr_t generation);

/* Ends the hold of a CUDA graph; the driver calls it on a thread of its own, where no CUDA call is allowed.
 */
void drop_graph(void *argument);

/* Prepares the list, once per process; an errno. */
int prepare_released(void);

/* Whether leases were released. */
bool is_any_released(void);

/* Waits until leases are released, `wake_up` is called, or the seconds are over; negative waits for ever. */
void wait_for_released(double seconds);

/* Ends `wait_for_released`. */
void wake_up(void);

/* Takes the released leases, the first released first. */
Lease *take_released(void);

/* Puts leases that were taken back on the list. */
void put_back(Lease *taken);

/* Forgets leases that were taken. */
void forget(Lease *taken);

#endif
