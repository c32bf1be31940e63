/* The pages below some memory: whether they are there, and having them made. */
#ifndef DLWRAP_PAGES_H
#define DLWRAP_PAGES_H

#include <Python.h>

/* is_resident(start, stop, samples): whether so many pages, spread evenly, are all there. */
PyObject *native_is_resident(PyObject *module, PyObject *args);

/* populate(start, stop, writable): has all pages there, for a writer if need be; whether the kernel could. */
PyObject *native_populate(PyObject *module, PyObject *args);

#endif
