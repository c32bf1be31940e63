/* Page-locked ranges, who uses them, and the table that finds them by address: quick, and each step whole, so
 * that no interrupt and no other thread can come between. When a range is registered and unregistered is
 * Python's business (dlwrap._pinning). */
#ifndef DLWRAP_REGISTRATION_H
#define DLWRAP_REGISTRATION_H

#include <Python.h>

#include <stdbool.h>

/* On the way through the driver. */
enum { REGISTERING, LIVE, UNREGISTERING, GONE };

typedef struct Loan Loan;

/* Addresses, from the first byte up to but not including the last. */
typedef struct Bytes {
    unsigned long long start, stop;
} Bytes;

/* See dlwrap._registration.Registration, the subclass of which every instance is. */
typedef struct Registration {
    PyObject_HEAD Bytes bytes;
    PyObject *hold, *when_gone, *other_starts, *origin;
    unsigned long long device_start; /* the device's address of the start, if that is known */
    unsigned long maker;
    double idle_since;
    Py_ssize_t users;
    int device, state;
    char read_only, adopted, flush, device_start_known;
} Registration;

typedef struct Registrations Registrations;

/* Makes the type of the ranges, once. */
PyObject *make_registration_type(void);

/* Makes the type of the tables, once. */
PyObject *make_registrations_type(void);

/* Gives an object as a table; NULL with TypeError if it is none. */
Registrations *as_registrations(PyObject *object);

/* Makes a loan a user of a live range around the bytes that its device can use as it is and nobody waits to
 * see gone; false if there is none. */
bool share_at_once(Registrations *table, Loan *loan, Bytes bytes, bool writable);

/* leave(loan): the range that it used and does not any more, or None. */
PyObject *native_leave(PyObject *module, PyObject *object);

/* leave_to_others(loan): whether it uses no range any more, because others do or it used none; else nothing
 * happens. */
PyObject *native_leave_to_others(PyObject *module, PyObject *object);

/* Lets the child of a fork go on. */
void renew_registrations(void);

#endif
