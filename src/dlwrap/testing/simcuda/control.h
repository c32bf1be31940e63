/* The structures that dlwrap.testing reads and writes through ctypes; _library.py declares the same. */
#ifndef DLWRAP_SIM_CONTROL_H
#define DLWRAP_SIM_CONTROL_H

#include "sim.h"

typedef struct LoggedCall {
    int32_t function;
    int32_t thread_id;
    int32_t gil_held;
    char thread_name[16];
} LoggedCall;

typedef struct ListedRegistration {
    uint64_t start;
    uint64_t nbytes;
    uint32_t flags;
    uint32_t device;
} ListedRegistration;

#endif
