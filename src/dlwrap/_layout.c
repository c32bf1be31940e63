/* See the header. Nothing is read from an array before `learn_arrays` has seen that the fields are where
 * NumPy's ABI has had them since 1.7; where they are not, every array is looked at by way of NumPy. */
#include "_layout.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <structmember.h>

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

enum { OWNDATA = 0x4, WRITEABLE = 0x400 };

static PyTypeObject *ndarray; /* once its fields are known */
static PyTypeObject *layout_base;
static PyTypeObject *layout_type; /* of the layouts that are made here */
static PyTypeObject *birth_type;  /* of the bases of arrays that dlwrap allocated */

enum { MOST_DTYPES = 32 };

/* NumPy's dtype objects, what DLPack calls them, and their bytes. */
static struct {
    PyObject *dtype, *name;
    Py_ssize_t itemsize;
} dtypes[MOST_DTYPES];
static int dtypes_known;

/* The bytes that an array reaches, from the lowest to behind the highest element. */
typedef struct Reach {
    unsigned long long start, stop;
} Reach;

/* ---- arrays ---- */

/* Whether a tuple holds these numbers. */
static bool holds(PyObject *tuple, const Py_ssize_t *numbers, int count) {
    for (int i = 0; i < count; i++) {
        if (PyLong_AsSsize_t(PyTuple_GetItem(tuple, i)) != numbers[i]) {
            return false;
        }
    }
    return PyTuple_Size(tuple) == count;
}

/* Learns pairs of dtype and (code, bits, lanes), which live as long as the process. */
static bool learn_dtypes(PyObject *pairs) {
    for (Py_ssize_t i = 0; i < PyTuple_Size(pairs) && dtypes_known < MOST_DTYPES; i++) {
        PyObject *dtype, *name;
        int code, bits, lanes;
        if (!PyArg_ParseTuple(PyTuple_GetItem(pairs, i), "OO!", &dtype, &PyTuple_Type, &name) ||
            !PyArg_ParseTuple(name, "iii", &code, &bits, &lanes)) {
            return false;
        }
        Py_INCREF(dtype);
        Py_INCREF(name);
        dtypes[dtypes_known].dtype = dtype;
        dtypes[dtypes_known].name = name;
        dtypes[dtypes_known].itemsize = bits / 8;
        dtypes_known++;
    }
    return true;
}

PyObject *native_learn_arrays(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *type, *object, *shape, *strides, *base, *dtype, *names;
    unsigned long long pointer;
    int flags;
    if (!PyArg_ParseTuple(args, "O!OKO!O!OOiO!", &PyType_Type, &type, &object, &pointer, &PyTuple_Type,
                          &shape, &PyTuple_Type, &strides, &base, &dtype, &flags, &PyTuple_Type, &names)) {
        return NULL;
    }
    const Array *array = (const Array *)object;
    /* In the order of the fields: no pointer is followed before those in front of it were right. */
    bool known = (uintptr_t)array->data == pointer && array->ndim == PyTuple_Size(shape) &&
                 array->base == (base == Py_None ? NULL : base) && array->dtype == dtype &&
                 array->flags == flags && holds(shape, array->shape, array->ndim) &&
                 holds(strides, array->strides, array->ndim);
    if (PyErr_Occurred()) {
        return NULL;
    }
    if (known && ndarray == NULL && PyType_IsSubtype((PyTypeObject *)type, layout_base)) {
        if (!learn_dtypes(names)) {
            return NULL;
        }
        ndarray = Py_TYPE(object);
        layout_type = (PyTypeObject *)type;
        Py_INCREF((PyObject *)ndarray);
        Py_INCREF(type);
    }
    return PyBool_FromLong(known);
}

PyObject *native_learn_births(PyObject *module, PyObject *type) {
    (void)module;
    if (!PyType_Check(type)) {
        PyErr_SetString(PyExc_TypeError, "needs a type");
        return NULL;
    }
    Py_INCREF(type);
    birth_type = (PyTypeObject *)type;
    Py_RETURN_NONE;
}

/* The number of elements. */
static Py_ssize_t count_elements(const Array *array) {
    Py_ssize_t elements = 1;
    for (int i = 0; i < array->ndim; i++) {
        elements *= array->shape[i];
    }
    return elements;
}

/* The number of elements of what may be an array; -1 where that cannot be told. */
static Py_ssize_t try_to_count(PyObject *object) {
    return ndarray != NULL && PyObject_TypeCheck(object, ndarray) ? count_elements((Array *)object) : -1;
}

/* Whether an array of so many elements is where it was. */
static bool is_at(PyObject *object, Py_ssize_t elements, unsigned long long pointer) {
    const Array *array = (const Array *)object;
    return object != NULL && elements >= 0 && count_elements(array) == elements &&
           (elements == 0 || (uintptr_t)array->data == pointer);
}

bool is_in_place(const Layout *layout) {
    return is_at(layout->array, layout->elements, layout->pointer) &&
           (layout->owner == layout->array ||
            is_at(layout->owner, layout->owner_elements, layout->owner_pointer));
}

