/* NumPy arrays, read in place. Nothing is read before `learn_arrays` has seen that the fields are where NumPy's ABI
 * has had them since 1.7; where they are not, dlwrap asks NumPy, which is slower. */
#include "_arrays.h"

#include <stdint.h>

/* PyArrayObject_fields of numpy/ndarraytypes.h, as far as it is needed. */
typedef struct Array {
    PyObject_HEAD char *data;
    int ndim;
    Py_ssize_t *shape;
    Py_ssize_t *strides; /* in bytes */
    PyObject *base;
    PyObject *dtype;
    int flags;
} Array;

enum { C_CONTIGUOUS = 0x1, OWNDATA = 0x4, WRITEABLE = 0x400 };

static PyTypeObject *ndarray; /* once its fields are known */

/* The bytes that an array reaches, from the lowest to behind the highest element. */
typedef struct Reach {
    uintptr_t start, stop;
} Reach;

/* Whether a tuple holds these numbers. */
static bool holds(PyObject *tuple, const Py_ssize_t *numbers, int count) {
    if (PyTuple_Size(tuple) != count) {
        return false;
    }
    for (int i = 0; i < count; i++) {
        if (PyLong_AsSsize_t(PyTuple_GetItem(tuple, i)) != numbers[i]) {
            return false;
        }
    }
    return true;
}

PyObject *native_learn_arrays(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *object, *shape, *strides, *base, *dtype;
    unsigned long long pointer;
    int flags;
    if (!PyArg_ParseTuple(args, "OKO!O!OOi", &object, &pointer, &PyTuple_Type, &shape, &PyTuple_Type, &strides, &base,
                          &dtype, &flags)) {
        return NULL;
    }
    const Array *array = (const Array *)object;
    /* In the order of the fields: no pointer is followed before those in front of it were right. */
    bool known = (uintptr_t)array->data == pointer && array->ndim == PyTuple_Size(shape) &&
                 array->base == (base == Py_None ? NULL : base) && array->dtype == dtype && array->flags == flags &&
                 holds(shape, array->shape, array->ndim) && holds(strides, array->strides, array->ndim);
    if (PyErr_Occurred()) {
        return NULL;
    }
    if (known && ndarray == NULL) {
        ndarray = Py_TYPE(object);
        Py_INCREF((PyObject *)ndarray);
    }
    return PyBool_FromLong(known);
}

/* The number of elements. */
static Py_ssize_t count_elements(const Array *array) {
    Py_ssize_t elements = 1;
    for (int i = 0; i < array->ndim; i++) {
        elements *= array->shape[i];
    }
    return elements;
}

bool find_place(PyObject *array, Place *place) {
    if (ndarray == NULL || !PyObject_TypeCheck(array, ndarray)) {
        return false;
    }
    *place = (Place){array, ((Array *)array)->data, count_elements((Array *)array)};
    return true;
}

bool is_in_place(const Place *place) {
    const Array *array = (const Array *)place->array;
    return count_elements(array) == place->elements && (place->elements == 0 || array->data == place->data);
}

/* The bytes that an array with elements reaches; false where a stride is negative or no multiple of the size. */
static bool find_reach(const Array *array, Py_ssize_t itemsize, Reach *reach) {
    reach->start = reach->stop = (uintptr_t)array->data;
    for (int i = 0; i < array->ndim; i++) {
        if (array->shape[i] > 1) {
            if (array->strides[i] < 0 || array->strides[i] % itemsize != 0) {
                return false;
            }
            reach->stop += (uintptr_t)((array->shape[i] - 1) * array->strides[i]);
        }
    }
    reach->stop += (uintptr_t)itemsize;
    return true;
}

/* The strides in elements, those of a C-contiguous array where they are never used. */
static PyObject *element_strides(const Array *array, Py_ssize_t itemsize) {
    PyObject *strides = PyTuple_New(array->ndim);
    Py_ssize_t compact = 1;
    for (int i = array->ndim - 1; strides != NULL && i >= 0; i--) {
        PyObject *stride = PyLong_FromSsize_t(array->shape[i] > 1 ? array->strides[i] / itemsize : compact);
        if (stride == NULL || PyTuple_SetItem(strides, i, stride) != 0) {
            Py_CLEAR(strides);
        }
        compact *= array->shape[i];
    }
    return strides;
}

/* The ndarray whose memory it is, if that is itself or below it, and on the heap. */
static const Array *find_heap_owner(const Array *array) {
    while (array->base != NULL && Py_TYPE(array->base) == ndarray) {
        array = (const Array *)array->base;
    }
    return array->base == NULL && (array->flags & OWNDATA) ? array : NULL;
}

PyObject *native_read_array(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    (void)module;
    if (nargs != 2) {
        PyErr_SetString(PyExc_TypeError, "read_array takes an array and its itemsize");
        return NULL;
    }
    Py_ssize_t itemsize = PyLong_AsSsize_t(args[1]);
    if (itemsize == -1 && PyErr_Occurred()) {
        return NULL;
    }
    if (ndarray == NULL || Py_TYPE(args[0]) != ndarray || itemsize <= 0) {
        Py_RETURN_NONE;
    }
    const Array *array = (const Array *)args[0], *owner = find_heap_owner(array);
    Py_ssize_t elements = count_elements(array);
    Reach reach, owned;
    if (owner == NULL || elements == 0 || (uintptr_t)array->data % (size_t)itemsize != 0 ||
        !find_reach(array, itemsize, &reach)) {
        Py_RETURN_NONE;
    }
    /* A contiguous owner's bytes are known without its itemsize's help; another is looked at more closely. */
    Py_ssize_t owner_elements = count_elements(owner);
    if (owner == array) {
        owned = reach;
    } else if (owner->dtype == array->dtype && owner_elements > 0 && find_reach(owner, itemsize, &owned)) {
        owned.start = owned.start < reach.start ? owned.start : reach.start;
        owned.stop = owned.stop > reach.stop ? owned.stop : reach.stop;
    } else {
        Py_RETURN_NONE;
    }
    PyObject *strides = element_strides(array, itemsize);
    return Py_BuildValue("NnOKKOnKK", strides, elements * itemsize, array->flags & WRITEABLE ? Py_False : Py_True,
                         (unsigned long long)reach.start, (unsigned long long)reach.stop, (PyObject *)owner,
                         owner_elements * itemsize, (unsigned long long)owned.start, (unsigned long long)owned.stop);
}
