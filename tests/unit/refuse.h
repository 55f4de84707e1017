/* SPDX-License-Identifier: Apache-2.0
 *
 * A system call that the system refuses, as a sandbox does.
 *
 * Thread: those that the caller starts have it, too.  Owner: none; it lasts as long as they do.
 */
#ifndef HY_TESTS_REFUSE_H
#define HY_TESTS_REFUSE_H

#include "core/base/status.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/prctl.h>

/* From here on the call (SYS_...) fails with ENOSYS. False: this cannot be had here. */
static inline bool hy_test_refuse(long call)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)call, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog prog = {HY_COUNTOF(code), code};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog) == 0;
}

#endif
