/* Whether somebody watches wraps and exports: the logger, tracing, NVTX. Then Python does what is done here
 * otherwise, because only it can tell of it. */
#ifndef DLWRAP_WATCH_H
#define DLWRAP_WATCH_H

#include <Python.h>

#include <stdbool.h>

/* Whether wraps and exports are Python's at the moment. */
bool is_watched(void);

/* watch(watched): says so. */
PyObject *native_watch(PyObject *module, PyObject *watched);

#endif
