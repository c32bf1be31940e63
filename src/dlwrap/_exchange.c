/* See the header. No stream is told in an exchange: the consumer asks `current_work_stream`, of us or of
 * whichever producer it asked first, and may drop its tensor before its work has begun. So a release waits
 * for the whole device. */
#include "_exchange.h"

#include "_calls.h"
#include "_exporter.h"
#include "_imported.h"
#include "_watch.h"

typedef int (*WorkStream)(int device_type, int32_t device_id, void **out);
typedef int (*IsCapturing)(void *stream, int *status);

static PyObject *allocate_by_python, *import_by_python,
    *find_stream_by_python; /* for the life of the process */

/* Whose current stream it is, NULL for the legacy default stream: true as long as so many modules are
 * imported. */
static WorkStream work_stream;
static IsCapturing is_capturing;
static Py_ssize_t modules_seen = -1;

/* Whether it is known without Python whose current stream is the one to work on. */
static bool is_settled(void) {
    return PyDict_Size(PyImport_GetModuleDict()) == modules_seen;
}

/* Whether the consumer's work may be captured, so that the graph has to own the memory. */
static bool may_be_captured(int device) {
    void *stream = NULL;
    int status = 0;
    if (work_stream == NULL) {
        return false; /* nothing captures on the legacy default stream */
    }
    if (work_stream(DL_CUDA, device, &stream) != 0) {
        PyErr_Clear();
        return true;
    }
    return stream != NULL && (is_capturing(stream, &status) != 0 || status != 0);
}

/* Whether an object can be exported here. */
static bool is_plain(const Exporter *self) {
    return !is_watched() && is_settled() && is_ready(self) && runs_in_context(self->primary) &&
           !may_be_captured(self->lease->device_id);
}

/* Has Python export, or refuse. */
static DLManagedTensorVersioned *export_by_python(PyObject *object) {
    PyObject *capsule = PyObject_CallMethod(object, "_serve_exchange", NULL);
    if (capsule == NULL) {
        return NULL;
    }
    DLManagedTensorVersioned *tensor = PyCapsule_GetPointer(capsule, "dltensor_versioned");
    if (tensor != NULL) {
        PyCapsule_SetName(capsule, "used_dltensor_versioned");
    }
    Py_DECREF(capsule);
    return tensor;
}

/* managed_tensor_from_py_object_no_sync */
static int export_tensor(void *object, DLManagedTensorVersioned **out) {
    Exporter *self = as_exporter(object);
    if (self == NULL) {
        return -1;
    }
    if (!is_plain(self)) {
        *out = export_by_python(object);
        return *out == NULL ? -1 : 0;
    }
    if (!hold_again(self)) {
        return -1;
    }
    Export *export = begin_export(self->lease, DLPACK_MINOR, false, false);
    if (export == NULL) {
        drop_hold(self->lease);
        PyErr_NoMemory();
        return -1;
    }
    note_uses(self->lease, USED_ANYWHERE);
    *out = &export->tensor.versioned;
    return 0;
}

/* dltensor_from_py_object_no_sync: the wrapper keeps what the view shows. */
static int view_tensor(void *object, DLTensor *out) {
    Exporter *self = as_exporter(object);
    if (self == NULL) {
        return -1;
    }
    if (!is_plain(self)) {
        DLManagedTensorVersioned *tensor = export_by_python(object);
        if (tensor == NULL) {
            return -1;
        }
        tensor->deleter(tensor);
    }
    note_uses(self->lease, USED_ANYWHERE);
    *out = describe(self->lease, false);
    return 0;
}

/* current_work_stream */
static int find_work_stream(int device_type, int32_t device_id, void **out) {
    *out = NULL;
    if (device_type != DL_CUDA) {
        return 0;
    }
    if (is_settled()) {
        return work_stream == NULL ? 0 : work_stream(device_type, device_id, out);
    }
    PyObject *found = PyObject_CallFunction(find_stream_by_python, "i", (int)device_id);
    unsigned long long handle = found == NULL ? 0 : PyLong_AsUnsignedLongLong(found);
    Py_XDECREF(found);
    *out = (void *)(uintptr_t)handle;
    return PyErr_Occurred() ? -1 : 0;
}

