/* Which bytes the driver knows: page-locked host memory and device memory, by exact bytes.
 *
 * Device memory is host memory too; its device addresses lie above every host address, so that host code that
 * dereferences one crashes at once. Host memory is seen by the device at its own address plus
 * `pointer_offset`.
 */
#include "sim.h"

#include <stdlib.h>
#include <string.h>

static const Address DEVICE_SPACE = (Address)1 << 60;

static Range **ranges; /* by start; they never overlap */
static size_t count;
static size_t capacity;

/* The index of the first range that begins above the address. */
static size_t index_above(const unsigned char *address) {
    size_t low = 0;
    size_t high = count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (ranges[middle]->start <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Know a range that overlaps no other. */
Range *range_add(void *start, size_t nbytes, RangeKind kind, unsigned flags, Context *context) {
    if (count == capacity) {
        capacity = capacity == 0 ? 64 : 2 * capacity;
        ranges = realloc(ranges, capacity * sizeof *ranges);
        if (ranges == NULL)
            misuse("out of memory");
    }
    Range *range = allocate(sizeof *range);
    *range = (Range){start, nbytes, kind, flags, context, ++sim.next_id};
    size_t index = index_above(start);
    memmove(ranges + index + 1, ranges + index, (count - index) * sizeof *ranges);
    ranges[index] = range;
    count++;
    return range;
}

/* Know the range no more. */
void range_remove(Range *range) {
    size_t index = index_above(range->start) - 1;
    count--;
    memmove(ranges + index, ranges + index + 1, (count - index) * sizeof *ranges);
    free(range);
}

/* The range with the byte in it, or NULL. */
Range *range_at(const void *address) {
    return range_overlapping(address, 1);
}

/* The first range that shares a byte with these, or NULL. */
Range *range_overlapping(const void *start, size_t nbytes) {
    const unsigned char *first = start;
    size_t index = index_above(first);
    if (index > 0 && first < ranges[index - 1]->start + ranges[index - 1]->nbytes)
        return ranges[index - 1];
    return index < count && ranges[index]->start < first + nbytes ? ranges[index] : NULL;
}

/* Every range in turn, by address; NULL after the last. */
Range *range_by_index(size_t index) {
    return index < count ? ranges[index] : NULL;
}

/* How many ranges of a kind there are. */
size_t range_count(RangeKind kind) {
    size_t matching = 0;
    for (size_t i = 0; i < count; i++)
        matching += ranges[i]->kind == kind;
    return matching;
}

/* Whether it is page-locked host memory. */
bool range_is_host(const Range *range) {
    return range->kind == REGISTERED || range->kind == HOST_ALLOCATED;
}

/* The host address that a device address would have, were it known; managed memory has one address. */
static unsigned char *host_address(Address address) {
    const Range *range = range_at((unsigned char *)(uintptr_t)address);
    if (range != NULL && range->kind == MANAGED)
        return (unsigned char *)(uintptr_t)address;
    if (address >= DEVICE_SPACE)
        return (unsigned char *)(uintptr_t)(address - DEVICE_SPACE);
    return (unsigned char *)(uintptr_t)(address - (Address)sim.settings.pointer_offset);
}

/* The range that the device knows by this address, or NULL. */
Range *range_by_device_address(Address address) {
    Range *range = range_at(host_address(address));
    if (range == NULL || (range->kind == DEVICE_ALLOCATED) != (address >= DEVICE_SPACE))
        return NULL;
    return range_device_address(range, host_address(address)) == address ? range : NULL;
}

/* How the device names a byte of the range. */
Address range_device_address(const Range *range, const void *address) {
    Address shift = range->kind == DEVICE_ALLOCATED ? DEVICE_SPACE
                    : range->kind == MANAGED        ? 0
                                                    : (Address)sim.settings.pointer_offset;
    return (Address)(uintptr_t)address + shift;
}

/* The bytes that a device address names; unresolved if it names none now. */
Span span_from_device(Address address, size_t nbytes) {
    if (range_by_device_address(address) != NULL)
        return (Span){host_address(address), nbytes, false, true};
    bool pageable = sim.settings.pageable && address < DEVICE_SPACE;
    return (Span){(unsigned char *)(uintptr_t)address, nbytes, false, pageable};
}

/* Whether the device may touch every byte. A host side may be pageable; its page-locked bytes obey the same
 * rule. */
bool span_reachable(const Span *span, bool write) {
    const unsigned char *at = span->start;
    const unsigned char *end = at + span->nbytes;
    if (!span->resolved)
        return false;
    while (at < end) {
        const Range *range = range_overlapping(at, (size_t)(end - at));
        bool inside = range != NULL && range->start <= at;
        if (!inside && !sim.settings.pageable && !span->by_host)
            return false;
        if (inside && write && range->kind == REGISTERED && (range->flags & REGISTER_READ_ONLY) != 0)
            return false;
        at = inside ? range->start + range->nbytes : range != NULL ? range->start : end;
    }
    return true;
}

/* Whether the span shares a byte with these. */
bool span_touches(const Span *span, const void *start, size_t nbytes) {
    const unsigned char *first = start;
    return span->start < first + nbytes && first < span->start + span->nbytes;
}