/* The bytes that an array with elements reaches; false where a stride is negative or no multiple of the size.
 */
static bool find_reach(const Array *array, Py_ssize_t itemsize, Reach *reach) {
    reach->start = reach->stop = (uintptr_t)array->data;
    for (int i = 0; i < array->ndim; i++) {
        if (array->shape[i] > 1) {
            if (array->strides[i] < 0 || array->strides[i] % itemsize != 0) {
                return false;
            }
            reach->stop += (unsigned long long)((array->shape[i] - 1) * array->strides[i]);
        }
    }
    reach->stop += (unsigned long long)itemsize;
    return true;
}

/* The extents as a tuple. */
static PyObject *make_shape(const Array *array) {
    PyObject *shape = PyTuple_New(array->ndim);
    for (int i = 0; shape != NULL && i < array->ndim; i++) {
        PyObject *size = PyLong_FromSsize_t(array->shape[i]);
        if (size == NULL || PyTuple_SetItem(shape, i, size) != 0) {
            Py_CLEAR(shape);
        }
    }
    return shape;
}

/* The strides in elements, those of a C-contiguous array where they are never used. */
static PyObject *make_strides(const Array *array, Py_ssize_t itemsize) {
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

/* The ndarray whose memory it is, if that is itself or below it, and on the heap or allocated by dlwrap. */
static const Array *find_heap_owner(const Array *array) {
    while (array->base != NULL && Py_TYPE(array->base) == ndarray) {
        array = (const Array *)array->base;
    }
    bool on_heap = array->base == NULL && (array->flags & OWNDATA);
    bool born_here = array->base != NULL && Py_TYPE(array->base) == birth_type;
    return on_heap || born_here ? array : NULL;
}

/* Finds the bytes of a common array and of its owner; false where that needs a closer look. */
static bool find_bytes(const Array *array, const Array *owner, Py_ssize_t itemsize, Reach *reach,
                       Reach *owned) {
    if (owner == NULL || count_elements(array) == 0 || (uintptr_t)array->data % (size_t)itemsize != 0 ||
        !find_reach(array, itemsize, reach)) {
        return false;
    }
    *owned = *reach;
    if (owner == array) {
        return true;
    }
    if (owner->dtype != array->dtype || count_elements(owner) == 0 || !find_reach(owner, itemsize, owned)) {
        return false;
    }
    owned->start = owned->start < reach->start ? owned->start : reach->start;
    owned->stop = owned->stop > reach->stop ? owned->stop : reach->stop;
    return true;
}

/* Which of the dtypes an array has; -1 for any other. */
static int find_dtype(const Array *array) {
    int at = dtypes_known - 1;
    while (at >= 0 && dtypes[at].dtype != array->dtype) {
        at--;
    }
    return at;
}

Layout *read_array(PyObject *object) {
    const Array *array = (const Array *)object;
    int dtype = ndarray == NULL || Py_TYPE(object) != ndarray ? -1 : find_dtype(array);
    if (dtype < 0) {
        return NULL;
    }
    const Array *owner = find_heap_owner(array);
    Py_ssize_t itemsize = dtypes[dtype].itemsize;
    Reach reach, owned;
    if (!find_bytes(array, owner, itemsize, &reach, &owned)) {
        return NULL;
    }
    Layout *layout = (Layout *)((allocfunc)PyType_GetSlot(layout_type, Py_tp_alloc))(layout_type, 0);
    if (layout == NULL) {
        return NULL;
    }
    layout->shape = make_shape(array);
    layout->strides = make_strides(array, itemsize);
    if (layout->shape == NULL || layout->strides == NULL) {
        Py_DECREF(layout);
        return NULL;
    }
    PyObject *kept[] = {object, (PyObject *)owner, object, dtypes[dtype].name};
    for (size_t i = 0; i < sizeof(kept) / sizeof(kept[0]); i++) {
        Py_INCREF(kept[i]);
    }
    layout->array = kept[0];
    layout->owner = kept[1];
    layout->hold = kept[2];
    layout->dtype = kept[3];
    layout->pointer = reach.start;
    layout->stop = reach.stop;
    layout->owner_start = owned.start;
    layout->owner_stop = owned.stop;
    layout->owner_pointer = (uintptr_t)owner->data;
    layout->itemsize = itemsize;
    layout->elements = count_elements(array);
    layout->owner_elements = count_elements(owner);
    layout->nbytes = layout->elements * itemsize;
    layout->owner_nbytes = layout->owner_elements * itemsize;
    layout->readonly = (array->flags & WRITEABLE) == 0;
    layout->writable_memory = true;
    return layout;
}

PyObject *native_read_array(PyObject *module, PyObject *object) {
    (void)module;
    PyObject *layout = (PyObject *)read_array(object);
    return layout != NULL || PyErr_Occurred() ? layout : Py_BuildValue("");
}

/* ---- the type ---- */

bool is_layout(PyObject *object) {
    return PyObject_TypeCheck(object, layout_base);
}

/* Layout(array, shape, strides, dtype, itemsize, nbytes, readonly, pointer, stop, owner_start, owner_stop,
 * owner, owner_pointer, owner_nbytes, writable_memory, file_backed, hold) */
static PyObject *layout_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {"array",         "shape",        "strides",
                            "dtype",         "itemsize",     "nbytes",
                            "readonly",      "pointer",      "stop",
                            "owner_start",   "owner_stop",   "owner",
                            "owner_pointer", "owner_nbytes", "writable_memory",
                            "file_backed",   "hold",         NULL};
    Layout parsed = {0};
    int readonly, writable_memory, file_backed;
    if (!PyArg_ParseTupleAndKeywords(
            args, keywords, "OO!O!O!nnpKKKKOKnppO", names, &parsed.array, &PyTuple_Type, &parsed.shape,
            &PyTuple_Type, &parsed.strides, &PyTuple_Type, &parsed.dtype, &parsed.itemsize, &parsed.nbytes,
            &readonly, &parsed.pointer, &parsed.stop, &parsed.owner_start, &parsed.owner_stop, &parsed.owner,
            &parsed.owner_pointer, &parsed.owner_nbytes, &writable_memory, &file_backed, &parsed.hold)) {
        return NULL;
    }
    Layout *self = (Layout *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (self == NULL) {
        return NULL;
    }
    PyObject *kept[] = {parsed.array, parsed.shape, parsed.strides, parsed.dtype, parsed.owner, parsed.hold};
    for (size_t i = 0; i < sizeof(kept) / sizeof(kept[0]); i++) {
        Py_INCREF(kept[i]);
    }
    parsed.elements = try_to_count(parsed.array);
    parsed.owner_elements = try_to_count(parsed.owner);
    parsed.readonly = (char)readonly;
    parsed.writable_memory = (char)writable_memory;
    parsed.file_backed = (char)file_backed;
    size_t head = offsetof(Layout, array);
    memcpy((char *)self + head, (char *)&parsed + head, sizeof(Layout) - head);
    return (PyObject *)self;
}

static int layout_traverse(PyObject *object, visitproc visit, void *arg) {
    Layout *self = (Layout *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->array);
    Py_VISIT(self->owner);
    Py_VISIT(self->hold);
    return 0;
}

static int layout_clear(PyObject *object) {
    Layout *self = (Layout *)object;
    Py_CLEAR(self->array);
    Py_CLEAR(self->owner);
    Py_CLEAR(self->hold);
    return 0;
}

static void layout_dealloc(PyObject *object) {
    Layout *self = (Layout *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    layout_clear(object);
    Py_CLEAR(self->shape);
    Py_CLEAR(self->strides);
    Py_CLEAR(self->dtype);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

static PyMemberDef layout_members[] = {
    {"array", T_OBJECT_EX, offsetof(Layout, array), READONLY, NULL},
    {"shape", T_OBJECT_EX, offsetof(Layout, shape), READONLY, NULL},
    {"strides", T_OBJECT_EX, offsetof(Layout, strides), READONLY, NULL},
    {"dtype", T_OBJECT_EX, offsetof(Layout, dtype), READONLY, NULL},
    {"owner", T_OBJECT_EX, offsetof(Layout, owner), READONLY, NULL},
    {"hold", T_OBJECT_EX, offsetof(Layout, hold), READONLY, NULL},
    {"pointer", T_ULONGLONG, offsetof(Layout, pointer), READONLY, NULL},
    {"stop", T_ULONGLONG, offsetof(Layout, stop), READONLY, NULL},
    {"owner_start", T_ULONGLONG, offsetof(Layout, owner_start), READONLY, NULL},
    {"owner_stop", T_ULONGLONG, offsetof(Layout, owner_stop), READONLY, NULL},
    {"owner_pointer", T_ULONGLONG, offsetof(Layout, owner_pointer), READONLY, NULL},
    {"itemsize", T_PYSSIZET, offsetof(Layout, itemsize), READONLY, NULL},
    {"nbytes", T_PYSSIZET, offsetof(Layout, nbytes), READONLY, NULL},
    {"owner_nbytes", T_PYSSIZET, offsetof(Layout, owner_nbytes), READONLY, NULL},
    {"readonly", T_BOOL, offsetof(Layout, readonly), READONLY, NULL},
    {"writable_memory", T_BOOL, offsetof(Layout, writable_memory), READONLY, NULL},
    {"file_backed", T_BOOL, offsetof(Layout, file_backed), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot layout_slots[] = {
    {Py_tp_doc, "The fields of dlwrap._layout.HostLayout."},
    {Py_tp_new, layout_new},
    {Py_tp_traverse, layout_traverse},
    {Py_tp_clear, layout_clear},
    {Py_tp_dealloc, layout_dealloc},
    {Py_tp_members, layout_members},
    {0, NULL},
};

static PyType_Spec layout_spec = {
    .name = "dlwrap._native.Layout",
    .basicsize = sizeof(Layout),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = layout_slots,
};

PyObject *make_layout_type(void) {
    layout_base = (PyTypeObject *)PyType_FromSpec(&layout_spec);
    return (PyObject *)layout_base;
}
