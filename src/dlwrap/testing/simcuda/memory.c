/* Page-locking host memory, allocating device memory, and asking what a pointer is. */
#include "control.h"

#include <string.h>
#include <sys/mman.h>

typedef enum MemoryType { TYPE_HOST = 1, TYPE_DEVICE = 2 } MemoryType;
typedef enum Attach { ATTACH_GLOBAL = 1, ATTACH_HOST = 2 } Attach;

typedef enum PointerAttribute {
    POINTER_CONTEXT = 1,
    POINTER_MEMORY_TYPE = 2,
    POINTER_DEVICE_POINTER = 3,
    POINTER_HOST_POINTER = 4,
    POINTER_SYNC_MEMOPS = 6,
    POINTER_BUFFER_ID = 7,
    POINTER_IS_MANAGED = 8,
    POINTER_DEVICE_ORDINAL = 9,
    POINTER_IS_IPC_CAPABLE = 10,
    POINTER_RANGE_START = 11,
    POINTER_RANGE_SIZE = 12,
    POINTER_MAPPED = 13,
    POINTER_HANDLE_TYPES = 14,
    POINTER_IS_RDMA_CAPABLE = 15,
    POINTER_ACCESS_FLAGS = 16,
    POINTER_MEMPOOL = 17,
} PointerAttribute;

/* Why a registration is refused by its arguments alone, or SUCCESS. */
static Result check_register(const void *start, size_t nbytes, unsigned flags) {
    bool read_only = (flags & REGISTER_READ_ONLY) != 0;
    if (start == NULL || nbytes == 0 || (flags & ~(unsigned)REGISTER_ALL) != 0 ||
        (uintptr_t)start + nbytes < (uintptr_t)start)
        return INVALID_VALUE;
    if (!sim.settings.host_register || (read_only && !sim.settings.read_only_register))
        return NOT_SUPPORTED;
    if (range_overlapping(start, nbytes) != NULL)
        return ALREADY_REGISTERED;
    return host_can_register(start, nbytes, read_only) ? SUCCESS : INVALID_VALUE;
}

/* Page-lock exactly these bytes. */
API Result cuMemHostRegister_v2(void *start, size_t nbytes, unsigned flags) {
    Result result = enter("cuMemHostRegister");
    if (result != SUCCESS)
        return result;
    Context *context;
    result = context_current(&context);
    if (result == SUCCESS)
        result = capture_forbid_unsafe();
    if (result == SUCCESS)
        result = check_register(start, nbytes, flags);
    if (result == SUCCESS)
        range_add(start, nbytes, REGISTERED, flags, context);
    return leave(result);
}

/* Wait for all work of the context, as an unregister or a free does; meanwhile launches may be held up. */
static void wait_exclusively(Context *context) {
    sim.exclusive++;
    work_wait_context(context);
    sim.exclusive--;
    changed();
}

/* Abort if work that is still to come touches the range. */
static void refuse_pending(const Range *range) {
    if (sim.settings.strict && work_touches(range->start, range->nbytes))
        misuse("unregistering %p (%zu bytes) with work pending on it", (void *)range->start, range->nbytes);
}

/* The registration that begins here; INVALID_VALUE for an inner pointer. */
static Result registration_at(const void *start, Range **range) {
    *range = range_at(start);
    if (*range == NULL || !range_is_host(*range))
        return NOT_REGISTERED;
    return (*range)->start == start && (*range)->kind == REGISTERED ? SUCCESS : INVALID_VALUE;
}

/* Wait until the device is idle, then unlock the range that begins here. */
static Result unregister(const void *start) {
    Range *range;
    Result result = registration_at(start, &range);
    if (result != SUCCESS)
        return result;
    refuse_pending(range);
    wait_exclusively(range->context);
    result = registration_at(start, &range);
    if (result != SUCCESS)
        return result;
    refuse_pending(range);
    range_remove(range);
    return SUCCESS;
}

