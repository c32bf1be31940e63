/* The Python type that holds a lease and makes capsules of it; `HostWrappedBuffer` is a subclass. */
#ifndef DLWRAP_EXPORTER_H
#define DLWRAP_EXPORTER_H

#include <Python.h>

#include "_arrays.h"
#include "_lease.h"

enum { MOST_PLACES = 2 };

typedef struct Exporter {
    PyObject_HEAD Lease *lease;
    void *primary;    /* the device's primary context */
    PyObject *places; /* keeps the arrays of the next field; NULL where no capsule may be made without Python */
    Place place[MOST_PLACES];
    int place_count;
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

/* make_capsule(exporter, minor, on_host, copied): versioned 1.min(minor, ours), legacy where minor is -1. */
PyObject *native_make_capsule(PyObject *module, PyObject *args);

/* give_up(exporter): gives up the wrapper's hold unless there are other holders; returns how many there are. */
PyObject *native_give_up(PyObject *module, PyObject *object);

/* hold_by_graph(exporter, create, retain, release, graph): (CUresult, CUuserObject); the graph becomes a holder. */
PyObject *native_hold_by_graph(PyObject *module, PyObject *args);

/* graphs_of(exporter): how many holds of CUDA graphs are alive. */
PyObject *native_graphs_of(PyObject *module, PyObject *object);

/* uses_of(exporter): bits of what is known of the streams. */
PyObject *native_uses_of(PyObject *module, PyObject *object);

/* note_uses(exporter, uses): adds bits. */
PyObject *native_note_uses(PyObject *module, PyObject *args);

#endif
