/* What Python notes of a lease: for whom, what it keeps, which page-locked range it uses. */
#ifndef DLWRAP_LOAN_H
#define DLWRAP_LOAN_H

#include <Python.h>

#include <stdbool.h>

#include "_lease.h"
#include "_registration.h"

/* See dlwrap._lifetime.Lease, the subclass of which every instance is. */
struct Loan {
    PyObject_HEAD PyObject *hold;
    Registration *pin; /* changed by `join` and `leave` only */
    PyObject *streams, *captures, *closed, *origin;
    Lease *lease; /* what is lent, for who asks what is held; NULL before that */
    int device;
    char device_wide;
    unsigned char kind; /* what made it, a number of Python's */
};

/* Makes the type, once. */
PyObject *make_loan_type(void);

/* Gives an object as a loan; NULL with TypeError if it is none. */
Loan *as_loan(PyObject *object);

/* Makes a loan of a subtype. */
Loan *make_loan(PyTypeObject *type, int device, PyObject *hold, bool device_wide);

/* Has a new loan show its lease, and keep the lease's memory. */
void show_lease(Loan *loan, Lease *lease);

#endif
