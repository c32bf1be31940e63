/* See the header. One lock for all, which is held for a few steps and never while Python's may be waited for.
 */
#include "_registration.h"

#include <pthread.h>
#include <search.h>
#include <stddef.h>
#include <stdint.h>
#include <structmember.h>

#include "_calls.h"
#include "_loan.h"

/* A tree of the `bytes` of the ranges that it owns; they do not overlap, and what overlaps counts as equal.
 */
struct Registrations {
    PyObject_HEAD void *root;
    unsigned long long locked; /* bytes that are page-locked */
};

static PyTypeObject *registration_type, *registrations_type;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void renew_registrations(void) {
    pthread_mutex_init(&lock, NULL);
}

/* ---- the tree, with the lock ---- */

/* Orders ranges by address. */
static int compare(const void *one, const void *other) {
    const Bytes *a = one, *b = other;
    return a->stop <= b->start ? -1 : a->start >= b->stop ? 1 : 0;
}

/* The range that a node of the tree stands for. */
static Registration *range_at(void *node) {
    return node == NULL ? NULL : (Registration *)(*(char **)node - offsetof(Registration, bytes));
}

/* One of the ranges that share a byte with these. */
static Registration *find_any(const Registrations *table, Bytes bytes) {
    return bytes.start >= bytes.stop ? NULL : range_at(tfind(&bytes, &table->root, compare));
}

/* The first of them. */
static Registration *find_first(const Registrations *table, Bytes bytes) {
    Registration *first = NULL, *found;
    while ((found = find_any(table, bytes)) != NULL) {
        first = found;
        bytes.stop = found->bytes.start;
    }
    return first;
}

/* A live range around the bytes, for a writer if need be. */
static Registration *find_around(const Registrations *table, Bytes bytes, bool writable) {
    Registration *found = find_any(table, bytes);
    bool fits = found != NULL && found->state == LIVE && found->bytes.start <= bytes.start &&
                bytes.stop <= found->bytes.stop && !(writable && found->read_only);
    return fits ? found : NULL;
}

/* Makes a loan a user. */
static void join(Loan *loan, Registration *range) {
    Py_INCREF(range);
    loan->pin = range;
    range->users++;
}

/* Undoes that; the reference is the caller's now. */
static void part(Loan *loan, Registration *range) {
    loan->pin = NULL;
    range->users--;
}

bool share_at_once(Registrations *table, Loan *loan, Bytes bytes, bool writable) {
    pthread_mutex_lock(&lock);
    Registration *found = find_around(table, bytes, writable);
    bool fits = found != NULL && !found->flush && found->device_start_known && found->device == loan->device;
    if (fits) {
        join(loan, found);
    }
    pthread_mutex_unlock(&lock);
    return fits;
}

PyObject *native_leave(PyObject *module, PyObject *object) {
    (void)module;
    Loan *loan = as_loan(object);
    if (loan == NULL) {
        return NULL;
    }
    pthread_mutex_lock(&lock);
    Registration *range = loan->pin;
    if (range != NULL) {
        part(loan, range);
    }
    pthread_mutex_unlock(&lock);
    return range == NULL ? Py_BuildValue("") : (PyObject *)range;
}

PyObject *native_leave_to_others(PyObject *module, PyObject *object) {
    (void)module;
    Loan *loan = as_loan(object);
    if (loan == NULL) {
        return NULL;
    }
    pthread_mutex_lock(&lock);
    Registration *range = loan->pin;
    bool left = range == NULL || range->users > 1;
    if (range != NULL && left) {
        part(loan, range);
    }
    pthread_mutex_unlock(&lock);
    if (left) {
        Py_XDECREF(range);
    }
    return PyBool_FromLong(left);
}

/* ---- the table ---- */

Registrations *as_registrations(PyObject *object) {
    if (PyObject_TypeCheck(object, registrations_type)) {
        return (Registrations *)object;
    }
    PyErr_SetString(PyExc_TypeError, "needs Registrations");
    return NULL;
}

/* Gives an object as a range; NULL with TypeError if it is none. */
static Registration *as_registration(PyObject *object) {
    if (PyObject_TypeCheck(object, registration_type)) {
        return (Registration *)object;
    }
    PyErr_SetString(PyExc_TypeError, "needs a Registration");
    return NULL;
}

