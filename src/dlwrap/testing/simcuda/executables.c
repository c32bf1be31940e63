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

/* Add copies of all operations of the graph and those it embeds, in their order, and references to all they
 * own. Gives the end of the list. */
static Op **add_graph(Op **end, References *owned, const Graph *graph) {
    references_add_all(owned, graph->owned);
    for (const Op *op = graph->head; op != NULL; op = op->next) {
        if (op->kind == OP_CHILD) {
            end = add_graph(end, owned, op->child);
        } else {
            *end = op_copy(op);
            end = &(*end)->next;
        }
    }
    return end;
}

/* Make an executable of a graph; the two are independent from then on. */
Result executable_new(const Graph *graph, GraphExec **executable) {
    if (executable == NULL || !graph_exists(graph))
        return INVALID_VALUE;
    GraphExec *made = allocate(sizeof *made);
    made->owned = references_new();
    add_graph(&made->head, made->owned, graph);
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

/* Copies of the operations; what is owned is kept until the last of them is gone. */
static Op *launch_list(const GraphExec *executable) {
    Op *copies = NULL;
    Op **end = &copies;
    for (const Op *op = executable->head; op != NULL; op = op->next, end = &(*end)->next)
        *end = op_copy(op);
    if (executable->owned->first != NULL) {
        *end = op_new(OP_EMPTY);
        (*end)->owned = references_share(executable->owned);
    }
    return copies;
}

/* Launch an executable: submit copies of its operations, or one node that embeds them while the stream
 * captures. Another thread may destroy the executable or the stream while a host function among them runs. */
Result executable_launch(const GraphExec *executable, Stream *stream) {
    if (!executable_exists(executable))
        return INVALID_VALUE;
    if (stream->capture != NULL)
        return work_submit(stream, graph_node(executable->head, executable->owned));
    Op *copies = launch_list(executable);
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

/* Launch a graph by an executable that is destroyed at once. */
Result launch_once(const Graph *graph, Stream *stream) {
    GraphExec *executable;
    Result result = executable_new(graph, &executable);
    if (result != SUCCESS)
        return result;
    result = executable_launch(executable, stream);
    executable_destroy(executable);
    return result;
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

/* Why the one executable cannot take the place of the other. */
static int difference(const GraphExec *executable, const GraphExec *other) {
    const Op *ours = executable->head;
    const Op *theirs = other->head;
    while (ours != NULL && theirs != NULL && ours->kind == theirs->kind) {
        ours = ours->next;
        theirs = theirs->next;
    }
    if (ours == NULL && theirs == NULL)
        return UPDATED;
    return ours != NULL && theirs != NULL ? NODE_TYPE_CHANGED : TOPOLOGY_CHANGED;
}

/* Let each do and own what the other does and owns. */
static void exchange(GraphExec *one, GraphExec *other) {
    const GraphExec before = *one;
    one->head = other->head;
    one->owned = other->owned;
    other->head = before.head;
    other->owned = before.owned;
}

/* Let the executable do, and own, what the graph does and owns; earlier launches keep what they have. */
API Result cuGraphExecUpdate_v2(GraphExec *executable, Graph *graph, UpdateResult *answer) {
    Result result = enter("cuGraphExecUpdate");
    if (result != SUCCESS)
        return result;
    GraphExec *other;
    if (answer == NULL || !executable_exists(executable) || executable_new(graph, &other) != SUCCESS)
        return leave(INVALID_VALUE);
    *answer = (UpdateResult){.result = difference(executable, other)};
    if (answer->result == UPDATED)
        exchange(executable, other);
    executable_destroy(other);
    return leave(answer->result == UPDATED ? SUCCESS : GRAPH_UPDATE_FAILURE);
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