/* managed_tensor_to_py_object_no_sync: takes the tensor over if it succeeds. */
static int import_tensor(DLManagedTensorVersioned *tensor, void **out) {
    PyObject *kept = PyCapsule_New(tensor, KEPT_VERSIONED, NULL);
    PyObject *seen = kept == NULL ? NULL : show_tensor(kept, &tensor->dl_tensor, is_read_only(tensor));
    PyObject *made = seen == NULL ? NULL : PyObject_CallObject(import_by_python, seen);
    Py_XDECREF(seen);
    if (made != NULL) {
        PyCapsule_SetDestructor(kept, drop_versioned);
    }
    Py_XDECREF(kept);
    *out = made;
    return made == NULL ? -1 : 0;
}

/* Tells an error of Python's to a consumer in C, and forgets it. */
static void tell_error(void *context, void (*set_error)(void *, const char *, const char *)) {
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    PyObject *name = type == NULL ? NULL : PyObject_GetAttrString(type, "__name__");
    PyObject *text = value == NULL ? NULL : PyObject_Str(value);
    PyObject *kind = name == NULL ? NULL : PyUnicode_AsUTF8String(name);
    PyObject *message = text == NULL ? NULL : PyUnicode_AsUTF8String(text);
    PyErr_Clear();
    set_error(context, kind == NULL ? "RuntimeError" : PyBytes_AsString(kind),
              message == NULL ? "dlwrap could not allocate" : PyBytes_AsString(message));
    PyObject *all[] = {type, value, traceback, name, text, kind, message};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        Py_XDECREF(all[i]);
    }
}

/* managed_tensor_allocator: host memory, wrapped; may be called without the interpreter's lock. */
static int allocate_tensor(DLTensor *prototype, DLManagedTensorVersioned **out, void *context,
                           void (*set_error)(void *, const char *, const char *)) {
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *made = PyObject_CallFunction(
        allocate_by_python, "(ii)(iii)N", (int)prototype->device.device_type,
        (int)prototype->device.device_id, (int)prototype->dtype.code, (int)prototype->dtype.bits,
        (int)prototype->dtype.lanes, make_extents(prototype->shape, prototype->ndim));
    *out = made == NULL ? NULL : export_by_python(made);
    if (*out == NULL) {
        tell_error(context, set_error);
    }
    Py_XDECREF(made); /* the tensor keeps it */
    int result = *out == NULL ? -1 : 0;
    PyGILState_Release(state);
    return result;
}

static DLPackExchangeAPI exchange_api = {
    .header = {{DLPACK_MAJOR, DLPACK_MINOR}, NULL},
    .managed_tensor_allocator = allocate_tensor,
    .managed_tensor_from_py_object_no_sync = export_tensor,
    .managed_tensor_to_py_object_no_sync = import_tensor,
    .dltensor_from_py_object_no_sync = view_tensor,
    .current_work_stream = find_work_stream,
};

PyObject *native_exchange_api(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    return PyCapsule_New(&exchange_api, "dlpack_exchange_api", NULL);
}

PyObject *native_serve_exchange(PyObject *module, PyObject *args) {
    (void)module;
    if (!PyArg_ParseTuple(args, "OOO", &allocate_by_python, &import_by_python, &find_stream_by_python)) {
        return NULL;
    }
    Py_INCREF(allocate_by_python);
    Py_INCREF(import_by_python);
    Py_INCREF(find_stream_by_python);
    Py_RETURN_NONE;
}

PyObject *native_settle_work_stream(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *capsule;
    unsigned long long address;
    Py_ssize_t modules;
    if (!PyArg_ParseTuple(args, "OKn", &capsule, &address, &modules)) {
        return NULL;
    }
    work_stream = NULL;
    if (capsule != Py_None) {
        const DLPackExchangeAPI *api = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
        if (api == NULL) {
            return NULL;
        }
        work_stream = api->current_work_stream;
    }
    is_capturing = (IsCapturing)(uintptr_t)address;
    modules_seen = modules;
    Py_RETURN_NONE;
}