/* The ranges that share a byte with these, by address, into a list. */
static bool list_overlapping(const Registrations *table, Bytes bytes, PyObject *list) {
    Registration *found;
    while ((found = find_first(table, bytes)) != NULL) {
        if (PyList_Append(list, (PyObject *)found) != 0) {
            return false;
        }
        bytes.start = found->bytes.stop;
    }
    return true;
}

/* overlapping(start, stop): the ranges that share a byte with these, by address. */
static PyObject *table_overlapping(PyObject *self, PyObject *args) {
    Bytes bytes;
    if (!PyArg_ParseTuple(args, "KK", &bytes.start, &bytes.stop)) {
        return NULL;
    }
    PyObject *list = PyList_New(0);
    if (list != NULL) {
        pthread_mutex_lock(&lock);
        bool complete = list_overlapping((Registrations *)self, bytes, list);
        pthread_mutex_unlock(&lock);
        if (!complete) {
            Py_CLEAR(list);
        }
    }
    return list;
}

/* find(start, stop, writable): a live range around these bytes, or None. */
static PyObject *table_find(PyObject *self, PyObject *args) {
    Bytes bytes;
    int writable;
    if (!PyArg_ParseTuple(args, "KKp", &bytes.start, &bytes.stop, &writable)) {
        return NULL;
    }
    pthread_mutex_lock(&lock);
    PyObject *found = (PyObject *)find_around((Registrations *)self, bytes, writable);
    Py_XINCREF(found);
    pthread_mutex_unlock(&lock);
    return found == NULL ? Py_BuildValue("") : found;
}

/* Whether a loan may become a user; one uses a single range. */
static Loan *check_without_pin(PyObject *object) {
    Loan *loan = as_loan(object);
    if (loan != NULL && loan->pin != NULL) {
        PyErr_SetString(PyExc_ValueError, "this loan uses a range already");
        return NULL;
    }
    return loan;
}

/* share(loan, start, stop, writable): a live range around these bytes, which the loan uses now, or None. */
static PyObject *table_share(PyObject *self, PyObject *args) {
    PyObject *object;
    Bytes bytes;
    int writable;
    if (!PyArg_ParseTuple(args, "OKKp", &object, &bytes.start, &bytes.stop, &writable)) {
        return NULL;
    }
    Loan *loan = check_without_pin(object);
    if (loan == NULL) {
        return NULL;
    }
    pthread_mutex_lock(&lock);
    Registration *found = find_around((Registrations *)self, bytes, writable);
    if (found != NULL) {
        Py_INCREF(found);
        join(loan, found);
    }
    pthread_mutex_unlock(&lock);
    return found == NULL ? Py_BuildValue("") : (PyObject *)found;
}

/* use(loan, range): makes the loan a user of a range that is in no table. */
static PyObject *table_use(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *object, *range;
    if (!PyArg_ParseTuple(args, "OO!", &object, registration_type, &range)) {
        return NULL;
    }
    Loan *loan = check_without_pin(object);
    if (loan == NULL) {
        return NULL;
    }
    pthread_mutex_lock(&lock);
    join(loan, (Registration *)range);
    pthread_mutex_unlock(&lock);
    return Py_BuildValue("");
}

/* claim(loan, range): puts a new range with its first user in, unless others are in the way: then it gives
 * them. */
static PyObject *table_claim(PyObject *self, PyObject *args) {
    PyObject *object, *made;
    if (!PyArg_ParseTuple(args, "OO!", &object, registration_type, &made)) {
        return NULL;
    }
    Registrations *table = (Registrations *)self;
    Registration *range = (Registration *)made;
    Loan *loan = check_without_pin(object);
    PyObject *list = loan == NULL ? NULL : PyList_New(0);
    if (list == NULL) {
        return NULL;
    }
    if (range->state != REGISTERING || range->users != 0 || range->bytes.start >= range->bytes.stop) {
        PyErr_SetString(PyExc_ValueError, "only a new range, and not an empty one, can be put in");
        Py_DECREF(list);
        return NULL;
    }
    bool complete = true;
    pthread_mutex_lock(&lock);
    if (find_any(table, range->bytes) != NULL) {
        complete = list_overlapping(table, range->bytes, list);
    } else if (tsearch(&range->bytes, &table->root, compare) != NULL) {
        Py_INCREF(range);
        join(loan, range);
    } else {
        complete = false;
        PyErr_NoMemory();
    }
    pthread_mutex_unlock(&lock);
    if (!complete) {
        Py_CLEAR(list);
    }
    return list;
}

