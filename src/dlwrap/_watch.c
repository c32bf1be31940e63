/* See the header. */
#include "_watch.h"

#include <stdatomic.h>

static atomic_bool watched;

bool is_watched(void) {
    return atomic_load_explicit(&watched, memory_order_relaxed);
}

PyObject *native_watch(PyObject *module, PyObject *object) {
    (void)module;
    atomic_store(&watched, object == Py_True);
    Py_RETURN_NONE;
}
