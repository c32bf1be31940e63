/* The part of dlwrap that must not need Python, and what must be quick: the module's functions. Leases and
 * their release are in _lease.c, the holder of a lease in _exporter.c. */
#include <Python.h>

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>

#include "_calls.h"
#include "_exchange.h"
#include "_exporter.h"
#include "_imported.h"
#include "_layout.h"
#include "_lease.h"
#include "_loan.h"
#include "_pages.h"
#include "_registration.h"
#include "_watch.h"
#include "_wrap.h"

enum { LONGEST_WAIT = 1000000000 }; /* seconds */

/* Turns the released leases into a list of (loan, uses). */
static PyObject *collect_released(void) {
    PyObject *loans = PyList_New(0);
    if (loans == NULL) {
        return NULL;
    }
    Lease *taken = take_released();
    for (Lease *lease = taken; lease != NULL; lease = lease->next) {
        PyObject *loan = Py_BuildValue("(Oi)", (PyObject *)lease->loan, atomic_load(&lease->uses));
        if (loan == NULL || PyList_Append(loans, loan) != 0) {
            Py_XDECREF(loan);
            Py_DECREF(loans);
            put_back(taken); /* out of memory: for the next call */
            return NULL;
        }
        Py_DECREF(loan);
    }
    for (Lease *lease = taken; lease != NULL; lease = lease->next) {
        Py_DECREF((PyObject *)lease->loan); /* the list keeps it */
    }
    forget(taken);
    return loans;
}

/* wait(seconds): the (loan, uses) of the leases released meanwhile; negative waits for ever, and wake() ends
 * it early. */
static PyObject *native_wait(PyObject *module, PyObject *argument) {
    (void)module;
    double seconds = PyFloat_AsDouble(argument);
    if (seconds == -1.0 && PyErr_Occurred()) {
        return NULL;
    }
    if (!(seconds <= LONGEST_WAIT)) { /* also what is no number: time_t could not hold it */
        seconds = LONGEST_WAIT;
    }
    if (!is_any_released()) {
        Py_BEGIN_ALLOW_THREADS wait_for_released(seconds);
        Py_END_ALLOW_THREADS
    }
    return collect_released();
}

/* wake(): lets the thread in wait() return. */
static PyObject *native_wake(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    wake_up();
    Py_RETURN_NONE;
}

/* leases(): how many leases were ever made. */
static PyObject *native_leases(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    return PyLong_FromLongLong(count_leases());
}

/* live_exports(): how many exports of all leases are alive. */
static PyObject *native_live_exports(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    return PyLong_FromLongLong(count_live_exports());
}

/* live_graphs(): how many holds of CUDA graphs there are on all leases. */
static PyObject *native_live_graphs(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    return PyLong_FromLongLong(atomic_load(&live_graphs));
}

/* leak(object): keeps the object to the end of the process, finalisation included. */
static PyObject *native_leak(PyObject *module, PyObject *object) {
    (void)module;
    Py_INCREF(object);
    Py_RETURN_NONE;
}

