/* See the header. */
#include "_calls.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

enum {
    NOT_INITIALIZED = 3,
    PAGEABLE_MEMORY_ACCESS = 88,
    RELAXED = 2,
    MOST_DEVICES = 64,
    MOST_UNREGISTERED = 64
};
enum { REGISTER_PORTABLE = 1, REGISTER_DEVICEMAP = 2, REGISTER_READ_ONLY = 8 };

/* The functions that are called here. */
static struct {
    int (*get_current)(void **context);
    int (*get_device)(int *device);
    int (*get_attribute)(int *value, int attribute, int device);
    int (*exchange_mode)(int *mode);
    int (*push)(void *context);
    int (*pop)(void **context);
    int (*host_register)(void *pointer, size_t nbytes, unsigned flags);
    int (*host_unregister)(void *pointer);
    int (*get_device_pointer)(unsigned long long *pointer, void *host, unsigned flags);
} driver;

/* All functions or none: none before the driver is there, and in the child of a fork. */
static atomic_bool is_known;
static void *primaries[MOST_DEVICES];
static atomic_int devices; /* that may have one */

static void forget_driver(void) {
    atomic_store(&is_known, false);
    atomic_store(&devices, 0);
}

int prepare_calls(void) {
    return pthread_atfork(NULL, NULL, forget_driver);
}

PyObject *native_learn_driver(PyObject *module, PyObject *args) {
    (void)module;
    unsigned long long at[9];
    if (!PyArg_ParseTuple(args, "KKKKKKKKK", &at[0], &at[1], &at[2], &at[3], &at[4], &at[5], &at[6], &at[7],
                          &at[8])) {
        return NULL;
    }
    if (atomic_load(&is_known)) {
        Py_RETURN_NONE; /* by another thread, and others call them already */
    }
    driver.get_current = (int (*)(void **))(uintptr_t)at[0];
    driver.get_device = (int (*)(int *))(uintptr_t)at[1];
    driver.get_attribute = (int (*)(int *, int, int))(uintptr_t)at[2];
    driver.exchange_mode = (int (*)(int *))(uintptr_t)at[3];
    driver.push = (int (*)(void *))(uintptr_t)at[4];
    driver.pop = (int (*)(void **))(uintptr_t)at[5];
    driver.host_register = (int (*)(void *, size_t, unsigned))(uintptr_t)at[6];
    driver.host_unregister = (int (*)(void *))(uintptr_t)at[7];
    driver.get_device_pointer = (int (*)(unsigned long long *, void *, unsigned))(uintptr_t)at[8];
    atomic_store(&is_known, true);
    Py_RETURN_NONE;
}

PyObject *native_learn_primary(PyObject *module, PyObject *args) {
    (void)module;
    int device;
    unsigned long long context;
    if (!PyArg_ParseTuple(args, "iK", &device, &context)) {
        return NULL;
    }
    if (device >= 0 && device < MOST_DEVICES) {
        primaries[device] = (void *)(uintptr_t)context;
        if (device >= atomic_load(&devices)) {
            atomic_store(&devices, device + 1);
        }
    }
    Py_RETURN_NONE;
}

/* The current context; false where it cannot be asked for. */
static bool find_context(void **context) {
    *context = NULL;
    return atomic_load(&is_known) && driver.get_current(context) == 0;
}

bool runs_in_context(const void *primary) {
    void *context;
    return primary != NULL && find_context(&context) && (context == NULL || context == primary);
}

int find_device(void **primary) {
    void *context;
    int known = atomic_load(&devices);
    if (!find_context(&context)) {
        return -1;
    }
    for (int device = 0; device < known; device++) {
        if (primaries[device] != NULL && (context == NULL || context == primaries[device])) {
            *primary = primaries[device];
            return context == NULL && device != 0 ? -1 : device;
        }
    }
    return -1;
}

int reads_pageable_memory(int device) {
    int value = 0, code = NOT_INITIALIZED;
    if (atomic_load(&is_known)) {
        Py_BEGIN_ALLOW_THREADS code = driver.get_attribute(&value, PAGEABLE_MEMORY_ACCESS, device);
        Py_END_ALLOW_THREADS
    }
    return code != 0 ? -1 : value == 1;
}

/* ---- page-locking ---- */

/* Notes what a call gave; whether it succeeded. */
static bool succeeds(PageLock *wanted, const char *function, int code) {
    if (code != 0 && wanted->failed == NULL) {
        wanted->failed = function;
        wanted->code = code;
    }
    return code == 0;
}

/* Page-locks the memory and asks for its address, in the context that is current. */
static void lock_and_map(PageLock *wanted) {
    void *start = (void *)(uintptr_t)wanted->start;
    unsigned flags = REGISTER_PORTABLE | REGISTER_DEVICEMAP | (wanted->read_only ? REGISTER_READ_ONLY : 0u);
    wanted->locked =
        succeeds(wanted, "cuMemHostRegister", driver.host_register(start, (size_t)wanted->nbytes, flags));
    if (wanted->locked) {
        wanted->mapped = succeeds(wanted, "cuMemHostGetDevicePointer",
                                  driver.get_device_pointer(&wanted->device_start, start, 0));
    }
}

