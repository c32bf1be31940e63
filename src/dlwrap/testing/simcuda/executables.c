/* Executables of graphs: they submit the graph's operations again and again, and own what the graph owned. */
#include "sim.h"

#include <stdlib.h>

typedef struct UpdateResult {
    int result;
    Op *node;
    Op *from;
} UpdateResult;

typedef struct InstantiateParams {
    uint64_t flags;
    Handle *upload_stream;
    Op *node;
    int result;
} InstantiateParams;

enum { UPDATED = 0, TOPOLOGY_CHANGED = 2, NODE_TYPE_CHANGED = 3 };

/* Where the list of executables points to this one; its end if there is none. */
static GraphExec **executable_link(const GraphExec *executable) {
    GraphExec **link = &sim.executables;
    while (*link != NULL && *link != executable)
        link = &(*link)->next;
    return link;
}

/* Whether the executable exists. */
static bool executable_exists(const GraphExec *executable) {
    const GraphExec *known = *executable_link(executable);
    return known != NULL && !known->forgotten;
}

/* Copies of the operations. */
static Op *copy_all(const Op *op) {
    Op *head = NULL;
    for (Op **link = &head; op != NULL; op = op->next, link = &(*link)->next)
        *link = op_copy(op);
    return head;
}

/* Make an executable of a graph; the two are independent from then on. */
Result executable_new(const Graph *graph, GraphExec **executable) {
    if (executable == NULL || !graph_exists(graph))
        return INVALID_VALUE;
    GraphExec *made = allocate(sizeof *made);
    made->head = copy_all(graph->head);
    made->owned = references_copy(graph->owned);
    made->next = sim.executables;
    sim.executables = made;
    *executable = made;
    return SUCCESS;
}

/* Drop the operations and the references; those of launches stay. */
static void empty(GraphExec *executable) {
    ops_free(executable->head);
    references_drop(executable->owned);
    executable->head = NULL;
    executable->owned = NULL;
}

/* Free an executable, also a forgotten one; launches that are queued still run. */
Result executable_destroy(GraphExec *executable) {
    GraphExec **link = executable_link(executable);
    if (*link == NULL)
        return INVALID_VALUE;
    *link = executable->next;
    empty(executable);
    free(executable);
    return SUCCESS;
}

/* Empty every executable; the handles stay, as those of graphs do. */
void executables_forget(void) {
    for (GraphExec *each = sim.executables; each != NULL; each = each->next) {
        empty(each);
        each->forgotten = true;
    }
}

/* Submit copies of the operations, one after another; the last thing that a launch does is to drop its
 * references. Takes one use of them. */
static Result launch(const Op *op, References *owned, Stream *stream) {
    Op *copies = copy_all(op);
    Op **end = &copies;
    while (*end != NULL)
        end = &(*end)->next;
    if (owned->first != NULL) {
        *end = op_new(OP_EMPTY);
        (*end)->owned = owned;
    } else {
        references_drop(owned);
    }
    Result result = SUCCESS;
    stream->users++;
    while (copies != NULL && result == SUCCESS) {
        Op *first = copies;
        copies = first->next;
        result = work_submit(stream, first);
    }
    ops_free(copies);
    stream->users--;
    stream_collect(stream);
    return result;
}

/* Launch an executable. */
Result executable_launch(const GraphExec *executable, Stream *stream) {
    if (!executable_exists(executable))
        return INVALID_VALUE;
    return launch(executable->head, references_share(executable->owned), stream);
}

/* Launch a graph as if by an executable that is destroyed at once. */
Result launch_once(const Graph *graph, Stream *stream) {
    return launch(graph->head, references_copy(graph->owned), stream);
}

/* Make an executable of a graph. */
API Result cuGraphInstantiateWithFlags(GraphExec **executable, Graph *graph, unsigned long long flags) {
    (void)flags;
    Result result = enter("cuGraphInstantiate");
    return result == SUCCESS ? leave(executable_new(graph, executable)) : result;
}

/* Likewise, in the form that had room for a diagnosis. */
API Result cuGraphInstantiate_v2(GraphExec **executable, Graph *graph, void **node, char *text,
                                 size_t length) {
    if (node != NULL)
        *node = NULL;
    if (text != NULL && length > 0)
        text[0] = '\0';
    return cuGraphInstantiateWithFlags(executable, graph, 0);
}

