/* The part of dlwrap that must not need Python, and what must be quick: the module's functions. Leases and
 * their release are in _lease.c, the holder of a lease in _exporter.c. */
#include <Python.h>

#include <errno.h>
#include <stdbool.h>

#include "_calls.h"
#include "_exchange.h"
#include "_exporter.h"
#include "_layout.h"
#include "_lease.h"

enum { LONGEST_WAIT = 1000000000 }; /* seconds */

/* Turns the released leases into a list of (key, uses). */
static PyObject *collect_released(void) {
    PyObject *keys = PyList_New(0);
    if (keys == NULL) {
        return NULL;
    }
    Lease *taken = take_released();
    for (Lease *lease = taken; lease != NULL; lease = lease->next) {
        PyObject *key = Py_BuildValue("(Ki)", (unsigned long long)lease->key, atomic_load(&lease->uses));
        if (key == NULL || PyList_Append(keys, key) != 0) {
            Py_XDECREF(key);
            Py_DECREF(keys);
            put_back(taken); /* out of memory: for the next call */
            return NULL;
        }
        Py_DECREF(key);
    }
    forget(taken);
    return keys;
}

/* wait(seconds): the (key, uses) of the leases released meanwhile; negative waits for ever, and wake() ends
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
    {"wait", native_wait, METH_O, "wait(seconds)\n--\n\nThe (key, uses) of leases released meanwhile."},
    {"wake", native_wake, METH_NOARGS, "wake()\n--\n\nLet wait() return."},
    {"record", native_record, METH_VARARGS,
     "record(is_capturing, event_record, stream, event)\n--\n\nRecord unless capturing."},
    {"register", native_register, METH_VARARGS,
     "register(host_register, pointer, nbytes, flags, results)\n--\n\nRegister, and note the CUresult."},
    {"learn_arrays", native_learn_arrays, METH_VARARGS,
     "learn_arrays(type, array, pointer, shape, strides, base, dtype, flags)\n--\n\nWhether its fields can "
     "be read."},
    {"read_array", (PyCFunction)(void (*)(void))native_read_array, METH_FASTCALL,
     "read_array(array, dtype)\n--\n\nIts layout, or None where that needs a closer look."},
    {"learn_driver", native_learn_driver, METH_VARARGS,
     "learn_driver(cuCtxGetCurrent, cuCtxGetDevice, cuDeviceGetAttribute)\n--\n\nLearn their addresses."},
    {"current_device", native_current_device, METH_NOARGS,
     "current_device()\n--\n\n(CUresult, ordinal); -1 without a context, -2 after cuCtxGetDevice failed."},
    {"attribute", native_attribute, METH_VARARGS, "attribute(number, device)\n--\n\n(CUresult, value)."},
    {"lend", (PyCFunction)(void (*)(void))native_lend, METH_FASTCALL,
     "lend(type, layout, key, device_pointer, device, readonly, primary)\n--\n\nThe first holder of a "
     "lease."},
    {"make_capsule", native_make_capsule, METH_VARARGS,
     "make_capsule(exporter, minor, on_host, copied)\n--\n\nA DLPack capsule; legacy where minor is -1."},
    {"give_up", native_give_up, METH_O,
     "give_up(exporter)\n--\n\nGive up the wrapper's hold; return how many other holders forbid it."},
    {"hold_by_graph", native_hold_by_graph, METH_VARARGS,
     "hold_by_graph(exporter, create, retain, release, graph)\n--\n\nMake a CUDA graph a holder."},
    {"graphs_of", native_graphs_of, METH_O, "graphs_of(exporter)\n--\n\nNumber of holds of CUDA graphs."},
    {"uses_of", native_uses_of, METH_O, "uses_of(exporter)\n--\n\nBits of what is known of the streams."},
    {"note_uses", native_note_uses, METH_VARARGS, "note_uses(exporter, uses)\n--\n\nAdd such bits."},
    {"exchange_api", native_exchange_api, METH_NOARGS,
     "exchange_api()\n--\n\nThe capsule for __dlpack_c_exchange_api__."},
    {"serve_exchange", native_serve_exchange, METH_VARARGS,
     "serve_exchange(allocate, import_tensor, find_work_stream)\n--\n\nWhat is not common is done by these."},
    {"settle_work_stream", native_settle_work_stream, METH_VARARGS,
     "settle_work_stream(exchange_api, is_capturing, modules)\n--\n\nWhose current stream is asked for."},
    {"live_exports", native_live_exports, METH_NOARGS,
     "live_exports()\n--\n\nNumber of live exports of all leases."},
    {"live_graphs", native_live_graphs, METH_NOARGS,
     "live_graphs()\n--\n\nNumber of holds of CUDA graphs on all leases."},
    {"leak", native_leak, METH_O, "leak(object)\n--\n\nKeep the object to the end of the process."},
    {NULL, NULL, 0, NULL},
};

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
    return add_type(module, "Layout", make_layout_type()) &&
                   add_type(module, "Exporter", make_exporter_type())
               ? 0
               : -1;
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
