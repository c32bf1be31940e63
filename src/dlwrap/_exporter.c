/* See the header. What is common is done here; Python's `_serve_dlpack` does the rest, and refuses. */
#include "_exporter.h"

#include <limits.h>
#include <string.h>

#include "_calls.h"
#include "_watch.h"

static PyTypeObject *exporter_type;
static PyObject *name_stream, *name_max_version, *name_dl_device, *name_copy, *name_serve;

/* What one call of __dlpack__ asks for. */
typedef struct Request {
    int minor; /* of the newest version that it knows; -1 for a legacy capsule */
    int uses;
    bool on_host;
} Request;

/* ---- capsules ---- */

/* Ends an export that nobody consumed. An exception may be pending: no call here sets or clears one. */
static void discard_capsule(PyObject *capsule) {
    const char *name = PyCapsule_GetName(capsule);
    if (name != NULL && (strcmp(name, "dltensor") == 0 || strcmp(name, "dltensor_versioned") == 0)) {
        retire(PyCapsule_GetPointer(capsule, name), (uintptr_t)PyCapsule_GetContext(capsule));
    }
}

bool hold_again(Exporter *self) {
    if (!atomic_load(&self->closed) && add_hold(self->lease)) {
        return true;
    }
    PyErr_SetString(PyExc_BufferError, "cannot export a closed HostWrappedBuffer: wrap the array again");
    return false;
}

/* Makes a capsule of one more hold. */
static PyObject *make_capsule(Exporter *self, int minor, bool on_host, bool copied) {
    if (!hold_again(self)) {
        return NULL;
    }
    Export *export = begin_export(self->lease, minor, on_host, copied);
    if (export == NULL) {
        drop_hold(self->lease);
        return PyErr_NoMemory();
    }
    uintptr_t generation = atomic_load_explicit(&export->generation, memory_order_relaxed);
    PyObject *capsule = PyCapsule_New(export, minor < 0 ? "dltensor" : "dltensor_versioned", discard_capsule);
    if (capsule == NULL) {
        retire(export, generation);
        return NULL;
    }
    PyCapsule_SetContext(capsule, (void *)generation);
    return capsule;
}

PyObject *native_make_capsule(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *object;
    int minor, on_host, copied;
    if (!PyArg_ParseTuple(args, "O!ipp", exporter_type, &object, &minor, &on_host, &copied)) {
        return NULL;
    }
    return make_capsule((Exporter *)object, minor, on_host, copied);
}

/* ---- __dlpack__ ---- */

bool is_ready(const Exporter *self) {
    return self->layout != NULL && !atomic_load(&self->closed) && is_in_place(self->layout);
}

/* Reads a tuple of two small numbers; false for anything else. */
static bool read_pair(PyObject *value, long *first, long *second) {
    if (!PyTuple_Check(value) || PyTuple_Size(value) != 2) {
        return false;
    }
    PyObject *one = PyTuple_GetItem(value, 0), *two = PyTuple_GetItem(value, 1);
    if (!PyLong_CheckExact(one) || !PyLong_CheckExact(two)) {
        return false;
    }
    int overflow_one, overflow_two;
    *first = PyLong_AsLongAndOverflow(one, &overflow_one);
    *second = PyLong_AsLongAndOverflow(two, &overflow_two);
    return overflow_one == 0 && overflow_two == 0;
}

/* Reads one keyword; false for what Python has to look at. */
static bool read_keyword(const Exporter *self, PyObject *name, PyObject *value, Request *request) {
    long first, second;
    if (name == name_stream) {
        int overflow = 0;
        long stream = value == Py_None           ? -1
                      : PyLong_CheckExact(value) ? PyLong_AsLongAndOverflow(value, &overflow)
                                                 : 0;
        request->uses = stream == 1 ? USED_ON_LEGACY : USED_ANYWHERE;
        return stream == 1 || (stream == -1 && overflow == 0);
    }
    if (name == name_copy) {
        return value == Py_None || value == Py_False;
    }
    if (name == name_max_version) {
        if (value == Py_None) {
            return true;
        }
        if (!read_pair(value, &first, &second) || first < 1 || second < 0) {
            return false;
        }
        request->minor = first > 1 || second > INT_MAX ? INT_MAX : (int)second;
        return true;
    }
    if (name == name_dl_device) {
        if (value == Py_None) {
            return true;
        }
        if (!read_pair(value, &first, &second)) {
            return false;
        }
        request->on_host = first == DL_CPU && second == 0;
        return request->on_host || (first == DL_CUDA && second == self->lease->device_id);
    }
    return false;
}