/* Likewise, in the form that can also upload it, which takes nothing here. */
API Result cuGraphInstantiateWithParams(GraphExec **executable, Graph *graph, InstantiateParams *params) {
    Result result = enter("cuGraphInstantiateWithParams");
    if (result != SUCCESS)
        return result;
    if (params == NULL)
        return leave(INVALID_VALUE);
    params->node = NULL;
    params->result = 0;
    return leave(executable_new(graph, executable));
}

/* Enter a function and find the stream and the executable it is about. */
static Result enter_with(const char *function, const GraphExec *executable, Handle *handle, Stream **stream) {
    Result result = enter(function);
    if (result != SUCCESS)
        return result;
    result = stream_named(handle, stream);
    if (result == SUCCESS && !executable_exists(executable))
        result = INVALID_VALUE;
    return result == SUCCESS ? SUCCESS : leave(result);
}

/* Make the executable ready for its launch, which it always is. */
API Result cuGraphUpload(GraphExec *executable, Handle *handle) {
    Stream *stream;
    Result result = enter_with("cuGraphUpload", executable, handle, &stream);
    return result == SUCCESS ? leave(context_usable(stream->context)) : result;
}

/* Submit the executable's operations to a stream. */
API Result cuGraphLaunch(GraphExec *executable, Handle *handle) {
    Stream *stream;
    Result result = enter_with("cuGraphLaunch", executable, handle, &stream);
    return result == SUCCESS ? leave(executable_launch(executable, stream)) : result;
}

/* Free an executable. */
API Result cuGraphExecDestroy(GraphExec *executable) {
    Result result = enter("cuGraphExecDestroy");
    return result == SUCCESS ? leave(executable_destroy(executable)) : result;
}

/* Why the executable cannot do what the graph does, with the graph's first node that it has no place for. */
static int difference(const GraphExec *executable, const Graph *graph, Op **node) {
    const Op *ours = executable->head;
    Op *theirs = graph->head;
    while (ours != NULL && theirs != NULL && ours->kind == theirs->kind) {
        ours = ours->next;
        theirs = theirs->next;
    }
    *node = theirs;
    if (ours == NULL && theirs == NULL)
        return UPDATED;
    return ours != NULL && theirs != NULL ? NODE_TYPE_CHANGED : TOPOLOGY_CHANGED;
}

/* Let the executable do, and own, what the graph does and owns; earlier launches keep what they have. */
API Result cuGraphExecUpdate_v2(GraphExec *executable, Graph *graph, UpdateResult *answer) {
    Result result = enter("cuGraphExecUpdate");
    if (result != SUCCESS)
        return result;
    if (answer == NULL || !executable_exists(executable) || !graph_exists(graph))
        return leave(INVALID_VALUE);
    *answer = (UpdateResult){0};
    answer->result = difference(executable, graph, &answer->node);
    if (answer->result != UPDATED)
        return leave(GRAPH_UPDATE_FAILURE);
    empty(executable);
    executable->head = copy_all(graph->head);
    executable->owned = references_copy(graph->owned);
    return leave(SUCCESS);
}

/* The first form: the node and the result apart. */
API Result cuGraphExecUpdate(GraphExec *executable, Graph *graph, Op **node, int *update) {
    UpdateResult answer = {0};
    Result result = cuGraphExecUpdate_v2(executable, graph, &answer);
    if (node != NULL)
        *node = answer.node;
    if (update != NULL)
        *update = answer.result;
    return result;
}

/* The per-thread-default-stream forms: handle 0 is the calling thread's own stream. */
API Result cuGraphLaunch_ptsz(GraphExec *executable, Handle *handle) {
    return cuGraphLaunch(executable, per_thread(handle));
}

API Result cuGraphUpload_ptsz(GraphExec *executable, Handle *handle) {
    return cuGraphUpload(executable, per_thread(handle));
}

API Result cuGraphInstantiateWithParams_ptsz(GraphExec **executable, Graph *graph,
                                             InstantiateParams *params) {
    return cuGraphInstantiateWithParams(executable, graph, params);
}
