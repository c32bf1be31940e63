/* The Python type that holds a lease and makes capsules of it; `HostWrappedBuffer` is a subclass. */
#ifndef DLWRAP_EXPORTER_H
#define DLWRAP_EXPORTER_H

#include <Python.h>

#include "_layout.h"
#include "_lease.h"
#include "_loan.h"

typedef struct Exporter {
    PyObject_HEAD Lease *lease;
    Loan *loan;     /* NULL before it is lent */
    void *primary;  /* the device's primary context */
    Layout *layout; /* NULL once it is closed */
    bool pageable;
    atomic_bool closed;
} Exporter;

/* How memory is lent out. */
typedef struct Terms {
    unsigned long long device_pointer;
    void *primary; /* the device's primary context */
    bool read_only, pageable;
} Terms;

/* Makes the type, once. */
PyObject *make_exporter_type(void);

/* Makes an exporter of memory that looks like this, which is not lent yet. */
Exporter *make_exporter(PyTypeObject *type, const Layout *layout);

/* Lends the memory: the exporter is the first holder. Cannot fail. */
void lend(Exporter *self, Layout *layout, Loan *loan, const Terms *terms);

/* Gives an object as an exporter; NULL with TypeError if it is none. */
Exporter *as_exporter(PyObject *object);

/* Whether it is open, and its memory where it was; false also where only Python can tell. */
bool is_ready(const Exporter *self);

/* Adds a holder; false with BufferError if the lease is closed. */
bool hold_again(Exporter *self);

/* lend(type, layout, loan, device_pointer, readonly, primary, pageable): the first holder of a lease. */
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