/* Whether a request can be served here. */
static bool is_plain(Exporter *self, PyObject *const *values, Py_ssize_t count, PyObject *names,
                     Request *request) {
    Py_ssize_t named = names == NULL ? 0 : PyTuple_Size(names);
    if (count != 0 || !is_ready(self)) {
        return false;
    }
    for (Py_ssize_t i = 0; i < named; i++) {
        if (!read_keyword(self, PyTuple_GetItem(names, i), values[i], request)) {
            return false;
        }
    }
    if (self->lease->read_only && request->minor < 0) {
        return false;
    }
    /* On the host nobody may look before the work has ended that was noted so far. */
    return request->on_host ? atomic_load(&self->lease->uses) == 0 : runs_in_context(self->primary);
}

/* Has Python's method serve the request. */
static PyObject *serve_by_python(PyObject *self, PyObject *const *values, Py_ssize_t count, PyObject *names) {
    PyObject *result = NULL, *method = PyObject_GetAttr(self, name_serve);
    PyObject *arguments = PyTuple_New(count), *keywords = PyDict_New();
    bool complete = method != NULL && arguments != NULL && keywords != NULL;
    for (Py_ssize_t i = 0; complete && i < count; i++) {
        Py_INCREF(values[i]);
        complete = PyTuple_SetItem(arguments, i, values[i]) == 0;
    }
    Py_ssize_t named = names == NULL ? 0 : PyTuple_Size(names);
    for (Py_ssize_t i = 0; complete && i < named; i++) {
        complete = PyDict_SetItem(keywords, PyTuple_GetItem(names, i), values[count + i]) == 0;
    }
    if (complete) {
        result = PyObject_Call(method, arguments, keywords);
    }
    Py_XDECREF(method);
    Py_XDECREF(arguments);
    Py_XDECREF(keywords);
    return result;
}

/* __dlpack__(*, stream=None, max_version=None, dl_device=None, copy=None) */
static PyObject *exporter_dlpack(PyObject *object, PyObject *const *values, Py_ssize_t count,
                                 PyObject *names) {
    Exporter *self = (Exporter *)object;
    Request request = {.minor = -1, .uses = USED_ANYWHERE, .on_host = false};
    if (is_watched() || !is_plain(self, values, count, names, &request)) {
        return serve_by_python(object, values, count, names);
    }
    PyObject *capsule = make_capsule(self, request.minor, request.on_host, false);
    if (capsule != NULL && !request.on_host) {
        note_uses(self->lease, request.uses);
    }
    return capsule;
}

/* __dlpack_device__(): (kDLCUDA, device) in both memory kinds. */
static PyObject *exporter_dlpack_device(PyObject *object, PyObject *unused) {
    (void)unused;
    return Py_BuildValue("(ii)", DL_CUDA, ((Exporter *)object)->lease->device_id);
}

/* ---- the type ---- */

/* Reads 64 bits. */
static bool read_address(PyObject *value, uint64_t *out) {
    *out = PyLong_AsUnsignedLongLong(value);
    return *out != UINT64_MAX || PyErr_Occurred() == NULL;
}

/* Reads a number from 0 to the greatest. */
static bool read_number(PyObject *value, int64_t greatest, int64_t *out) {
    *out = PyLong_AsLongLong(value);
    if (*out == -1 && PyErr_Occurred() != NULL) {
        return false;
    }
    if (*out < 0 || *out > greatest) {
        PyErr_SetString(PyExc_OverflowError, "a number is out of range");
        return false;
    }
    return true;
}

/* Reads integers from a tuple. */
static bool read_extents(PyObject *tuple, int64_t *out, Py_ssize_t count) {
    for (Py_ssize_t i = 0; i < count; i++) {
        out[i] = PyLong_AsLongLong(PyTuple_GetItem(tuple, i));
        if (out[i] == -1 && PyErr_Occurred() != NULL) {
            return false;
        }
    }
    return true;
}

/* Reads DLPack's name of an element type. */
static bool read_dtype(PyObject *tuple, DLDataType *dtype) {
    int64_t code, bits, lanes;
    if (PyTuple_Size(tuple) != 3) {
        PyErr_SetString(PyExc_ValueError, "dtype must be (code, bits, lanes)");
        return false;
    }
    if (!read_number(PyTuple_GetItem(tuple, 0), UINT8_MAX, &code) ||
        !read_number(PyTuple_GetItem(tuple, 1), UINT8_MAX, &bits) ||
        !read_number(PyTuple_GetItem(tuple, 2), UINT16_MAX, &lanes)) {
        return false;
    }
    *dtype = (DLDataType){(uint8_t)code, (uint8_t)bits, (uint16_t)lanes};
    return true;
}

