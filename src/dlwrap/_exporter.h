/* The Python type that holds a lease and makes capsules of it; `HostWrappedBuffer` is a subclass. */
#ifndef DLWRAP_EXPORTER_H
#define DLWRAP_EXPORTER_H

#include <Python.h>

#include "_layout.h"
#include "_lease.h"

typedef struct Exporter {
    PyObject_HEAD Lease *lease;
    void *primary;  /* the device's primary context */
    Layout *layout; /* NULL once it is closed */
    atomic_bool closed;
} Exporter;

/* Makes the type, once. */
PyObject *make_exporter_type(void);

/* Gives an object as an exporter; NULL with TypeError if it is none. */
Exporter *as_exporter(PyObject *object);

/* Whether it is open, and its memory where it was; false also where only Python can tell. */
bool is_ready(const Exporter *self);

/* Adds a holder; false with BufferError if the lease is closed. */
bool hold_again(Exporter *self);

/* lend(type, layout, key, device_pointer, device, readonly, primary): the first holder of a lease. */
PyObject *native_lend(PyObject *module, PyObject *const *args, Py_ssize_t nargs);

/* make_capsule(exporter, minor, on_host, copied): versioned 1.min(minor, ours), legacy where minor is -1. */
PyObject *native_make_capsule(PyObject *module, PyObject *args);

/* give_up(exporter): gives up the wrapper's hold unless there are other holders; returns how many there are.
 */
PyObject *native_give_up(PyObject *module, PyObject *object);

/* hold_by_graph(exporter, create, retain, release, graph): (CUresult, CUuserObject); the graph becomes a
 * holder. */
PyObject *native_hold_by_graph(PyObject *module, PyObject *args);

/* graphs_of(exporter): how many holds of CUDA graphs are alive. */
PyObject *native_graphs_of(PyObject *module, PyObject *object);

/* uses_of(exporter): bits of what is known of the streams. */
PyObject *native_uses_of(PyObject *module, PyObject *object);

/* note_uses(exporter, uses): adds bits. */
PyObject *native_note_uses(PyObject *module, PyObject *args);

#endif
