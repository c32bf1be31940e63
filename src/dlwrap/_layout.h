/* What a host array looks like, and where it lies: read from NumPy's arrays in place, because asking NumPy
 * for the parts one by one takes longer than an export. */
#ifndef DLWRAP_LAYOUT_H
#define DLWRAP_LAYOUT_H

#include <Python.h>

#include <stdbool.h>

/* See dlwrap._layout.HostLayout, the subclass of which every instance is. */
typedef struct Layout {
    PyObject_HEAD PyObject *array;
    PyObject *shape;
    PyObject *strides; /* in elements */
    PyObject *dtype;   /* (code, bits, lanes) */
    PyObject *owner;   /* the last ndarray of the base chain, or the array itself */
    PyObject *hold;
    unsigned long long pointer, stop;
    unsigned long long owner_start, owner_stop;
    unsigned long long owner_pointer; /* of the owner's first element */
    Py_ssize_t itemsize, nbytes, owner_nbytes;
    Py_ssize_t elements, owner_elements; /* -1 where only NumPy can tell */
    char readonly, writable_memory, file_backed;
} Layout;

/* Makes the base type of the layouts, once. */
PyObject *make_layout_type(void);

/* Whether an object is a layout. */
bool is_layout(PyObject *object);

/* Whether the array and its owner are where, and as long as, they were; false also where only NumPy can tell.
 */
bool is_in_place(const Layout *layout);

/* Gives the layout of a common array, or NULL: with an exception, or without where that needs a closer look.
 */
Layout *read_array(PyObject *object);

/* learn_arrays(type, array, pointer, shape, strides, base, dtype, flags, dtypes): compares the fields of an
 * array with what NumPy says; from then on `read_array` gives layouts of this type, for arrays whose dtype is
 * one of those in the pairs of dtype and DType. */
PyObject *native_learn_arrays(PyObject *module, PyObject *args);

/* learn_births(type): from then on an array over an object of this type owns its memory, as one on the heap
 * does. */
PyObject *native_learn_births(PyObject *module, PyObject *type);

/* read_array(array): the layout, or None where that needs a closer look. */
PyObject *native_read_array(PyObject *module, PyObject *object);

#endif
