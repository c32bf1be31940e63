/* See the header. */
#define _GNU_SOURCE
#include "_pages.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

/* Of Linux 5.14; older headers lack them. */
enum { POPULATE_READ = 22, POPULATE_WRITE = 23 };

/* The first byte of the page. */
static uintptr_t page_of(unsigned long long address) {
    return (uintptr_t)address & ~((uintptr_t)sysconf(_SC_PAGESIZE) - 1);
}

PyObject *native_is_resident(PyObject *module, PyObject *args) {
    (void)module;
    unsigned long long start, stop;
    int samples;
    if (!PyArg_ParseTuple(args, "KKi", &start, &stop, &samples)) {
        return NULL;
    }
    bool resident = true;
    for (int i = 0; resident && i < samples; i++) {
        unsigned char there = 0;
        uintptr_t page = page_of(start + (stop - start) / (unsigned)samples * (unsigned)i);
        resident = mincore((void *)page, 1, &there) == 0 && (there & 1) != 0;
    }
    return PyBool_FromLong(resident);
}

PyObject *native_populate(PyObject *module, PyObject *args) {
    (void)module;
    unsigned long long start, stop;
    int writable, result;
    if (!PyArg_ParseTuple(args, "KKp", &start, &stop, &writable)) {
        return NULL;
    }
    uintptr_t first = page_of(start);
    Py_BEGIN_ALLOW_THREADS result =
        madvise((void *)first, (size_t)((uintptr_t)stop - first), writable ? POPULATE_WRITE : POPULATE_READ);
    Py_END_ALLOW_THREADS return PyBool_FromLong(result == 0);
}
