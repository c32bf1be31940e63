/* See the header. */
#include "_imported.h"

PyObject *make_extents(const int64_t *extents, int32_t ndim) {
    if (extents == NULL && ndim > 0) {
        Py_RETURN_NONE;
    }
    PyObject *tuple = PyTuple_New(ndim);
    for (int32_t i = 0; tuple != NULL && i < ndim; i++) {
        PyObject *extent = PyLong_FromLongLong(extents[i]);
        if (extent == NULL || PyTuple_SetItem(tuple, i, extent) != 0) {
            Py_CLEAR(tuple);
        }
    }
    return tuple;
}

bool is_read_only(const DLManagedTensorVersioned *tensor) {
    return (tensor->flags & DL_FLAG_READ_ONLY) != 0;
}

PyObject *show_tensor(PyObject *kept, const DLTensor *tensor, bool read_only) {
    return Py_BuildValue(
        "O(ii)(iii)NNKO", kept, (int)tensor->device.device_type, (int)tensor->device.device_id,
        (int)tensor->dtype.code, (int)tensor->dtype.bits, (int)tensor->dtype.lanes,
        make_extents(tensor->shape, tensor->ndim), make_extents(tensor->strides, tensor->ndim),
        (unsigned long long)((uintptr_t)tensor->data + tensor->byte_offset), read_only ? Py_True : Py_False);
}

void drop_versioned(PyObject *kept) {
    PyObject *type, *value, *traceback; /* the deleter may call Python */
    PyErr_Fetch(&type, &value, &traceback);
    DLManagedTensorVersioned *tensor = PyCapsule_GetPointer(kept, KEPT_VERSIONED);
    if (tensor != NULL && tensor->deleter != NULL) {
        tensor->deleter(tensor);
    }
    PyErr_Restore(type, value, traceback);
}

/* As drop_versioned, for the form of before DLPack 1.0. */
static void drop_legacy(PyObject *kept) {
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    DLManagedTensor *tensor = PyCapsule_GetPointer(kept, KEPT_LEGACY);
    if (tensor != NULL && tensor->deleter != NULL) {
        tensor->deleter(tensor);
    }
    PyErr_Restore(type, value, traceback);
}

/* Takes a tensor over from its producer's capsule; nothing can fail once the deleter is ours. */
static PyObject *take(PyObject *capsule, const char *used, PyObject *kept, PyCapsule_Destructor drop,
                      const DLTensor *tensor, bool read_only) {
    PyObject *seen = kept == NULL ? NULL : show_tensor(kept, tensor, read_only);
    if (seen != NULL) {
        PyCapsule_SetName(capsule, used);
        PyCapsule_SetDestructor(kept, drop);
    }
    Py_XDECREF(kept);
    return seen;
}

PyObject *native_take_tensor(PyObject *module, PyObject *capsule) {
    (void)module;
    if (PyCapsule_IsValid(capsule, "dltensor_versioned")) {
        DLManagedTensorVersioned *tensor = PyCapsule_GetPointer(capsule, "dltensor_versioned");
        if (tensor->version.major != DLPACK_MAJOR) { /* the fields may be elsewhere; the capsule ends it */
            PyErr_Format(PyExc_BufferError, "cannot read a tensor of DLPack %u: dlwrap knows version %d",
                         (unsigned)tensor->version.major, DLPACK_MAJOR);
            return NULL;
        }
        return take(capsule, "used_dltensor_versioned", PyCapsule_New(tensor, KEPT_VERSIONED, NULL),
                    drop_versioned, &tensor->dl_tensor, is_read_only(tensor));
    }
    if (PyCapsule_IsValid(capsule, "dltensor")) {
        DLManagedTensor *tensor = PyCapsule_GetPointer(capsule, "dltensor");
        /* It has no flags: as NumPy, nobody is told that it may be written to. */
        return take(capsule, "used_dltensor", PyCapsule_New(tensor, KEPT_LEGACY, NULL), drop_legacy,
                    &tensor->dl_tensor, true);
    }
    PyErr_SetString(PyExc_BufferError, "cannot read a DLPack capsule that was used already, or is none");
    return NULL;
}