/* Unlock a range; mapped or not, the range need only be registered. */
API Result cuMemHostUnregister(void *start) {
    Result result = enter("cuMemHostUnregister");
    if (result != SUCCESS)
        return result;
    Context *context;
    result = context_current(&context);
    if (result == SUCCESS)
        result = capture_forbid_unsafe();
    return leave(result == SUCCESS ? unregister(start) : result);
}

/* Allocate memory of a kind in the current context. */
static Result allocate_range(size_t nbytes, RangeKind kind, unsigned flags, Range **range) {
    Context *context;
    Result result = context_current(&context);
    if (result == SUCCESS)
        result = capture_forbid_unsafe();
    if (result != SUCCESS)
        return result;
    if (nbytes == 0)
        return INVALID_VALUE;
    void *start =
        mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED)
        return OUT_OF_MEMORY;
    *range = range_add(start, nbytes, kind, flags, context);
    return SUCCESS;
}

/* Take a range that the driver allocated away, without waiting. */
static void free_range(Range *range) {
    munmap(range->start, range->nbytes);
    range_remove(range);
}

/* Allocate device memory. */
API Result cuMemAlloc_v2(Address *address, size_t nbytes) {
    Result result = enter("cuMemAlloc");
    if (result != SUCCESS)
        return result;
    Range *range;
    result = allocate_range(nbytes, DEVICE_ALLOCATED, 0, &range);
    if (result == SUCCESS)
        *address = range_device_address(range, range->start);
    return leave(result);
}

/* Allocate managed memory, which host and devices have at the same address. */
API Result cuMemAllocManaged(Address *address, size_t nbytes, unsigned flags) {
    Result result = enter("cuMemAllocManaged");
    if (result != SUCCESS)
        return result;
    Range *range;
    bool is_known = flags == ATTACH_GLOBAL || flags == ATTACH_HOST;
    result = is_known ? allocate_range(nbytes, MANAGED, flags, &range) : INVALID_VALUE;
    if (result == SUCCESS)
        *address = range_device_address(range, range->start);
    return leave(result);
}

/* Wait until the device is idle, then free what begins at the address, on the host or not. */
static Result free_waiting(bool on_host, Range *(*find)(Address), Address address) {
    Result result = capture_forbid_unsafe();
    if (result != SUCCESS)
        return result;
    Range *range = find(address);
    if (range == NULL || range->kind == REGISTERED || range_is_host(range) != on_host)
        return INVALID_VALUE;
    wait_exclusively(range->context);
    range = find(address);
    if (range == NULL)
        return INVALID_VALUE;
    free_range(range);
    return SUCCESS;
}

/* The device allocation that begins at the address, or NULL. */
static Range *device_allocation(Address address) {
    Range *range = range_by_device_address(address);
    return range != NULL && range_device_address(range, range->start) == address ? range : NULL;
}

/* The host allocation that begins at the address, or NULL. */
static Range *host_allocation(Address address) {
    Range *range = range_at((void *)(uintptr_t)address);
    return range != NULL && range->start == (void *)(uintptr_t)address ? range : NULL;
}

/* Wait until the device is idle, then free device memory. */
API Result cuMemFree_v2(Address address) {
    Result result = enter("cuMemFree");
    if (result != SUCCESS || address == 0)
        return result != SUCCESS ? result : leave(SUCCESS);
    Context *context;
    result = context_current(&context);
    return leave(result == SUCCESS ? free_waiting(false, device_allocation, address) : result);
}

/* Allocate page-locked host memory. */
static Result allocate_host(const char *function, void **start, size_t nbytes, unsigned flags) {
    Result result = enter(function);
    if (result != SUCCESS)
        return result;
    Range *range;
    result = allocate_range(nbytes, HOST_ALLOCATED, flags, &range);
    if (result == SUCCESS)
        *start = range->start;
    return leave(result);
}

/* Allocate page-locked host memory. */
API Result cuMemHostAlloc(void **start, size_t nbytes, unsigned flags) {
    return allocate_host("cuMemHostAlloc", start, nbytes, flags);
}

/* Allocate page-locked host memory. */
API Result cuMemAllocHost_v2(void **start, size_t nbytes) {
    return allocate_host("cuMemAllocHost", start, nbytes, REGISTER_DEVICEMAP);
}

