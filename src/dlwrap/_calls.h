/* Driver calls that have to be quick, or one step with the next: made in C, without cuda.bindings. */
#ifndef DLWRAP_CALLS_H
#define DLWRAP_CALLS_H

#include <Python.h>

#include <stdbool.h>

/* Prepares for forks: the driver that a parent initialised is of no use to its child; an errno. */
int prepare_calls(void);

/* Whether work without a stream of its own runs in this context, the primary one, as far as that is seen
 * here. */
bool runs_in_context(const void *primary);

/* The device whose primary context is the current one, 0 where there is none; -1 where only Python can tell.
 */
int find_device(void **primary);

/* Whether a device reads pageable memory: 0 or 1; -1 where only Python can tell. Lets other threads run. */
int reads_pageable_memory(int device);

/* Memory to be page-locked for every context, and what came of it. */
typedef struct PageLock {
    unsigned long long start, nbytes;
    bool read_only;
    void *primary; /* in which context the device's address is asked for */
    bool locked, mapped;
    unsigned long long device_start;
    const char *failed; /* the function that failed first, if one did */
    int code;
} PageLock;

/* Page-locks memory without breaking captures of other threads, and leaves the caller's context as it was;
 * may take seconds. */
void page_lock(PageLock *wanted);

/* unregister(starts): the CUresults of unregistering one after the other, without letting launches in
 * between: the program is held up once, instead of once for each. */
PyObject *native_unregister(PyObject *module, PyObject *starts);

/* learn_driver(addresses): learns where the functions are, in the order of dlwrap._driver. */
PyObject *native_learn_driver(PyObject *module, PyObject *args);

/* learn_primary(device, context): learns a device's primary context. */
PyObject *native_learn_primary(PyObject *module, PyObject *args);

/* current_device(): (CUresult, ordinal of the current context's device); -1 without a context, -2 where
 * cuCtxGetDevice gave that CUresult. */
PyObject *native_current_device(PyObject *module, PyObject *unused);

/* attribute(number, device): (CUresult, value). */
PyObject *native_attribute(PyObject *module, PyObject *args);

/* record(is_capturing, event_record, stream, event): (CUresult, whether the stream captures), in one step. */
PyObject *native_record(PyObject *module, PyObject *args);

#endif
