/* See the header. */
#include "_calls.h"

#include <pthread.h>
#include <stdint.h>

typedef int (*CurrentContext)(void **context);
typedef int (*CurrentDevice)(int *device);
typedef int (*DeviceAttribute)(int *value, int attribute, int device);

enum { NOT_INITIALIZED = 3 };

/* All of them or none: none before the driver is there, and in the child of a fork. */
static CurrentContext current_context;
static CurrentDevice current_device;
static DeviceAttribute device_attribute;

static void forget_driver(void) {
    current_context = NULL;
    current_device = NULL;
    device_attribute = NULL;
}

int prepare_calls(void) {
    return pthread_atfork(NULL, NULL, forget_driver);
}

PyObject *native_learn_driver(PyObject *module, PyObject *args) {
    (void)module;
    unsigned long long context, device, attribute;
    if (!PyArg_ParseTuple(args, "KKK", &context, &device, &attribute)) {
        return NULL;
    }
    current_context = (CurrentContext)(uintptr_t)context;
    current_device = (CurrentDevice)(uintptr_t)device;
    device_attribute = (DeviceAttribute)(uintptr_t)attribute;
    Py_RETURN_NONE;
}

bool runs_in_context(const void *primary) {
    void *context = NULL;
    return primary != NULL && current_context != NULL && current_context(&context) == 0 &&
           (context == NULL || context == primary);
}

PyObject *native_current_device(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    void *context = NULL;
    int device = -1, code = NOT_INITIALIZED;
    CurrentContext find_context = current_context;
    CurrentDevice find_device = current_device;
    if (find_context != NULL) {
        Py_BEGIN_ALLOW_THREADS code = find_context(&context);
        if (code == 0 && context != NULL) {
            code = find_device(&device);
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
    DeviceAttribute find = device_attribute;
    if (find != NULL) {
        Py_BEGIN_ALLOW_THREADS code = find(&value, number, device);
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

typedef int (*HostRegister)(void *pointer, size_t nbytes, unsigned flags);

PyObject *native_register(PyObject *module, PyObject *args) {
    (void)module;
    unsigned long long host_register, pointer, nbytes;
    unsigned flags;
    PyObject *results;
    if (!PyArg_ParseTuple(args, "KKKIO!", &host_register, &pointer, &nbytes, &flags, &PyList_Type,
                          &results)) {
        return NULL;
    }
    int code;
    Py_BEGIN_ALLOW_THREADS code =
        ((HostRegister)(uintptr_t)host_register)((void *)(uintptr_t)pointer, (size_t)nbytes, flags);
    Py_END_ALLOW_THREADS PyObject *result = Py_BuildValue("(i)", code);
    if (result == NULL || PyList_Append(results, result) != 0) {
        Py_XDECREF(result);
        return NULL;
    }
    Py_DECREF(result);
    Py_RETURN_NONE;
}