/* Makes a lease of memory that looks like this. */
static Lease *make_lease(const Layout *layout) {
    Py_ssize_t ndim = PyTuple_Size(layout->shape);
    if (PyTuple_Size(layout->strides) != ndim) {
        PyErr_SetString(PyExc_ValueError, "shape and strides must have the same length");
        return NULL;
    }
    Lease *lease = new_lease((int32_t)ndim);
    if (lease == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    if (!read_extents(layout->shape, lease->shape, ndim) ||
        !read_extents(layout->strides, lease->strides, ndim) || !read_dtype(layout->dtype, &lease->dtype)) {
        discard_lease(lease);
        return NULL;
    }
    lease->host_data = (void *)(uintptr_t)layout->pointer;
    return lease;
}

Exporter *make_exporter(PyTypeObject *type, const Layout *layout) {
    Exporter *self = (Exporter *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (self == NULL) {
        return NULL;
    }
    atomic_init(&self->closed, true);
    self->lease = make_lease(layout);
    if (self->lease == NULL) {
        Py_CLEAR(self);
    }
    return self;
}

void lend(Exporter *self, Layout *layout, Loan *loan, const Terms *terms) {
    Lease *lease = self->lease;
    lease->device_data = (void *)(uintptr_t)terms->device_pointer;
    lease->device_id = loan->device;
    lease->read_only = terms->read_only;
    Py_INCREF(loan); /* until the lifetime manager has it */
    lease->loan = loan;
    show_lease(loan, lease);
    atomic_store_explicit(&lease->wrapped, true, memory_order_relaxed);
    self->primary = terms->primary;
    self->pageable = terms->pageable;
    Py_INCREF(layout);
    self->layout = layout;
    Py_INCREF(loan);
    self->loan = loan;
    atomic_store(&self->closed, false);
}

PyObject *native_lend(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    (void)module;
    if (nargs != 7 || !PyType_Check(args[0]) || !PyType_IsSubtype((PyTypeObject *)args[0], exporter_type) ||
        !is_layout(args[1])) {
        PyErr_SetString(
            PyExc_TypeError,
            "lend takes a type of exporters, a layout, loan, device pointer, readonly, context, pageable");
        return NULL;
    }
    Loan *loan = as_loan(args[2]);
    uint64_t device_pointer, primary;
    int read_only, pageable;
    if (loan == NULL || !read_address(args[3], &device_pointer) ||
        (read_only = PyObject_IsTrue(args[4])) < 0 || !read_address(args[5], &primary) ||
        (pageable = PyObject_IsTrue(args[6])) < 0) {
        return NULL;
    }
    Exporter *self = make_exporter((PyTypeObject *)args[0], (Layout *)args[1]);
    if (self != NULL) {
        Terms terms = {device_pointer, (void *)(uintptr_t)primary, read_only != 0, pageable != 0};
        lend(self, (Layout *)args[1], loan, &terms);
    }
    return (PyObject *)self;
}

/* Only `lend` makes exporters: without a lease there would be nothing behind one. */
static PyObject *exporter_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    (void)type;
    (void)args;
    (void)keywords;
    PyErr_SetString(PyExc_TypeError, "dlwrap.wrap makes HostWrappedBuffers");
    return NULL;
}

/* Shows the collector what the exporter keeps. */
static int exporter_traverse(PyObject *object, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(((Exporter *)object)->layout);
    Py_VISIT(((Exporter *)object)->loan);
    return 0;
}

/* Lets the arrays go; the lease has a hold of its own on them. */
static int exporter_clear(PyObject *object) {
    Py_CLEAR(((Exporter *)object)->layout);
    return 0;
}

/* The wrapper's own hold goes with it. */
static void exporter_dealloc(PyObject *object) {
    Exporter *self = (Exporter *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    exporter_clear(object);
    if (self->loan != NULL) {
        if (!atomic_load(&self->closed)) {
            atomic_store_explicit(&self->lease->wrapped, false, memory_order_relaxed);
            drop_hold(self->lease);
        }
        drop_memory(self->lease);
        Py_DECREF(self->loan);
    } else if (self->lease != NULL) {
        discard_lease(self->lease);
    }
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

Exporter *as_exporter(PyObject *object) {
    if (PyObject_TypeCheck(object, exporter_type)) {
        return (Exporter *)object;
    }
    PyErr_SetString(PyExc_TypeError, "needs an Exporter");
    return NULL;
}

PyObject *native_give_up(PyObject *module, PyObject *object) {
    (void)module;
    Exporter *self = as_exporter(object);
    if (self == NULL) {
        return NULL;
    }
    if (atomic_load(&self->closed)) {
        return PyLong_FromLong(0);
    }
    long long others = take_only_hold(self->lease);
    if (others != 0) {
        return PyLong_FromLongLong(others > 0 ? others : 0);
    }
    atomic_store(&self->closed, true);
    atomic_store_explicit(&self->lease->wrapped, false, memory_order_relaxed);
    push_released(self->lease);
    exporter_clear(object); /* last, because it may run a finaliser */
    return PyLong_FromLong(0);
}

typedef int (*UserObjectCreate)(void **made, void *argument, void (*destroy)(void *), unsigned references,
                                unsigned flags);
typedef int (*GraphRetain)(void *graph, void *user_object, unsigned count, unsigned flags);
typedef int (*UserObjectRelease)(void *user_object, unsigned count);

enum { NO_DESTRUCTOR_SYNC = 1, MOVE_REFERENCES = 1 };

/* Gives the lease's hold, already counted, to the graph; whatever fails, the hold is dropped once. */
static int give_to_graph(UserObjectCreate create, GraphRetain retain, UserObjectRelease release, void *graph,
                         Lease *lease, void **user_object) {
    int code = create(user_object, lease, drop_graph, 1, NO_DESTRUCTOR_SYNC);
    if (code != 0) {
        drop_graph(lease);
        return code;
    }
    code = retain(graph, *user_object, 1, MOVE_REFERENCES);
    if (code != 0) {
        release(*user_object, 1); /* calls drop_graph */
    }
    return code;
}

PyObject *native_hold_by_graph(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *object;
    unsigned long long create, retain, release, graph;
    if (!PyArg_ParseTuple(args, "O!KKKK", exporter_type, &object, &create, &retain, &release, &graph)) {
        return NULL;
    }
    Exporter *self = (Exporter *)object;
    if (!hold_again(self)) {
        return NULL;
    }
    Lease *lease = self->lease;
    atomic_fetch_add(&lease->graphs, 1);
    atomic_fetch_add(&live_graphs, 1);
    void *user_object = NULL;
    int code;
    Py_BEGIN_ALLOW_THREADS code =
        give_to_graph((UserObjectCreate)(uintptr_t)create, (GraphRetain)(uintptr_t)retain,
                      (UserObjectRelease)(uintptr_t)release, (void *)(uintptr_t)graph, lease, &user_object);
    Py_END_ALLOW_THREADS return Py_BuildValue("(iK)", code, (unsigned long long)(uintptr_t)user_object);
}

PyObject *native_graphs_of(PyObject *module, PyObject *object) {
    (void)module;
    Exporter *self = as_exporter(object);
    return self == NULL ? NULL : PyLong_FromLongLong(atomic_load(&self->lease->graphs));
}

PyObject *native_uses_of(PyObject *module, PyObject *object) {
    (void)module;
    Exporter *self = as_exporter(object);
    return self == NULL ? NULL : PyLong_FromLong(atomic_load(&self->lease->uses));
}

PyObject *native_note_uses(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *object;
    int uses;
    if (!PyArg_ParseTuple(args, "O!i", exporter_type, &object, &uses)) {
        return NULL;
    }
    note_uses(((Exporter *)object)->lease, uses);
    Py_RETURN_NONE;
}

/* exports: how many exports are alive. */
static PyObject *exporter_exports(PyObject *object, void *unused) {
    (void)unused;
    Lease *lease = ((Exporter *)object)->lease;
    long long exports = atomic_load(&lease->holders) - atomic_load(&lease->graphs) - 1;
    return PyLong_FromLongLong(exports > 0 ? exports : 0);
}

/* layout: what the array looks like; None once it is closed. */
static PyObject *exporter_layout(PyObject *object, void *unused) {
    (void)unused;
    PyObject *layout = (PyObject *)((Exporter *)object)->layout;
    return Py_BuildValue("O", layout == NULL ? Py_None : layout);
}

/* _lease: what the lifetime manager notes of it. */
static PyObject *exporter_loan(PyObject *object, void *unused) {
    (void)unused;
    return Py_BuildValue("O", (PyObject *)((Exporter *)object)->loan);
}

/* memory: the memory kind. */
static PyObject *exporter_memory(PyObject *object, void *unused) {
    (void)unused;
    return PyUnicode_InternFromString(((Exporter *)object)->pageable ? "pageable" : "pinned");
}

/* closed: whether the wrapper's hold was given up. */
static PyObject *exporter_closed(PyObject *object, void *unused) {
    (void)unused;
    return PyBool_FromLong(atomic_load(&((Exporter *)object)->closed));
}

/* device: ordinal of the CUDA device. */
static PyObject *exporter_device(PyObject *object, void *unused) {
    (void)unused;
    return PyLong_FromLong(((Exporter *)object)->lease->device_id);
}

/* readonly: whether consumers are told not to write. */
static PyObject *exporter_readonly(PyObject *object, void *unused) {
    (void)unused;
    return PyBool_FromLong(((Exporter *)object)->lease->read_only);
}

PyDoc_STRVAR(
    dlpack_doc,
    "__dlpack__($self, /, *, stream=None, max_version=None, dl_device=None, copy=None)\n--\n\n"
    "Export a DLPack capsule (array API standard, ``__dlpack__``; DLPack 1.3).\n\n"
    "Parameters\n"
    "----------\n"
    "stream : int, optional\n"
    "    The consumer's stream: 1 legacy default, 2 per-thread default, above 2 a handle; None or -1 if it "
    "tells\n"
    "    none. The release waits for it; nothing is launched on it.\n"
    "max_version : tuple of int, optional\n"
    "    The newest DLPack version the consumer knows; None asks for a legacy capsule.\n"
    "dl_device : tuple of int, optional\n"
    "    (2, device), or (1, 0) for a view on the CPU, which waits for the work recorded so far.\n"
    "copy : bool, optional\n"
    "    True exports a copy, page-locked like the array.\n\n"
    "Raises\n"
    "------\n"
    "BufferError\n"
    "    The request cannot be served: closed, another device, another context than the device's primary "
    "one,\n"
    "    read-only to a consumer that asks for a legacy capsule, memory that has moved, a forked child.\n"
    "ValueError, TypeError\n"
    "    ``stream`` is none of the above.\n");

static PyMethodDef exporter_methods[] = {
    {"__dlpack__", (PyCFunction)(void (*)(void))exporter_dlpack, METH_FASTCALL | METH_KEYWORDS, dlpack_doc},
    {"__dlpack_device__", exporter_dlpack_device, METH_NOARGS,
     "__dlpack_device__($self, /)\n--\n\nTell (kDLCUDA, device) in both memory kinds."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef exporter_attributes[] = {
    {"exports", exporter_exports, NULL,
     "Number of live DLPack exports; views that went through the CUDA array interface hold this object "
     "instead.",
     NULL},
    {"_layout", exporter_layout, NULL, "What the array looks like; None once it is closed.", NULL},
    {"_lease", exporter_loan, NULL, "What the lifetime manager notes of it.", NULL},
    {"memory", exporter_memory, NULL, "The memory kind, \"pinned\" or \"pageable\".", NULL},
    {"closed", exporter_closed, NULL, "Whether `close` gave the array up.", NULL},
    {"device", exporter_device, NULL, "Ordinal of the CUDA device.", NULL},
    {"readonly", exporter_readonly, NULL, "Whether consumers are told not to write.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot exporter_slots[] = {
    {Py_tp_doc, "One lease's holder and maker of capsules."},
    {Py_tp_new, exporter_new},
    {Py_tp_traverse, exporter_traverse},
    {Py_tp_clear, exporter_clear},
    {Py_tp_dealloc, exporter_dealloc},
    {Py_tp_methods, exporter_methods},
    {Py_tp_getset, exporter_attributes},
    {0, NULL},
};

static PyType_Spec exporter_spec = {
    .name = "dlwrap._native.Exporter",
    .basicsize = sizeof(Exporter),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = exporter_slots,
};

PyObject *make_exporter_type(void) {
    static const struct {
        PyObject **name;
        const char *text;
    } names[] = {{&name_stream, "stream"},
                 {&name_max_version, "max_version"},
                 {&name_dl_device, "dl_device"},
                 {&name_copy, "copy"},
                 {&name_serve, "_serve_dlpack"}};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        *names[i].name = PyUnicode_InternFromString(names[i].text);
        if (*names[i].name == NULL) {
            return NULL;
        }
    }
    exporter_type = (PyTypeObject *)PyType_FromSpec(&exporter_spec);
    return (PyObject *)exporter_type;
}
