/* The destructors of user objects: they run late, in a thread of the driver's own, and may not call it.
 *
 * The thread begins when one is due and ends when none is, so that there is nothing to stop when the process
 * ends. A forked child has no such thread and runs none.
 */
#include "sim.h"

#include <signal.h>
#include <stdlib.h>

static UserObject *due;
static UserObject **due_end = &due;
static size_t alive;
static bool held;
static bool running;

/* The object that has waited longest. */
static UserObject *take_due(void) {
    UserObject *object = due;
    due = object->next;
    if (due == NULL)
        due_end = &due;
    return object;
}

/* The thread: run, without the lock, what is due. */
static void *run_due(void *unused) {
    (void)unused;
    thread_self()->in_callback = true;
    pthread_setname_np(pthread_self(), "sim-destructors");
    lock();
    while (due != NULL && !held) {
        UserObject *object = take_due();
        unlock();
        object->destroy(object->pointer);
        lock();
        free(object);
        alive--;
        changed();
    }
    running = false;
    changed();
    unlock();
    return NULL;
}

/* Start the thread if there is something for it to do. No signal of the program's is to be handled there. */
static void start(void) {
    pthread_t thread;
    sigset_t all;
    sigset_t before;
    if (due == NULL || held || running || sim.forked)
        return;
    running = true;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&thread, NULL, run_due, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0)
        misuse("no thread for the destructors of user objects: error %d", error);
    pthread_detach(thread);
}

/* There is one user object more. */
void destructor_new(void) {
    alive++;
}

/* The object has lost its last reference. */
void destructor_due(UserObject *object) {
    object->next = NULL;
    *due_end = object;
    due_end = &object->next;
    start();
}

/* Keep destructors from running, or let them go. */
void destructors_hold(bool hold) {
    held = hold;
    start();
}

/* Likewise; not logged. */
API void dlwrap_sim_hold_destructors(int hold) {
    lock();
    destructors_hold(hold != 0);
    unlock();
}

/* How many user objects there are whose destructor has not returned. */
API size_t dlwrap_sim_user_objects_alive(void) {
    lock();
    size_t count = alive;
    unlock();
    return count;
}

/* Wait until no destructor is due and none runs; 0 if that took too long. */
API int dlwrap_sim_wait_for_destructors(double seconds) {
    struct timespec deadline = deadline_in(seconds);
    lock();
    bool waited = true;
    while ((due != NULL || running) && !sim.forked && waited)
        waited = wait_for_change_until(&deadline);
    unlock();
    return waited;
}
