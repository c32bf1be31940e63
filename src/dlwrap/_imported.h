/* Tensors of other producers: what they are, for Python, and an object that ends them when it is dropped. */
#ifndef DLWRAP_IMPORTED_H
#define DLWRAP_IMPORTED_H

#include <Python.h>

#include <stdbool.h>
#include <stdint.h>

#include "_dlpack.h"

/* The names of the capsules that keep a tensor. */
#define KEPT_VERSIONED "dlwrap_imported"
#define KEPT_LEGACY "dlwrap_imported_legacy"

/* Makes a tuple of ndim integers, or None where there are none to read. */
PyObject *make_extents(const int64_t *extents, int32_t ndim);

/* Whether a tensor says that it must not be written to. */
bool is_read_only(const DLManagedTensorVersioned *tensor);

/* Gives (kept, device, dtype, shape, strides, pointer, readonly); see dlwrap._imported.Tensor. */
PyObject *show_tensor(PyObject *kept, const DLTensor *tensor, bool read_only);

/* Destructor of a capsule that keeps a tensor: calls its deleter. */
void drop_versioned(PyObject *kept);

/* take_tensor(capsule): consumes a producer's capsule, and gives what `show_tensor` gives. */
PyObject *native_take_tensor(PyObject *module, PyObject *capsule);

#endif
