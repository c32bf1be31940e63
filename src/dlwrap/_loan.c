/* See the header. */
#include "_loan.h"

#include <stddef.h>
#include <structmember.h>

static PyTypeObject *loan_type;

Loan *as_loan(PyObject *object) {
    if (PyObject_TypeCheck(object, loan_type)) {
        return (Loan *)object;
    }
    PyErr_SetString(PyExc_TypeError, "needs a Loan");
    return NULL;
}

Loan *make_loan(PyTypeObject *type, int device, PyObject *hold, bool device_wide) {
    Loan *self = (Loan *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->streams = PyDict_New();
    self->captures = PyTuple_New(0);
    if (self->streams == NULL || self->captures == NULL) {
        Py_DECREF(self);
        return NULL;
    }
    Py_INCREF(hold);
    self->hold = hold;
    self->device = device;
    self->device_wide = (char)device_wide;
    return self;
}

void show_lease(Loan *loan, Lease *lease) {
    share_memory(lease);
    loan->lease = lease;
}

/* Loan(device, hold, device_wide=False) */
static PyObject *loan_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {"device", "hold", "device_wide", NULL};
    int device, device_wide = 0;
    PyObject *hold;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "iO|p", names, &device, &hold, &device_wide)) {
        return NULL;
    }
    if (device < 0) {
        PyErr_SetString(PyExc_ValueError, "device must be an ordinal");
        return NULL;
    }
    return (PyObject *)make_loan(type, device, hold, device_wide != 0);
}

static int loan_traverse(PyObject *object, visitproc visit, void *arg) {
    Loan *self = (Loan *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->hold);
    Py_VISIT(self->pin);
    Py_VISIT(self->streams);
    Py_VISIT(self->captures);
    Py_VISIT(self->closed);
    Py_VISIT(self->origin);
    return 0;
}

static int loan_clear(PyObject *object) {
    Loan *self = (Loan *)object;
    Py_CLEAR(self->hold);
    Py_CLEAR(self->pin);
    Py_CLEAR(self->streams);
    Py_CLEAR(self->captures);
    Py_CLEAR(self->closed);
    Py_CLEAR(self->origin);
    return 0;
}

static void loan_dealloc(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    loan_clear(object);
    if (((Loan *)object)->lease != NULL) {
        drop_memory(((Loan *)object)->lease);
    }
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

/* lent: (nbytes, exports, graphs, uses, address, whether anybody holds it), or None where nothing was lent
 * yet. */
static PyObject *loan_lent(PyObject *object, void *unused) {
    (void)unused;
    Lease *lease = ((Loan *)object)->lease;
    if (lease == NULL) {
        return Py_BuildValue("");
    }
    long long holders = atomic_load(&lease->holders), graphs = atomic_load(&lease->graphs);
    long long exports = holders - graphs - atomic_load(&lease->wrapped);
    return Py_BuildValue("(LLLiKO)", (long long)count_bytes(lease), exports > 0 ? exports : 0, graphs,
                         atomic_load(&lease->uses), (unsigned long long)(uintptr_t)lease->host_data,
                         holders > 0 ? Py_True : Py_False);
}

static PyGetSetDef loan_properties[] = {
    {"lent", loan_lent, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef loan_members[] = {
    {"device", T_INT, offsetof(Loan, device), READONLY, NULL},
    {"device_wide", T_BOOL, offsetof(Loan, device_wide), 0, NULL},
    {"hold", T_OBJECT, offsetof(Loan, hold), 0, NULL},
    {"pin", T_OBJECT, offsetof(Loan, pin), READONLY, NULL},
    {"streams", T_OBJECT, offsetof(Loan, streams), READONLY, NULL},
    {"captures", T_OBJECT, offsetof(Loan, captures), 0, NULL},
    {"closed", T_OBJECT, offsetof(Loan, closed), 0, NULL},
    {"kind", T_UBYTE, offsetof(Loan, kind), 0, NULL},
    {"origin", T_OBJECT, offsetof(Loan, origin), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot loan_slots[] = {
    {Py_tp_doc, "The fields of dlwrap._lifetime.Lease."},
    {Py_tp_new, loan_new},
    {Py_tp_traverse, loan_traverse},
    {Py_tp_clear, loan_clear},
    {Py_tp_dealloc, loan_dealloc},
    {Py_tp_members, loan_members},
    {Py_tp_getset, loan_properties},
    {0, NULL},
};

static PyType_Spec loan_spec = {
    .name = "dlwrap._native.Loan",
    .basicsize = sizeof(Loan),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = loan_slots,
};

PyObject *make_loan_type(void) {
    loan_type = (PyTypeObject *)PyType_FromSpec(&loan_spec);
    return (PyObject *)loan_type;
}
