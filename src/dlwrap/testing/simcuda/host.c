/* Host memory as the kernel sees it: what can be registered, and reads and writes that fail instead of
 * crashing. */
#include "sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <unistd.h>

enum { TMPFS = 0x01021994, HUGETLBFS = 0x958458f6 };

/* Read bytes that may not be mapped; false if some are not. */
bool host_read(void *into, const void *from, size_t nbytes) {
    struct iovec local = {into, nbytes};
    struct iovec remote = {(void *)(uintptr_t)from, nbytes};
    return process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == (ssize_t)nbytes;
}

/* Write bytes that may not be mapped or not be writable; false if some are not. */
bool host_write(void *into, const void *from, size_t nbytes) {
    struct iovec local = {(void *)(uintptr_t)from, nbytes};
    struct iovec remote = {into, nbytes};
    return process_vm_writev(getpid(), &local, 1, &remote, 1, 0) == (ssize_t)nbytes;
}

/* Whether a shared mapping of this file is one of memory, not of a disk. */
static bool memory_backed(const char *path) {
    if (path[0] == '\0' || strncmp(path, "/dev/zero", 9) == 0 || strncmp(path, "/memfd:", 7) == 0 ||
        strncmp(path, "/dev/shm/", 9) == 0 || strncmp(path, "/SYSV", 5) == 0)
        return true;
    struct statfs system;
    if (statfs(path, &system) != 0)
        return false;
    return system.f_type == TMPFS || (uint32_t)system.f_type == (uint32_t)HUGETLBFS;
}

/* Whether the driver page-locks memory mapped like this: writable shared mappings of disk files it refuses.
 */
static bool mapping_can_register(const char *access, const char *path, bool read_only) {
    bool writable = access[1] == 'w';
    if (access[0] != 'r' || (!writable && !read_only))
        return false;
    return !(writable && access[3] == 's' && !memory_backed(path));
}

/* Whether every byte is mapped in a way that the driver page-locks. */
bool host_can_register(const void *start, size_t nbytes, bool read_only) {
    uintptr_t at = (uintptr_t)start;
    const uintptr_t end = at + nbytes;
    FILE *maps = fopen("/proc/self/maps", "re");
    char line[4352];
    while (maps != NULL && at < end && fgets(line, sizeof line, maps) != NULL) {
        char *rest;
        const uintptr_t first = strtoul(line, &rest, 16);
        const uintptr_t last = strtoul(rest + 1, &rest, 16);
        if (last <= at)
            continue;
        char access[5] = "";
        char path[4096] = "";
        sscanf(rest, " %4s %*s %*s %*s %4095[^\n]", access, path);
        if (first > at || !mapping_can_register(access, path, read_only))
            break;
        at = last;
    }
    if (maps != NULL)
        fclose(maps);
    return at >= end;
}
