/* SPDX-License-Identifier: Apache-2.0
 *
 * See fiber.h.
 *
 * Thread: the owner's.  Owner: the caller.
 */
#include "backends/simt/host/fiber.h"

#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
#ifdef SIMT_UCONTEXT
#include <ucontext.h>
#endif

#define GUARD 4096

bool simt_stacks_make(simt_stacks *s, int n, size_t bytes)
{
    s->n = n;
    s->bytes = bytes;
    s->base = mmap(NULL, (size_t)n * (bytes + GUARD), PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (s->base == MAP_FAILED) {
        s->base = NULL;
        return false;
    }
    for (int i = 0; i < n; i++) {
        if (mprotect(s->base + (size_t)i * (bytes + GUARD), GUARD, PROT_NONE) != 0)
            return false;
    }
#ifdef SIMT_UCONTEXT
    s->extra = calloc((size_t)n, sizeof(ucontext_t));
    return s->extra != NULL;
#else
    return true;
#endif
}

void simt_stacks_free(simt_stacks *s)
{
    if (s->base != NULL)
        munmap(s->base, (size_t)s->n * (s->bytes + GUARD));
    free(s->extra);
    s->base = NULL;
    s->extra = NULL;
}

char *simt_stack_low(const simt_stacks *s, int i)
{
    return s->base + (size_t)i * (s->bytes + GUARD) + GUARD;
}

#ifdef SIMT_UCONTEXT

void *simt_fiber_make(simt_stacks *s, int i, void (*fn)(void))
{
    ucontext_t *u = (ucontext_t *)s->extra + i;
    getcontext(u);
    u->uc_stack.ss_sp = simt_stack_low(s, i);
    u->uc_stack.ss_size = s->bytes;
    u->uc_link = NULL;
    makecontext(u, fn, 0);
    return u;
}

/* Where a context is saved: on the stack that it leaves. */
void simt_fiber_switch(void **from, void *to)
{
    ucontext_t here;
    *from = &here;
    swapcontext(&here, to);
}

#else

/* Saves what a call must keep, then swaps stacks. The jump in place of a return: the processor's
 * stack of return addresses would predict the wrong one every time. */
__asm__(".text\n"
        ".globl simt_fiber_switch\n"
        ".hidden simt_fiber_switch\n"
        ".type simt_fiber_switch, @function\n"
        "simt_fiber_switch:\n"
        "    pushq %rbp\n"
        "    pushq %rbx\n"
        "    pushq %r12\n"
        "    pushq %r13\n"
        "    pushq %r14\n"
        "    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n"
        "    popq %r14\n"
        "    popq %r13\n"
        "    popq %r12\n"
        "    popq %rbx\n"
        "    popq %rbp\n"
        "    popq %rcx\n"
        "    jmp *%rcx\n"
        ".size simt_fiber_switch, .-simt_fiber_switch\n");

void *simt_fiber_make(simt_stacks *s, int i, void (*fn)(void))
{
    /* Entered by a jump: as after a call, the stack is 8 short of a multiple of 16. */
    uintptr_t *top = (uintptr_t *)(void *)(simt_stack_low(s, i) + s->bytes) - 1;
    top[0] = 0; /* the return address that fn never uses */
    top[-1] = (uintptr_t)fn;
    for (int r = 2; r <= 7; r++)
        top[-r] = 0;
    return top - 7;
}

#endif
