/* What happens at the door of every driver function: the log, the gates, the planned failures. */
#include "control.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MAX_FUNCTIONS = 256, MAX_PLANS = 64, MAX_LOG = 1 << 20 };

typedef struct Gate {
    bool paused;
    unsigned waiting;
} Gate;

typedef struct Plan {
    int function;
    Result code;
    uint64_t skip;  /* calls that still succeed */
    uint64_t times; /* calls that then fail */
} Plan;

static Gate gates[MAX_FUNCTIONS];
static uint64_t counts[MAX_FUNCTIONS];
static Plan plans[MAX_PLANS];
static size_t plan_count;
static LoggedCall *log_entries;
static size_t log_count;
static size_t log_capacity;

static int (*gil_check)(void);

static void find_gil_check(void) {
    *(void **)&gil_check = dlsym(RTLD_DEFAULT, "PyGILState_Check");
}

/* 1 if the calling thread holds Python's GIL, 0 if not, -1 where there is no Python. */
static int gil_held(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find_gil_check);
    return gil_check != NULL ? gil_check() : -1;
}

/* Note a call; past the log's limit only the counters go on. */
static void log_call(int function, int gil) {
    counts[function]++;
    if (log_count == MAX_LOG)
        return;
    if (log_count == log_capacity) {
        log_capacity = log_capacity == 0 ? 1024 : 2 * log_capacity;
        log_entries = realloc(log_entries, log_capacity * sizeof *log_entries);
        if (log_entries == NULL)
            misuse("out of memory");
    }
    LoggedCall *entry = &log_entries[log_count++];
    entry->function = function;
    entry->thread_id = (int32_t)syscall(SYS_gettid);
    entry->gil_held = gil;
    if (pthread_getname_np(pthread_self(), entry->thread_name, sizeof entry->thread_name) != 0)
        entry->thread_name[0] = '\0';
}

/* Wait at the function's gate while it is closed. */
static void pass_gate(int function) {
    Gate *gate = &gates[function];
    while (gate->paused) {
        gate->waiting++;
        changed();
        wait_for_change();
        gate->waiting--;
    }
}

/* The code that this call was planned to fail with, or SUCCESS. */
static Result planned_failure(int function) {
    Result result = SUCCESS;
    for (size_t i = 0; i < plan_count; i++) {
        Plan *plan = &plans[i];
        if (plan->function != function || plan->times == 0)
            continue;
        if (plan->skip > 0) {
            plan->skip--;
        } else if (result == SUCCESS) {
            plan->times--;
            result = plan->code;
        }
    }
    return result;
}

/* Begin a driver function that needs no cuInit: on SUCCESS the lock is held until leave(). */
Result enter_anytime(const char *function) {
    int index = function_index(function);
    int gil = gil_held();
    lock();
    thread_self()->call = function;
    log_call(index, gil);
    pass_gate(index);
    Result result = planned_failure(index);
    if (result == SUCCESS && thread_self()->in_callback)
        result = NOT_PERMITTED;
    if (result != SUCCESS)
        leave(result);
    return result;
}

/* Begin a driver function: on SUCCESS the lock is held until leave(). */
Result enter(const char *function) {
    Result result = enter_anytime(function);
    if (result == SUCCESS && (sim.forked || !sim.initialized))
        result = leave(NOT_INITIALIZED);
    return result;
}

/* End a driver function that was entered. */
Result leave(Result result) {
    thread_self()->call = NULL;
    unlock();
    return result;
}

/* Forget the log and the plans, and open every gate. */
void calls_reset(void) {
    memset(counts, 0, sizeof counts);
    log_count = 0;
    plan_count = 0;
    for (int i = 0; i < MAX_FUNCTIONS; i++)
        gates[i].paused = false;
    changed();
}

/* Whether a driver function of that name is simulated. */
API int dlwrap_sim_knows(const char *function) {
    return function_index(function) >= 0;
}

/* Room for one more plan, where a used-up one was or after all others; NULL if there is none. */
static Plan *free_plan(void) {
    for (size_t i = 0; i < plan_count; i++)
        if (plans[i].times == 0)
            return &plans[i];
    return plan_count < MAX_PLANS ? &plans[plan_count++] : NULL;
}

/* Let the nth call from now on, and those after it up to `times`, return `code` and do nothing else. */
API int dlwrap_sim_fail(const char *function, int code, uint64_t nth, uint64_t times) {
    int index = function_index(function);
    if (index < 0 || code == SUCCESS || nth == 0)
        return INVALID_VALUE;
    lock();
    Plan *plan = free_plan();
    if (plan != NULL)
        *plan = (Plan){index, code, nth - 1, times};
    unlock();
    return plan != NULL ? SUCCESS : OUT_OF_MEMORY;
}

/* Forget every planned failure. */
API void dlwrap_sim_clear_failures(void) {
    lock();
    plan_count = 0;
    unlock();
}

/* Close (or open) the function's gate: calls wait at their entry while it is closed. */
API int dlwrap_sim_pause(const char *function, int paused) {
    int index = function_index(function);
    if (index < 0)
        return INVALID_VALUE;
    lock();
    gates[index].paused = paused != 0;
    changed();
    unlock();
    return SUCCESS;
}

/* How many threads wait at the function's gate. */
API unsigned dlwrap_sim_waiting(const char *function) {
    int index = function_index(function);
    if (index < 0)
        return 0;
    lock();
    unsigned waiting = gates[index].waiting;
    unlock();
    return waiting;
}

/* Wait until at least so many threads wait at the gate; 0 if that took too long. */
API int dlwrap_sim_wait_until_paused(const char *function, unsigned threads, double seconds) {
    int index = function_index(function);
    if (index < 0)
        return 0;
    struct timespec deadline = deadline_in(seconds);
    lock();
    while (gates[index].waiting < threads && wait_for_change_until(&deadline))
        continue;
    bool reached = gates[index].waiting >= threads;
    unlock();
    return reached;
}

/* How often the function was called. */
API uint64_t dlwrap_sim_count(const char *function) {
    int index = function_index(function);
    if (index < 0)
        return 0;
    lock();
    uint64_t count = counts[index];
    unlock();
    return count;
}

/* Copy up to `capacity` logged calls, oldest first, beginning with the one numbered `first`. */
API size_t dlwrap_sim_calls(size_t first, LoggedCall *entries, size_t capacity) {
    lock();
    size_t count = first < log_count ? log_count - first : 0;
    if (count > capacity)
        count = capacity;
    if (count > 0)
        memcpy(entries, log_entries + first, count * sizeof *entries);
    unlock();
    return count;
}

/* Forget the log and the counters. */
API void dlwrap_sim_clear_calls(void) {
    lock();
    memset(counts, 0, sizeof counts);
    log_count = 0;
    unlock();
}

/* The name that goes with LoggedCall.function. */
API const char *dlwrap_sim_function_name(int index) {
    return index >= 0 && index < function_total() ? function_name(index) : NULL;
}