/* page_lock(range, primary): has the driver page-lock what was claimed; None, or the function that failed
 * first and its result. The range is live from then on, if it is page-locked, whatever failed. */
static PyObject *table_page_lock(PyObject *self, PyObject *args) {
    PyObject *object;
    unsigned long long primary;
    if (!PyArg_ParseTuple(args, "O!K", registration_type, &object, &primary)) {
        return NULL;
    }
    Registration *range = (Registration *)object;
    PageLock made = {.start = range->bytes.start,
                     .nbytes = range->bytes.stop - range->bytes.start,
                     .read_only = range->read_only,
                     .primary = (void *)(uintptr_t)primary};
    Py_BEGIN_ALLOW_THREADS page_lock(&made);
    Py_END_ALLOW_THREADS pthread_mutex_lock(&lock);
    if (made.locked && range->state == REGISTERING) {
        range->state = LIVE;
        range->device_start = made.device_start;
        range->device_start_known = made.mapped;
        ((Registrations *)self)->locked += made.nbytes;
    }
    pthread_mutex_unlock(&lock);
    return made.failed == NULL ? Py_BuildValue("") : Py_BuildValue("(si)", made.failed, made.code);
}

/* begin_unregister(range): whether nobody uses it, and nobody can any more. */
static PyObject *table_begin_unregister(PyObject *self, PyObject *object) {
    (void)self;
    Registration *range = as_registration(object);
    if (range == NULL) {
        return NULL;
    }
    pthread_mutex_lock(&lock);
    bool begun = range->state == LIVE && range->users == 0;
    if (begun) {
        range->state = UNREGISTERING;
    }
    pthread_mutex_unlock(&lock);
    return PyBool_FromLong(begun);
}

/* remove(range): takes it out. */
static PyObject *table_remove(PyObject *self, PyObject *object) {
    Registrations *table = (Registrations *)self;
    Registration *range = as_registration(object);
    if (range == NULL) {
        return NULL;
    }
    pthread_mutex_lock(&lock);
    bool found = find_any(table, range->bytes) == range;
    if (found) {
        tdelete(&range->bytes, &table->root, compare);
        table->locked -= range->state == REGISTERING ? 0 : range->bytes.stop - range->bytes.start;
    }
    range->state = GONE;
    pthread_mutex_unlock(&lock);
    if (found) {
        Py_DECREF(range);
    }
    return Py_BuildValue("");
}

