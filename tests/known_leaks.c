/* SPDX-License-Identifier: Apache-2.0
 *
 * Linked into every program of a sanitizer build: leaks of libraries that are not ours, told to
 * LeakSanitizer. One line each, with what is known of it.
 *
 * Thread: any.  Owner: none.
 */
const char *__lsan_default_suppressions(void);

const char *__lsan_default_suppressions(void)
{
    return "leak:libfabric\n"    /* 1.17: provider net leaks 632 bytes per endpoint set */
           "leak:libcublasLt\n"; /* cublasLtCreate without a driver: what it had made until then */
}