static PyMethodDef module_methods[] = {
    {"wait", native_wait, METH_O, "wait(seconds, /)\n--\n\nThe (loan, uses) of leases released meanwhile."},
    {"wake", native_wake, METH_NOARGS, "wake()\n--\n\nLet wait() return."},
    {"record", native_record, METH_VARARGS,
     "record(is_capturing, event_record, stream, event, /)\n--\n\nRecord unless capturing."},
    {"unregister", native_unregister, METH_O, "unregister(starts, /)\n--\n\nThe CUresults."},
    {"is_resident", native_is_resident, METH_VARARGS,
     "is_resident(start, stop, samples, /)\n--\n\nWhether the pages seem to be there."},
    {"populate", native_populate, METH_VARARGS,
     "populate(start, stop, writable, /)\n--\n\nHave the pages there; whether the kernel could."},
    {"learn_arrays", native_learn_arrays, METH_VARARGS,
     "learn_arrays(made, array, pointer, shape, strides, base, dtype, flags, dtypes, /)\n--\n\nWhether its "
     "fields can be read."},
    {"learn_births", native_learn_births, METH_O,
     "learn_births(made, /)\n--\n\nArrays over such objects own their memory."},
    {"read_array", native_read_array, METH_O,
     "read_array(array, /)\n--\n\nIts layout, or None where that needs a closer look."},
    {"take_tensor", native_take_tensor, METH_O,
     "take_tensor(capsule, /)\n--\n\nConsume a producer's capsule; what its tensor is, and what keeps it."},
    {"learn_driver", native_learn_driver, METH_VARARGS,
     "learn_driver(*addresses)\n--\n\nLearn where the functions are."},
    {"learn_primary", native_learn_primary, METH_VARARGS,
     "learn_primary(device, context, /)\n--\n\nLearn a device's primary context."},
    {"current_device", native_current_device, METH_NOARGS,
     "current_device()\n--\n\n(CUresult, ordinal); -1 without a context, -2 after cuCtxGetDevice failed."},
    {"attribute", native_attribute, METH_VARARGS, "attribute(number, device, /)\n--\n\n(CUresult, value)."},
    {"serve_wraps", native_serve_wraps, METH_VARARGS,
     "serve_wraps(buffers, leases, registrations, /)\n--\n\nLearn what wrap() makes."},
    {"watch", native_watch, METH_O, "watch(watched, /)\n--\n\nLeave wraps and exports to Python."},
    {"stop_wraps", native_stop_wraps, METH_NOARGS, "stop_wraps()\n--\n\nLet wrap() do nothing any more."},
    {"wrap", (PyCFunction)(void (*)(void))native_wrap, METH_FASTCALL,
     "wrap(obj, device, memory, extent, wait, readonly, /)\n--\n\nA buffer, or None where Python has to "
     "look."},
    {"leave", native_leave, METH_O,
     "leave(loan, /)\n--\n\nThe range that it used and does not any more, or None."},
    {"leave_to_others", native_leave_to_others, METH_O,
     "leave_to_others(loan, /)\n--\n\nWhether it uses no range any more; it stays if it is the only user."},
    {"lend", (PyCFunction)(void (*)(void))native_lend, METH_FASTCALL,
     "lend(made, layout, loan, device_pointer, readonly, primary, pageable, /)\n--\n\nThe first holder of a "
     "lease."},
    {"make_capsule", native_make_capsule, METH_VARARGS,
     "make_capsule(exporter, minor, on_host, copied, /)\n--\n\nA DLPack capsule; legacy where minor is -1."},
    {"give_up", native_give_up, METH_O,
     "give_up(exporter, /)\n--\n\nGive up the wrapper's hold; return how many other holders forbid it."},
    {"hold_by_graph", native_hold_by_graph, METH_VARARGS,
     "hold_by_graph(exporter, create, retain, release, graph, /)\n--\n\nMake a CUDA graph a holder."},
    {"graphs_of", native_graphs_of, METH_O, "graphs_of(exporter, /)\n--\n\nNumber of holds of CUDA graphs."},
    {"uses_of", native_uses_of, METH_O, "uses_of(exporter, /)\n--\n\nBits of what is known of the streams."},
    {"note_uses", native_note_uses, METH_VARARGS, "note_uses(exporter, uses, /)\n--\n\nAdd such bits."},
    {"exchange_api", native_exchange_api, METH_NOARGS,
     "exchange_api()\n--\n\nThe capsule for __dlpack_c_exchange_api__."},
    {"serve_exchange", native_serve_exchange, METH_VARARGS,
     "serve_exchange(allocate, import_tensor, find_work_stream, /)\n--\n\nWhat is not common is done by "
     "these."},
    {"settle_work_stream", native_settle_work_stream, METH_VARARGS,
     "settle_work_stream(exchange_api, is_capturing, modules, /)\n--\n\nWhose current stream is asked for."},
    {"leases", native_leases, METH_NOARGS, "leases()\n--\n\nNumber of leases that were ever made."},
    {"live_exports", native_live_exports, METH_NOARGS,
     "live_exports()\n--\n\nNumber of live exports of all leases."},
    {"live_graphs", native_live_graphs, METH_NOARGS,
     "live_graphs()\n--\n\nNumber of holds of CUDA graphs on all leases."},
    {"leak", native_leak, METH_O, "leak(kept, /)\n--\n\nKeep the object to the end of the process."},
    {NULL, NULL, 0, NULL},
};

/* A thread that the child of a fork does not have may have had a lock. */
static void renew_in_child(void) {
    renew_registrations();
    forget_wraps();
}

/* Sets up what there is one of in a process: a second module, such as a subinterpreter's, would share the
 * list. */
static bool claim_process(void) {
    static atomic_flag claimed = ATOMIC_FLAG_INIT;
    if (atomic_flag_test_and_set(&claimed)) {
        PyErr_SetString(PyExc_ImportError, "cannot load dlwrap more than once per process");
        return false;
    }
    errno = prepare_released();
    errno = errno != 0 ? errno : prepare_calls();
    errno = errno != 0 ? errno : pthread_atfork(NULL, NULL, renew_in_child);
    if (errno != 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        return false;
    }
    return true;
}

/* Gives a type, if it could be made, to the module. */
static bool add_type(PyObject *module, const char *name, PyObject *type) {
    if (type == NULL || PyModule_AddObject(module, name, type) != 0) {
        Py_XDECREF(type);
        return false;
    }
    return true;
}

/* Fills the module. */
static int execute_module(PyObject *module) {
    if (!claim_process()) {
        return -1;
    }
    static const struct {
        const char *name;
        PyObject *(*make)(void);
    } types[] = {{"Layout", make_layout_type},
                 {"Registration", make_registration_type},
                 {"Registrations", make_registrations_type},
                 {"Loan", make_loan_type},
                 {"Exporter", make_exporter_type}};
    static const struct {
        const char *name;
        int value;
    } constants[] = {{"REGISTERING", REGISTERING},       {"LIVE", LIVE},
                     {"UNREGISTERING", UNREGISTERING},   {"GONE", GONE},
                     {"USED_ON_LEGACY", USED_ON_LEGACY}, {"USED_ANYWHERE", USED_ANYWHERE},
                     {"USED_AS_NOTED", USED_AS_NOTED}};
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        if (!add_type(module, types[i].name, types[i].make())) {
            return -1;
        }
    }
    for (size_t i = 0; i < sizeof(constants) / sizeof(constants[0]); i++) {
        if (PyModule_AddIntConstant(module, constants[i].name, constants[i].value) != 0) {
            return -1;
        }
    }
    return prepare_wraps() ? 0 : -1;
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, execute_module},
#ifdef Py_mod_gil
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static PyModuleDef module_definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_native",
    .m_methods = module_methods,
    .m_slots = module_slots,
};

/* The entry point. */
PyMODINIT_FUNC PyInit__native(void) {
    return PyModuleDef_Init(&module_definition);
}