/* Wait until the device is idle, then free page-locked host memory. */
API Result cuMemFreeHost(void *start) {
    Result result = enter("cuMemFreeHost");
    if (result != SUCCESS || start == NULL)
        return result != SUCCESS ? result : leave(SUCCESS);
    Context *context;
    result = context_current(&context);
    return leave(result == SUCCESS ? free_waiting(true, host_allocation, (uintptr_t)start) : result);
}

/* The page-locked range with this host byte in it, or NULL. */
static Range *host_range(const void *pointer) {
    Range *range = range_at(pointer);
    return range != NULL && range_is_host(range) ? range : NULL;
}

/* How the device names a page-locked byte. */
API Result cuMemHostGetDevicePointer_v2(Address *address, void *pointer, unsigned flags) {
    Result result = enter("cuMemHostGetDevicePointer");
    if (result != SUCCESS)
        return result;
    Context *context;
    result = context_current(&context);
    const Range *range = host_range(pointer);
    if (result == SUCCESS && (range == NULL || flags != 0))
        result = INVALID_VALUE;
    if (result == SUCCESS)
        *address = range_device_address(range, pointer);
    return leave(result);
}

/* The flags that the page-locked memory was registered or allocated with. */
API Result cuMemHostGetFlags(unsigned *flags, void *pointer) {
    Result result = enter("cuMemHostGetFlags");
    if (result != SUCCESS)
        return result;
    const Range *range = host_range(pointer);
    if (range == NULL)
        return leave(INVALID_VALUE);
    *flags = range->flags;
    return leave(SUCCESS);
}

/* The allocation or registration that an address lies in. */
API Result cuMemGetAddressRange_v2(Address *base, size_t *nbytes, Address address) {
    Result result = enter("cuMemGetAddressRange");
    if (result != SUCCESS)
        return result;
    const Range *range = range_by_device_address(address);
    if (range == NULL)
        return leave(NOT_FOUND);
    if (base != NULL)
        *base = range_device_address(range, range->start);
    if (nbytes != NULL)
        *nbytes = range->nbytes;
    return leave(SUCCESS);
}

/* The range that a pointer names by its device or by its host address, and the byte's host address. */
static Range *range_named(Address pointer, unsigned char **byte) {
    Range *range = range_by_device_address(pointer);
    if (range != NULL) {
        *byte = range->start + (pointer - range_device_address(range, range->start));
        return range;
    }
    *byte = (unsigned char *)(uintptr_t)pointer;
    return host_range(*byte);
}

/* Write an attribute as wide as the driver writes it. */
static Result write_attribute(void *data, int attribute, const Range *range, unsigned char *byte) {
    const bool on_device = !range_is_host(range);
    const Address address = range_device_address(range, byte);
    const Address base = range_device_address(range, range->start);
    switch (attribute) {
    case POINTER_CONTEXT:
        *(const void **)data = range->context;
        return SUCCESS;
    case POINTER_MEMORY_TYPE:
        *(uint32_t *)data = on_device ? TYPE_DEVICE : TYPE_HOST;
        return SUCCESS;
    case POINTER_DEVICE_POINTER:
        *(Address *)data = address;
        return SUCCESS;
    case POINTER_HOST_POINTER:
        *(void **)data = byte;
        return range->kind == DEVICE_ALLOCATED ? INVALID_VALUE : SUCCESS;
    case POINTER_BUFFER_ID:
        *(uint64_t *)data = range->id;
        return SUCCESS;
    case POINTER_DEVICE_ORDINAL:
        *(int32_t *)data = range->context->device;
        return SUCCESS;
    case POINTER_RANGE_START:
        *(Address *)data = base;
        return SUCCESS;
    case POINTER_RANGE_SIZE:
        *(size_t *)data = range->nbytes;
        return SUCCESS;
    case POINTER_MAPPED:
        *(bool *)data = true;
        return SUCCESS;
    case POINTER_IS_MANAGED:
        *(bool *)data = range->kind == MANAGED;
        return SUCCESS;
    case POINTER_SYNC_MEMOPS:
    case POINTER_IS_IPC_CAPABLE:
        *(bool *)data = false;
        return SUCCESS;
    case POINTER_IS_RDMA_CAPABLE:
        *(uint32_t *)data = 0;
        return SUCCESS;
    case POINTER_ACCESS_FLAGS:
        *(uint32_t *)data = 3; /* read and write */
        return SUCCESS;
    case POINTER_HANDLE_TYPES:
    case POINTER_MEMPOOL:
        *(uint64_t *)data = 0;
        return SUCCESS;
    default:
        return INVALID_VALUE;
    }
}

