/* SPDX-License-Identifier: Apache-2.0
 *
 * Stacks to switch between: a few instructions on x86-64, ucontext elsewhere (or with
 * SIMT_UCONTEXT). Each stack ends in a page that nobody may touch.
 *
 * Thread: a stack belongs to the thread that runs it.  Owner: simt_stacks_free.
 */
#ifndef HY_SIMT_HOST_FIBER_H
#define HY_SIMT_HOST_FIBER_H

#include <stdbool.h>
#include <stddef.h>

#if !defined(__x86_64__) && !defined(SIMT_UCONTEXT)
#define SIMT_UCONTEXT
#endif

/* clang's spelling of gcc's macros. */
#ifdef __has_feature
#if __has_feature(address_sanitizer) && !defined(__SANITIZE_ADDRESS__)
#define __SANITIZE_ADDRESS__ 1
#endif
#if __has_feature(thread_sanitizer) && !defined(__SANITIZE_THREAD__)
#define __SANITIZE_THREAD__ 1
#endif
#endif

typedef struct simt_stacks {
    char *base; /* of the mapping */
    int n;
    size_t bytes; /* of each, without its guard */
    void *extra;  /* ucontext: one a stack, and one for the caller */
} simt_stacks;

/* False when out of memory. */
bool simt_stacks_make(simt_stacks *s, int n, size_t bytes);
void simt_stacks_free(simt_stacks *s);
/* Lowest usable byte of stack i. */
char *simt_stack_low(const simt_stacks *s, int i);

/* A context that runs fn() on stack i when switched to; fn never returns. */
void *simt_fiber_make(simt_stacks *s, int i, void (*fn)(void));
/* Saves where this is to *from, goes on at `to`. */
void simt_fiber_switch(void **from, void *to);

#endif