static void table_dealloc(PyObject *object) {
    Registrations *table = (Registrations *)object;
    PyTypeObject *type = Py_TYPE(object);
    while (table->root != NULL) {
        Registration *range = range_at(table->root);
        tdelete(&range->bytes, &table->root, compare);
        Py_DECREF(range);
    }
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

static PyMethodDef table_methods[] = {
    {"overlapping", table_overlapping, METH_VARARGS, NULL},
    {"find", table_find, METH_VARARGS, NULL},
    {"share", table_share, METH_VARARGS, NULL},
    {"use", table_use, METH_VARARGS, NULL},
    {"claim", table_claim, METH_VARARGS, NULL},
    {"page_lock", table_page_lock, METH_VARARGS, NULL},
    {"begin_unregister", table_begin_unregister, METH_O, NULL},
    {"remove", table_remove, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef table_members[] = {
    {"locked", T_ULONGLONG, offsetof(Registrations, locked), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot table_slots[] = {
    {Py_tp_doc, "Ranges that do not overlap, by address; see _registration.c for what each method does."},
    {Py_tp_dealloc, table_dealloc},
    {Py_tp_methods, table_methods},
    {Py_tp_members, table_members},
    {0, NULL},
};

static PyType_Spec table_spec = {
    .name = "dlwrap._native.Registrations",
    .basicsize = sizeof(Registrations),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = table_slots,
};

PyObject *make_registrations_type(void) {
    registrations_type = (PyTypeObject *)PyType_FromSpec(&table_spec);
    return (PyObject *)registrations_type;
}

/* ---- a range ---- */

/* Registration(start, stop, read_only, device, hold=None, *, adopted=False, device_start=None) */
static PyObject *registration_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {"start", "stop", "read_only", "device", "hold", "adopted", "device_start", NULL};
    Bytes bytes;
    int read_only, device, adopted = 0;
    PyObject *hold = Py_None, *device_start = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "KKpi|O$pO", names, &bytes.start, &bytes.stop,
                                     &read_only, &device, &hold, &adopted, &device_start)) {
        return NULL;
    }
    unsigned long long mapped = device_start == Py_None ? 0 : PyLong_AsUnsignedLongLong(device_start);
    if (PyErr_Occurred()) {
        return NULL;
    }
    Registration *self = (Registration *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->bytes = bytes;
    self->device = device;
    self->read_only = (char)read_only;
    self->adopted = (char)adopted;
    self->state = adopted ? LIVE : REGISTERING;
    self->device_start = mapped;
    self->device_start_known = device_start != Py_None;
    self->maker = PyThread_get_thread_ident();
    Py_INCREF(hold);
    self->hold = hold;
    self->when_gone = PyTuple_New(0);
    if (self->when_gone == NULL) {
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

static int registration_traverse(PyObject *object, visitproc visit, void *arg) {
    Registration *self = (Registration *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->hold);
    Py_VISIT(self->when_gone);
    Py_VISIT(self->other_starts);
    Py_VISIT(self->origin);
    return 0;
}

static int registration_clear(PyObject *object) {
    Registration *self = (Registration *)object;
    Py_CLEAR(self->hold);
    Py_CLEAR(self->when_gone);
    Py_CLEAR(self->other_starts);
    Py_CLEAR(self->origin);
    return 0;
}

static void registration_dealloc(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    registration_clear(object);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

/* device_start: the device's address of the start, or None. */
static PyObject *registration_device_start(PyObject *object, void *unused) {
    (void)unused;
    Registration *self = (Registration *)object;
    return self->device_start_known ? PyLong_FromUnsignedLongLong(self->device_start) : Py_BuildValue("");
}

static int registration_learn_device_start(PyObject *object, PyObject *value, void *unused) {
    (void)unused;
    Registration *self = (Registration *)object;
    unsigned long long start = value == NULL ? 0 : PyLong_AsUnsignedLongLong(value);
    if (value == NULL || PyErr_Occurred()) {
        return -1;
    }
    pthread_mutex_lock(&lock);
    self->device_start = start;
    self->device_start_known = true;
    pthread_mutex_unlock(&lock);
    return 0;
}

static PyGetSetDef registration_attributes[] = {
    {"device_start", registration_device_start, registration_learn_device_start, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef registration_members[] = {
    {"start", T_ULONGLONG, offsetof(Registration, bytes.start), READONLY, NULL},
    {"stop", T_ULONGLONG, offsetof(Registration, bytes.stop), READONLY, NULL},
    {"read_only", T_BOOL, offsetof(Registration, read_only), READONLY, NULL},
    {"device", T_INT, offsetof(Registration, device), READONLY, NULL},
    {"adopted", T_BOOL, offsetof(Registration, adopted), READONLY, NULL},
    {"state", T_INT, offsetof(Registration, state), READONLY, NULL},
    {"users", T_PYSSIZET, offsetof(Registration, users), READONLY, NULL},
    {"maker", T_ULONG, offsetof(Registration, maker), READONLY, NULL},
    {"hold", T_OBJECT, offsetof(Registration, hold), 0, NULL},
    {"flush", T_BOOL, offsetof(Registration, flush), 0, NULL},
    {"idle_since", T_DOUBLE, offsetof(Registration, idle_since), 0, NULL},
    {"when_gone", T_OBJECT, offsetof(Registration, when_gone), 0, NULL},
    {"other_starts", T_OBJECT, offsetof(Registration, other_starts), 0, NULL},
    {"origin", T_OBJECT, offsetof(Registration, origin), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot registration_slots[] = {
    {Py_tp_doc, "The fields of dlwrap._registration.Registration."},
    {Py_tp_new, registration_new},
    {Py_tp_traverse, registration_traverse},
    {Py_tp_clear, registration_clear},
    {Py_tp_dealloc, registration_dealloc},
    {Py_tp_members, registration_members},
    {Py_tp_getset, registration_attributes},
    {0, NULL},
};

static PyType_Spec registration_spec = {
    .name = "dlwrap._native.Registration",
    .basicsize = sizeof(Registration),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = registration_slots,
};

PyObject *make_registration_type(void) {
    registration_type = (PyTypeObject *)PyType_FromSpec(&registration_spec);
    return (PyObject *)registration_type;
}
