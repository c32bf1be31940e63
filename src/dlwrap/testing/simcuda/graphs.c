/* Graphs: the captured operations in the order of their capture, and the references that they own. */
#include "sim.h"

#include <stdlib.h>

/* A graph without nodes. */
Graph *graph_new(void) {
    Graph *graph = allocate(sizeof *graph);
    graph->owned = references_new();
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

/* A graph of copies of these operations, with references of its own. */
static Graph *graph_of(const Op *op, const References *owned) {
    Graph *graph = graph_new();
    for (; op != NULL; op = op->next)
        graph_append(graph, op_copy(op));
    references_add_all(graph->owned, owned);
    return graph;
}

/* The same graph again, with references of its own. */
Graph *graph_clone(const Graph *graph) {
    return graph_of(graph->head, graph->owned);
}

/* A node that embeds a graph of copies of these operations, with references of its own. */
Op *graph_node(const Op *op, const References *owned) {
    Op *node = op_new(OP_CHILD);
    node->child = graph_of(op, owned);
    node->child->embedded = true;
    return node;
}

/* Drop the nodes and the references. */
static void empty(Graph *graph) {
    ops_free(graph->head);
    references_drop(graph->owned);
    graph->head = NULL;
    graph->tail = NULL;
    graph->count = 0;
    graph->owned = NULL;
}

/* Free the graph; its executables stay. */
void graph_destroy(Graph *graph) {
    Graph **link = &sim.graphs;
    while (*link != graph)
        link = &(*link)->next;
    *link = graph->next;
    empty(graph);
    free(graph);
}

/* The graph of that handle, also a forgotten one, or NULL. */
static Graph *graph_known(const Graph *graph) {
    Graph *known = sim.graphs;
    while (known != NULL && known != graph)
        known = known->next;
    return known;
}

/* Whether the graph exists. */
bool graph_exists(const Graph *graph) {
    const Graph *known = graph_known(graph);
    return known != NULL && !known->forgotten;
}

/* Whether some stream still captures into the graph. */
static bool under_capture(const Graph *graph) {
    for (const Capture *capture = sim.captures; capture != NULL; capture = capture->next)
        if (capture->graph == graph)
            return true;
    return false;
}

/* Destroy the program's graph: not one that belongs to a capture or to a node. */
Result graph_discard(Graph *graph) {
    if (graph_known(graph) == NULL || graph->embedded)
        return INVALID_VALUE;
    if (under_capture(graph))
        return ILLEGAL_STATE;
    graph_destroy(graph);
    return SUCCESS;
}

/* Empty every graph. The handles stay, so that a library that keeps one never destroys another by it. */
void graphs_forget(void) {
    for (Graph *graph = sim.graphs; graph != NULL; graph = graph->next) {
        if (graph->embedded)
            continue;
        empty(graph);
        graph->forgotten = true;
    }
}

/* Whether all these are nodes of the graph. */
bool graph_has(const Graph *graph, Op *const *nodes, size_t count) {
    for (size_t i = 0; i < count; i++) {
        const Op *op = graph->head;
        while (op != NULL && op != nodes[i])
            op = op->next;
        if (op == NULL)
            return false;
    }
    return true;
}

/* Make a graph without nodes. */
API Result cuGraphCreate(Graph **graph, unsigned flags) {
    Result result = enter("cuGraphCreate");
    if (result != SUCCESS)
        return result;
    if (graph == NULL || flags != 0)
        return leave(INVALID_VALUE);
    *graph = graph_new();
    return leave(SUCCESS);
}

/* Free a graph. */
API Result cuGraphDestroy(Graph *graph) {
    Result result = enter("cuGraphDestroy");
    return result == SUCCESS ? leave(graph_discard(graph)) : result;
}

/* Copy a graph. */
API Result cuGraphClone(Graph **clone, Graph *graph) {
    Result result = enter("cuGraphClone");
    if (result != SUCCESS)
        return result;
    if (clone == NULL || !graph_exists(graph))
        return leave(INVALID_VALUE);
    *clone = graph_clone(graph);
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

/* Add a node that does nothing. Nodes run in the order they were added, which keeps every dependency. */
API Result cuGraphAddEmptyNode(Op **node, Graph *graph, Op *const *dependencies, size_t count) {
    Result result = enter("cuGraphAddEmptyNode");
    if (result != SUCCESS)
        return result;
    if (node == NULL || !graph_exists(graph) || !graph_has(graph, dependencies, count))
        return leave(INVALID_VALUE);
    graph_append(graph, op_new(OP_EMPTY));
    *node = graph->tail;
    return leave(SUCCESS);
}

/* Add a node that embeds a copy of another graph. */
API Result cuGraphAddChildGraphNode(Op **node, Graph *graph, Op *const *dependencies, size_t count,
                                    Graph *child) {
    Result result = enter("cuGraphAddChildGraphNode");
    if (result != SUCCESS)
        return result;
    bool valid = node != NULL && graph != child && graph_exists(graph) && graph_exists(child);
    if (!valid || !graph_has(graph, dependencies, count))
        return leave(INVALID_VALUE);
    graph_append(graph, graph_node(child->head, child->owned));
    *node = graph->tail;
    return leave(SUCCESS);
}

/* The graph that a node embeds, which stays the node's. */
API Result cuGraphChildGraphNodeGetGraph(Op *node, Graph **child) {
    Result result = enter("cuGraphChildGraphNodeGetGraph");
    if (result != SUCCESS)
        return result;
    bool known = false;
    for (const Graph *graph = sim.graphs; graph != NULL && !known; graph = graph->next)
        known = graph_has(graph, &node, 1);
    if (!known || node->kind != OP_CHILD || child == NULL)
        return leave(INVALID_VALUE);
    *child = node->child;
    return leave(SUCCESS);
}
