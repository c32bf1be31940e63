/* DLPack's C exchange API: how a library written in C asks for the tensor behind a Python object, without a
 * call of Python's. */
#ifndef DLWRAP_EXCHANGE_H
#define DLWRAP_EXCHANGE_H

#include <Python.h>

/* exchange_api(): the capsule for `__dlpack_c_exchange_api__`. */
PyObject *native_exchange_api(PyObject *module, PyObject *unused);

/* serve_exchange(allocate, import_tensor, find_work_stream): the functions of Python that do what is not
 * common. */
PyObject *native_serve_exchange(PyObject *module, PyObject *args);

/* settle_work_stream(exchange_api, is_capturing, modules): whose current stream is asked for, None for the
 * legacy default stream, as long as so many modules are imported. */
PyObject *native_settle_work_stream(PyObject *module, PyObject *args);

#endif
