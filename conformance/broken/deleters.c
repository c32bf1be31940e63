/* Deleters and destructors that misbehave in one way each; but for that they do what those of the producer
 * do. */
#define _GNU_SOURCE

#include <pthread.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 4096 };

extern int Py_IsInitialized(void);
extern int PyGILState_Ensure(void);
extern void PyGILState_Release(int state);
extern void PyErr_Clear(void);

typedef void (*Function)(void *);

/* What a tensor had before it was broken. */
typedef struct {
    void *managed;
    Function deleter;
    void **context_field;
    void *context;
} Original;

static Original originals[MOST];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Notes the deleter and the context of a tensor; -1 if there are too many. */
int broken_remember(void *managed, Function deleter, void **context_field) {
    int result = -1;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MOST && result < 0; i++) {
        if (originals[i].managed == NULL) {
            originals[i] = (Original){managed, deleter, context_field, *context_field};
            result = 0;
        }
    }
    pthread_mutex_unlock(&lock);
    return result;
}

/* Calls the deleter that a tensor had. */
static void call_original(void *managed) {
    Original found = {0};
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MOST; i++) {
        if (originals[i].managed == managed) {
            found = originals[i];
            originals[i].managed = NULL;
            break;
        }
    }
    pthread_mutex_unlock(&lock);
    if (found.deleter != NULL) {
        *found.context_field = found.context;
        found.deleter(managed);
    }
}

void broken_delete_well(void *managed) {
    call_original(managed);
}

void broken_delete_never(void *managed) {
    (void)managed;
}

/* Keeps the memory for good if another thread than the first calls it. */
void broken_delete_on_first_thread(void *managed) {
    if (syscall(SYS_gettid) == getpid()) {
        call_original(managed);
    }
}

/* Waits for the interpreter's lock, as long as there is an interpreter. */
void broken_delete_with_lock(void *managed) {
    if (!Py_IsInitialized()) {
        call_original(managed);
        return;
    }
    int state = PyGILState_Ensure();
    call_original(managed);
    PyGILState_Release(state);
}

void broken_delete_slowly(void *managed) {
    nanosleep(&(struct timespec){0, 500000000}, NULL);
    call_original(managed);
}

/* Does not survive the interpreter. */
void broken_delete_in_python(void *managed) {
    if (!Py_IsInitialized()) {
        abort();
    }
    call_original(managed);
}

void broken_destroy_never(void *capsule) {
    (void)capsule;
}

static Function destructor;

/* Notes the destructor of the capsules that `broken_destroy_and_clear` is given to. */
void broken_remember_destructor(Function function) {
    destructor = function;
}

/* Forgets the error that is being raised. */
void broken_destroy_and_clear(void *capsule) {
    destructor(capsule);
    PyErr_Clear();
}
