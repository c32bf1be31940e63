/* What `wrap` does where nothing has to be page-locked, because it is already or because the device reads
 * pageable memory: everything else, and every refusal, is Python's. */
#ifndef DLWRAP_WRAP_H
#define DLWRAP_WRAP_H

#include <Python.h>

#include <stdbool.h>

/* Prepares the names of the options. */
bool prepare_wraps(void);

/* Forgets in the child of a fork what its parent lent. */
void forget_wraps(void);

/* serve_wraps(buffer_type, lease_type, registrations): what `wrap` makes, and where it finds page-locked
 * ranges. */
PyObject *native_serve_wraps(PyObject *module, PyObject *args);

/* stop_wraps(): from now on `wrap` gives None. */
PyObject *native_stop_wraps(PyObject *module, PyObject *unused);

/* wrap(array, device, memory, extent, wait, readonly): a buffer, or None where Python has to look. */
PyObject *native_wrap(PyObject *module, PyObject *const *args, Py_ssize_t nargs);

#endif
