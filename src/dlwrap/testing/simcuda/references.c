/* User objects: what the program handed over to graphs, and who holds how many references to it. */
#include "sim.h"

#include <limits.h>
#include <stdlib.h>

enum { NO_DESTRUCTOR_SYNC = 1, MOVE = 1 };

/* Whether the user object exists; one without references does not. */
bool user_object_exists(const UserObject *object) {
    for (const UserObject *known = sim.user_objects; known != NULL; known = known->next)
        if (known == object)
            return true;
    return false;
}

/* Drop references; after the last one the destructor is due. */
void user_object_release(UserObject *object, uint64_t count) {
    object->references -= count;
    if (object->references > 0)
        return;
    UserObject **link = &sim.user_objects;
    while (*link != object)
        link = &(*link)->next;
    *link = object->next;
    destructor_due(object);
}

/* Nobody's references yet. */
References *references_new(void) {
    References *references = allocate(sizeof *references);
    references->users = 1;
    return references;
}

/* One more user of the same references. */
References *references_share(References *references) {
    if (references != NULL)
        references->users++;
    return references;
}

/* One user less; the last one drops the references. */
void references_drop(References *references) {
    if (references == NULL || --references->users > 0)
        return;
    Reference *following;
    for (Reference *each = references->first; each != NULL; each = following) {
        following = each->next;
        user_object_release(each->object, each->count);
        free(each);
    }
    free(references);
}

/* Where the list points to the references to this object; its end if there are none. */
static Reference **find(References *references, const UserObject *object) {
    Reference **link = &references->first;
    while (*link != NULL && (*link)->object != object)
        link = &(*link)->next;
    return link;
}

/* Add new references to an object. */
void references_add(References *references, UserObject *object, uint64_t count) {
    Reference **link = find(references, object);
    if (*link == NULL) {
        *link = allocate(sizeof **link);
        (*link)->object = object;
    }
    (*link)->count += count;
    object->references += count;
}

/* Add new references to the objects that the others are to, as many to each. */
void references_add_all(References *references, const References *others) {
    for (const Reference *each = others->first; each != NULL; each = each->next)
        references_add(references, each->object, each->count);
}

/* Drop references to an object, unless there are not so many. */
bool references_remove(References *references, UserObject *object, uint64_t count) {
    Reference **link = find(references, object);
    Reference *found = *link;
    if (found == NULL || found->count < count)
        return false;
    found->count -= count;
    if (found->count == 0) {
        *link = found->next;
        free(found);
    }
    user_object_release(object, count);
    return true;
}

/* Whether a number of references is one that the driver takes. */
static bool is_count(unsigned count) {
    return count > 0 && count <= INT_MAX;
}

/* CUDA leaves undefined what happens then: the object would be destroyed under the graphs that own it. */
static void check_owned(const UserObject *object, unsigned count) {
    if (object->of_program < count)
        misuse("giving up %u references to user object %p, of which the program holds %llu", count,
               (const void *)object, (unsigned long long)object->of_program);
}

/* Drop references of the program's own. */
static void release_own(UserObject *object, uint64_t count) {
    object->of_program -= count;
    user_object_release(object, count);
}

/* Drop every reference of the program's own. */
void user_objects_forget(void) {
    UserObject *following;
    for (UserObject *object = sim.user_objects; object != NULL; object = following) {
        following = object->next;
        if (object->of_program > 0)
            release_own(object, object->of_program);
    }
}

/* Make a user object, whose references are the caller's. */
API Result cuUserObjectCreate(UserObject **object, void *pointer, HostFunction destroy, unsigned count,
                              unsigned flags) {
    Result result = enter("cuUserObjectCreate");
    if (result != SUCCESS)
        return result;
    if (object == NULL || destroy == NULL || !is_count(count) || flags != NO_DESTRUCTOR_SYNC)
        return leave(INVALID_VALUE);
    UserObject *made = allocate(sizeof *made);
    *made = (UserObject){sim.user_objects, pointer, destroy, count, count};
    sim.user_objects = made;
    destructor_new();
    *object = made;
    return leave(SUCCESS);
}

/* Enter a function and check the object and the number of references it is about. */
static Result enter_with(const char *function, const UserObject *object, unsigned count) {
    Result result = enter(function);
    if (result != SUCCESS)
        return result;
    return is_count(count) && user_object_exists(object) ? SUCCESS : leave(INVALID_VALUE);
}

/* Give the caller more references. */
API Result cuUserObjectRetain(UserObject *object, unsigned count) {
    Result result = enter_with("cuUserObjectRetain", object, count);
    if (result != SUCCESS)
        return result;
    object->references += count;
    object->of_program += count;
    return leave(SUCCESS);
}

/* Drop references of the caller's. */
API Result cuUserObjectRelease(UserObject *object, unsigned count) {
    Result result = enter_with("cuUserObjectRelease", object, count);
    if (result != SUCCESS)
        return result;
    check_owned(object, count);
    release_own(object, count);
    return leave(SUCCESS);
}

/* Give a graph references, new ones or, with the flag MOVE, the caller's. */
API Result cuGraphRetainUserObject(Graph *graph, UserObject *object, unsigned count, unsigned flags) {
    Result result = enter_with("cuGraphRetainUserObject", object, count);
    if (result != SUCCESS)
        return result;
    if (!graph_exists(graph) || flags > MOVE)
        return leave(INVALID_VALUE);
    if (flags == MOVE)
        check_owned(object, count);
    references_add(graph->owned, object, count);
    if (flags == MOVE)
        release_own(object, count);
    return leave(SUCCESS);
}

/* Drop references of a graph's. */
API Result cuGraphReleaseUserObject(Graph *graph, UserObject *object, unsigned count) {
    Result result = enter_with("cuGraphReleaseUserObject", object, count);
    if (result != SUCCESS)
        return result;
    bool removed = graph_exists(graph) && references_remove(graph->owned, object, count);
    return leave(removed ? SUCCESS : INVALID_VALUE);
}
