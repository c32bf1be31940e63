/* Reads the fields of NumPy arrays in place, because asking NumPy for them one by one takes longer than an export. */
#ifndef DLWRAP_ARRAYS_H
#define DLWRAP_ARRAYS_H

#include <Python.h>

#include <stdbool.h>

/* Where an array was, and how long. The array is borrowed. */
typedef struct Place {
    PyObject *array;
    const void *data;
    Py_ssize_t elements;
} Place;

/* Notes where an array is; false if that cannot be read. */
bool find_place(PyObject *array, Place *place);

/* Whether the array is still there, and as long. */
bool is_in_place(const Place *place);

/* learn_arrays(array, pointer, shape, strides, flags): compares an array's fields with what NumPy says. */
PyObject *native_learn_arrays(PyObject *module, PyObject *args);

/* read_array(array, itemsize): its layout, or None where that needs a closer look. */
PyObject *native_read_array(PyObject *module, PyObject *const *args, Py_ssize_t nargs);

#endif