/* One fact about a pointer; INVALID_VALUE if it is pageable. */
API Result cuPointerGetAttribute(void *data, int attribute, Address pointer) {
    Result result = enter("cuPointerGetAttribute");
    if (result != SUCCESS)
        return result;
    Context *context;
    result = context_current(&context);
    unsigned char *byte;
    const Range *range = range_named(pointer, &byte);
    if (result == SUCCESS)
        result = range != NULL ? write_attribute(data, attribute, range, byte) : INVALID_VALUE;
    return leave(result);
}

/* What a pageable pointer answers where no error is allowed. */
static void write_default(void *data, int attribute) {
    switch (attribute) {
    case POINTER_CONTEXT:
    case POINTER_DEVICE_POINTER:
    case POINTER_HOST_POINTER:
    case POINTER_BUFFER_ID:
    case POINTER_RANGE_START:
    case POINTER_RANGE_SIZE:
    case POINTER_HANDLE_TYPES:
    case POINTER_MEMPOOL:
        memset(data, 0, 8);
        break;
    case POINTER_SYNC_MEMOPS:
    case POINTER_IS_MANAGED:
    case POINTER_IS_IPC_CAPABLE:
    case POINTER_MAPPED:
        *(bool *)data = false;
        break;
    case POINTER_DEVICE_ORDINAL:
        *(int32_t *)data = -2;
        break;
    default:
        memset(data, 0, 4);
        break;
    }
}

/* Several facts about a pointer; a pageable one has the empty answers and no error. */
API Result cuPointerGetAttributes(unsigned count, const int *attributes, void **data, Address pointer) {
    Result result = enter("cuPointerGetAttributes");
    if (result != SUCCESS)
        return result;
    Context *context;
    result = context_current(&context);
    unsigned char *byte;
    const Range *range = range_named(pointer, &byte);
    for (unsigned i = 0; result == SUCCESS && i < count; i++)
        if (range == NULL || write_attribute(data[i], attributes[i], range, byte) != SUCCESS)
            write_default(data[i], attributes[i]);
    return leave(result);
}

ALIAS("cuMemHostRegister_v2") Result cuMemHostRegister(void *start, size_t nbytes, unsigned flags);

/* Drop what was allocated or registered in a context that is going away. */
void memory_forget_context(const Context *context) {
    size_t index = 0;
    for (Range *range = range_by_index(0); range != NULL; range = range_by_index(index)) {
        if (range->context != context)
            index++;
        else if (range->kind == REGISTERED)
            range_remove(range);
        else
            free_range(range);
    }
}

/* Drop every registration. */
void memory_forget_registrations(void) {
    size_t index = 0;
    for (Range *range = range_by_index(0); range != NULL; range = range_by_index(index)) {
        if (range->kind != REGISTERED)
            index++;
        else
            range_remove(range);
    }
}

/* Copy up to `capacity` registrations, by address; the result is how many there are. */
API size_t dlwrap_sim_registrations(ListedRegistration *list, size_t capacity) {
    size_t listed = 0;
    lock();
    Range *range;
    for (size_t i = 0; (range = range_by_index(i)) != NULL; i++) {
        if (range->kind != REGISTERED)
            continue;
        if (listed < capacity)
            list[listed] = (ListedRegistration){(uintptr_t)range->start, range->nbytes, range->flags,
                                                (uint32_t)range->context->device};
        listed++;
    }
    unlock();
    return listed;
}
