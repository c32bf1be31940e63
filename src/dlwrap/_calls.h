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

/* learn_driver(cuCtxGetCurrent, cuCtxGetDevice, cuDeviceGetAttribute): learns their addresses. */
PyObject *native_learn_driver(PyObject *module, PyObject *args);

/* current_device(): (CUresult, ordinal of the current context's device); -1 without a context, -2 where
 * cuCtxGetDevice gave that CUresult. */
PyObject *native_current_device(PyObject *module, PyObject *unused);

/* attribute(number, device): (CUresult, value). */
PyObject *native_attribute(PyObject *module, PyObject *args);

/* record(is_capturing, event_record, stream, event): (CUresult, whether the stream captures), in one step. */
PyObject *native_record(PyObject *module, PyObject *args);

/* register(host_register, pointer, nbytes, flags, results): appends (CUresult,) before Python can raise
 * anything. */
PyObject *native_register(PyObject *module, PyObject *args);

#endif