/* Likewise in the primary context; what cannot be undone is tried once more. */
static void lock_in_primary(PageLock *wanted) {
    void *popped;
    if (!succeeds(wanted, "cuCtxPushCurrent", driver.push(wanted->primary))) {
        return;
    }
    lock_and_map(wanted);
    if (!succeeds(wanted, "cuCtxPopCurrent", driver.pop(&popped))) {
        driver.pop(&popped);
    }
}

void page_lock(PageLock *wanted) {
    static const char exchange[] = "cuThreadExchangeStreamCaptureMode";
    int mode = RELAXED;
    if (!atomic_load(&is_known)) {
        succeeds(wanted, "cuInit", NOT_INITIALIZED);
        return;
    }
    if (!succeeds(wanted, exchange, driver.exchange_mode(&mode))) {
        return;
    }
    lock_in_primary(wanted);
    int before = mode;
    if (!succeeds(wanted, exchange, driver.exchange_mode(&mode))) {
        driver.exchange_mode(&before);
    }
}

PyObject *native_unregister(PyObject *module, PyObject *starts) {
    (void)module;
    unsigned long long pointers[MOST_UNREGISTERED];
    int codes[MOST_UNREGISTERED];
    Py_ssize_t count = PyTuple_Check(starts) ? PyTuple_Size(starts) : -1;
    if (count < 0 || count > MOST_UNREGISTERED) {
        PyErr_SetString(PyExc_ValueError, "unregister takes a tuple of at most 64 addresses");
        return NULL;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        pointers[i] = PyLong_AsUnsignedLongLong(PyTuple_GetItem(starts, i));
        if (PyErr_Occurred()) {
            return NULL;
        }
    }
    bool known = atomic_load(&is_known);
    Py_BEGIN_ALLOW_THREADS for (Py_ssize_t i = 0; i < count; i++) {
        codes[i] = known ? driver.host_unregister((void *)(uintptr_t)pointers[i]) : NOT_INITIALIZED;
    }
    Py_END_ALLOW_THREADS PyObject *list = PyList_New(0);
    for (Py_ssize_t i = 0; list != NULL && i < count; i++) {
        PyObject *code = PyLong_FromLong(codes[i]);
        if (code == NULL || PyList_Append(list, code) != 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(code);
    }
    return list;
}

/* ---- questions ---- */

PyObject *native_current_device(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    void *context = NULL;
    int device = -1, code = NOT_INITIALIZED;
    if (atomic_load(&is_known)) {
        Py_BEGIN_ALLOW_THREADS code = driver.get_current(&context);
        if (code == 0 && context != NULL) {
            code = driver.get_device(&device);
            device = code == 0 ? device : -2;
        }
        Py_END_ALLOW_THREADS
    }
    return Py_BuildValue("(ii)", code, device);
}

PyObject *native_attribute(PyObject *module, PyObject *args) {
    (void)module;
    int number, device, value = 0, code = NOT_INITIALIZED;
    if (!PyArg_ParseTuple(args, "ii", &number, &device)) {
        return NULL;
    }
    if (atomic_load(&is_known)) {
        Py_BEGIN_ALLOW_THREADS code = driver.get_attribute(&value, number, device);
        Py_END_ALLOW_THREADS
    }
    return Py_BuildValue("(ii)", code, value);
}

typedef int (*IsCapturing)(void *stream, int *status);
typedef int (*EventRecord)(void *event, void *stream);

/* Records the event unless the stream captures, before or after: then the event must never be waited for. */
static int check_and_record(IsCapturing is_capturing, EventRecord record, void *stream, void *event,
                            int *capturing) {
    int code = is_capturing(stream, capturing);
    if (code != 0 || *capturing != 0) {
        return code;
    }
    code = record(event, stream);
    if (code != 0) {
        return code;
    }
    return is_capturing(stream, capturing);
}

PyObject *native_record(PyObject *module, PyObject *args) {
    (void)module;
    unsigned long long is_capturing, event_record, stream, event;
    if (!PyArg_ParseTuple(args, "KKKK", &is_capturing, &event_record, &stream, &event)) {
        return NULL;
    }
    int capturing = 0, code;
    Py_BEGIN_ALLOW_THREADS code =
        check_and_record((IsCapturing)(uintptr_t)is_capturing, (EventRecord)(uintptr_t)event_record,
                         (void *)(uintptr_t)stream, (void *)(uintptr_t)event, &capturing);
    Py_END_ALLOW_THREADS return Py_BuildValue("(iN)", code, PyBool_FromLong(capturing));
}
