/* See the header. */
#include "_wrap.h"

#include <stdatomic.h>
#include <stdint.h>

#include "_calls.h"
#include "_exporter.h"
#include "_layout.h"
#include "_loan.h"
#include "_registration.h"
#include "_watch.h"

static PyObject *name_auto, *name_pinned, *name_pageable, *name_owner, *name_view, *name_streams,
    *name_device;

/* What is made, for the life of the process, and where page-locked ranges are. */
static PyTypeObject *buffer_type, *lease_type;
static Registrations *registrations;
static atomic_bool is_serving;

/* What a call asks for. */
typedef struct Options {
    bool pinned, pageable, device_wide, read_only_told, read_only;
} Options;

bool prepare_wraps(void) {
    static const struct {
        PyObject **name;
        const char *text;
    } names[] = {{&name_auto, "auto"},    {&name_pinned, "pinned"}, {&name_pageable, "pageable"},
                 {&name_owner, "owner"},  {&name_view, "view"},     {&name_streams, "streams"},
                 {&name_device, "device"}};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        *names[i].name = PyUnicode_InternFromString(names[i].text);
        if (*names[i].name == NULL) {
            return false;
        }
    }
    return true;
}

void forget_wraps(void) {
    atomic_store(&is_serving, false);
}

PyObject *native_serve_wraps(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *buffers, *leases, *table;
    if (!PyArg_ParseTuple(args, "O!O!O", &PyType_Type, &buffers, &PyType_Type, &leases, &table)) {
        return NULL;
    }
    if (as_registrations(table) == NULL) {
        return NULL;
    }
    if (registrations != (Registrations *)table) { /* after a fork it is another one */
        Py_INCREF(buffers);
        Py_INCREF(leases);
        Py_INCREF(table);
    }
    buffer_type = (PyTypeObject *)buffers;
    lease_type = (PyTypeObject *)leases;
    registrations = (Registrations *)table;
    atomic_store(&is_serving, true);
    Py_RETURN_NONE;
}

PyObject *native_stop_wraps(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    atomic_store(&is_serving, false);
    Py_RETURN_NONE;
}

/* Reads the options that are common, by identity; false for what Python has to look at. */
static bool read_options(PyObject *const *args, Options *options) {
    PyObject *device = args[0], *memory = args[1], *extent = args[2], *wait = args[3], *readonly = args[4];
    options->pinned = memory == name_pinned;
    options->pageable = memory == name_pageable;
    options->device_wide = wait == name_device;
    options->read_only_told = readonly != Py_None;
    options->read_only = readonly == Py_True;
    return device == Py_None && (options->pinned || options->pageable || memory == name_auto) &&
           (extent == name_owner || extent == name_view) && (options->device_wide || wait == name_streams) &&
           (!options->read_only_told || options->read_only || readonly == Py_False);
}

/* Finds out where the device has the memory, as a user of its page-locked range if there has to be one. */
static bool place(const Layout *layout, Loan *loan, Terms *terms) {
    terms->device_pointer = layout->pointer;
    if (terms->pageable) {
        return true;
    }
    Bytes bytes = {layout->pointer, layout->stop};
    if (!share_at_once(registrations, loan, bytes, layout->writable_memory)) {
        return false;
    }
    terms->device_pointer = loan->pin->device_start + (layout->pointer - loan->pin->bytes.start);
    return true;
}

/* Makes the buffer; NULL without an exception where Python has to look. */
static Exporter *wrap_layout(Layout *layout, const Options *options) {
    Terms terms = {.read_only = options->read_only_told ? options->read_only : layout->readonly};
    int device = find_device(&terms.primary);
    int reads_pageable = device < 0 || options->pinned ? 0 : reads_pageable_memory(device);
    terms.pageable = reads_pageable == 1;
    if (device < 0 || reads_pageable < 0 || (options->pageable && !terms.pageable)) {
        return NULL;
    }
    Exporter *self = make_exporter(buffer_type, layout);
    Loan *loan = self == NULL ? NULL : make_loan(lease_type, device, layout->hold, options->device_wide);
    if (loan != NULL && place(layout, loan, &terms)) {
        lend(self, layout, loan, &terms); /* nothing can fail any more: the range has a user */
    } else {
        Py_CLEAR(self);
    }
    Py_XDECREF(loan);
    return self;
}

PyObject *native_wrap(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    (void)module;
    Options options;
    if (nargs != 6) {
        PyErr_SetString(PyExc_TypeError, "wrap takes an array and five options");
        return NULL;
    }
    PyObject *buffer = NULL;
    if (atomic_load(&is_serving) && !is_watched() && read_options(args + 1, &options)) {
        Layout *layout = read_array(args[0]);
        if (layout != NULL) {
            buffer = (PyObject *)wrap_layout(layout, &options);
            Py_DECREF(layout);
        }
    }
    return buffer != NULL || PyErr_Occurred() ? buffer : Py_BuildValue("");
}
