/* Graphs: the captured operations in the order of their capture, and executables that submit them again. */
#include "sim.h"

#include <stdlib.h>

struct Graph {
    Graph *next;
    Op *head;
    Op *tail;
    size_t count;
};

struct GraphExec {
    GraphExec *next;
    Op *head;
};

/* A graph without nodes. */
Graph *graph_new(void) {
    Graph *graph = allocate(sizeof *graph);
    graph->next = sim.graphs;
    sim.graphs = graph;
    return graph;
}

/* Add a node after all others. Takes the operation. */
void graph_append(Graph *graph, Op *op) {
    op->next = NULL;
    if (graph->tail != NULL)
        graph->tail->next = op;
    else
        graph->head = op;
    graph->tail = op;
    graph->count++;
}

/* The node added last, or NULL. */
Op *graph_last_node(const Graph *graph) {
    return graph->tail;
}

/* Free a list of operations. */
static void free_all(Op *op) {
    while (op != NULL) {
        Op *following = op->next;
        op_free(op);
        op = following;
    }
}

/* Free the graph; its executables stay. */
void graph_destroy(Graph *graph) {
    Graph **link = &sim.graphs;
    while (*link != graph)
        link = &(*link)->next;
    *link = graph->next;
    free_all(graph->head);
    free(graph);
}

/* Whether the graph exists. */
static bool graph_exists(const Graph *graph) {
    for (const Graph *known = sim.graphs; known != NULL; known = known->next)
        if (known == graph)
            return true;
    return false;
}

/* Where the list of executables points to this one; its end if there is none. */
static GraphExec **executable_link(const GraphExec *executable) {
    GraphExec **link = &sim.executables;
    while (*link != NULL && *link != executable)
        link = &(*link)->next;
    return link;
}

/* Submit copies of the operations, one after another. */
static Result submit_all(const Op *op, Stream *stream) {
    Result result = SUCCESS;
    for (; op != NULL && result == SUCCESS; op = op->next)
        result = work_submit(stream, op_copy(op));
    return result;
}

/* Free a graph. */
API Result cuGraphDestroy(Graph *graph) {
    Result result = enter("cuGraphDestroy");
    if (result != SUCCESS)
        return result;
    if (!graph_exists(graph))
        return leave(INVALID_VALUE);
    graph_destroy(graph);
    return leave(SUCCESS);
}

/* The nodes of a graph, or only how many there are. */
API Result cuGraphGetNodes(Graph *graph, Op **nodes, size_t *count) {
    Result result = enter("cuGraphGetNodes");
    if (result != SUCCESS)
        return result;
    if (!graph_exists(graph) || count == NULL)
        return leave(INVALID_VALUE);
    size_t listed = 0;
    for (Op *op = graph->head; op != NULL && nodes != NULL && listed < *count; op = op->next)
        nodes[listed++] = op;
    *count = nodes != NULL ? listed : graph->count;
    return leave(SUCCESS);
}

/* Make an executable of a graph; the two are independent from then on. */
static Result instantiate(const char *function, GraphExec **executable, const Graph *graph) {
    Result result = enter(function);
    if (result != SUCCESS)
        return result;
    if (!graph_exists(graph))
        return leave(INVALID_VALUE);
    GraphExec *made = allocate(sizeof *made);
    Op **link = &made->head;
    for (const Op *op = graph->head; op != NULL; op = op->next) {
        *link = op_copy(op);
        link = &(*link)->next;
    }
    made->next = sim.executables;
    sim.executables = made;
    *executable = made;
    return leave(SUCCESS);
}

/* Make an executable of a graph. */
API Result cuGraphInstantiateWithFlags(GraphExec **executable, Graph *graph, unsigned long long flags) {
    (void)flags;
    return instantiate("cuGraphInstantiate", executable, graph);
}

/* Likewise, in the form that had room for a diagnosis. */
API Result cuGraphInstantiate_v2(GraphExec **executable, Graph *graph, void **node, char *text,
                                 size_t length) {
    if (node != NULL)
        *node = NULL;
    if (text != NULL && length > 0)
        text[0] = '\0';
    return instantiate("cuGraphInstantiate", executable, graph);
}

/* Submit the graph's operations to a stream. */
API Result cuGraphLaunch(GraphExec *executable, Handle *handle) {
    Result result = enter("cuGraphLaunch");
    if (result != SUCCESS)
        return result;
    Stream *stream;
    result = stream_named(handle, &stream);
    if (result == SUCCESS && *executable_link(executable) == NULL)
        result = INVALID_VALUE;
    return leave(result == SUCCESS ? submit_all(executable->head, stream) : result);
}

/* Free an executable; launches that are queued still run. */
API Result cuGraphExecDestroy(GraphExec *executable) {
    Result result = enter("cuGraphExecDestroy");
    if (result != SUCCESS)
        return result;
    GraphExec **link = executable_link(executable);
    if (*link == NULL)
        return leave(INVALID_VALUE);
    *link = executable->next;
    free_all(executable->head);
    free(executable);
    return leave(SUCCESS);
}

/* The per-thread-default-stream form: handle 0 is the calling thread's own stream. */
API Result cuGraphLaunch_ptsz(GraphExec *executable, Handle *handle) {
    return cuGraphLaunch(executable, per_thread(handle));
}

/* Submit a graph's operations to a stream without an executable. */
API Result dlwrap_sim_launch_graph(Graph *graph, Handle *handle) {
    Stream *stream;
    lock();
    Result result = graph_exists(graph) ? stream_named(handle, &stream) : INVALID_VALUE;
    if (result == SUCCESS)
        result = submit_all(graph->head, stream);
    unlock();
    return result;
}
