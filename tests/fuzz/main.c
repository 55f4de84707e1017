/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs a fuzz target without a fuzzer: over every file of the folders given, and over seeded edits
 * of each (-m N of them a file), so that corpora double as plain tests. Built for every target.
 *
 * Usage: fuzz_X [-m N] PATH...
 *
 * Thread: one.  Owner: itself.
 */
#include "core/base/file.h"

#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint64_t seed = 88172645463325252u;
static unsigned long runs;

static uint32_t next_random(void)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return (uint32_t)(seed >> 32);
}

/* Exactly sized memory, so that the address sanitizer sees a step over the end. */
static void run(const char *data, size_t n)
{
    uint8_t *copy = malloc(n != 0 ? n : 1);
    if (copy == NULL)
        exit(1);
    memcpy(copy, data, n);
    LLVMFuzzerTestOneInput(copy, n);
    free(copy);
    runs++;
}

static void edit(hy_buf *b)
{
    static const uint8_t odd[] = {0x00, 0x01, 0x7f, 0x80, 0xff, '"', '{', '<', ' ', '\n'};
    size_t at = next_random() % b->len, n = 1 + next_random() % 8;
    switch (next_random() % 5) {
    case 0:
        b->data[at] = (char)next_random();
        break;
    case 1:
        b->data[at] = (char)odd[next_random() % sizeof(odd)];
        break;
    case 2: /* cut */
        b->len = at;
        break;
    case 3: /* remove some */
        if (at + n < b->len) {
            memmove(b->data + at, b->data + at + n, b->len - at - n);
            b->len -= n;
        }
        break;
    default: /* copy some over */
        if (at + n < b->len)
            memmove(b->data + next_random() % (b->len - n), b->data + at, n);
        break;
    }
}

static int run_file(const char *path, long n_edits)
{
    hy_buf file, b;
    hy_buf_init(&file);
    hy_buf_init(&b);
    if (hy_file_read(path, 16 << 20, &file) < 0)
        return fprintf(stderr, "%s\n", hy_fail_text()), 1;
    run(hy_buf_str(&file), file.len);
    for (long i = 0; i < n_edits && file.len > 0; i++) {
        hy_buf_clear(&b);
        hy_buf_add(&b, file.data, file.len);
        for (uint32_t k = 1 + next_random() % 4; k > 0 && b.len > 0; k--)
            edit(&b);
        run(hy_buf_str(&b), b.len);
    }
    hy_buf_fini(&file);
    hy_buf_fini(&b);
    return 0;
}

static int run_path(const char *path, long n_edits)
{
    struct dirent *e;
    char name[4096];
    int rc = 0;
    if (!hy_file_is_dir(path))
        return run_file(path, n_edits);
    DIR *d = opendir(path);
    if (d == NULL)
        return 1;
    while ((e = readdir(d)) != NULL) {
        if (e->d_name[0] == '.')
            continue;
        snprintf(name, sizeof(name), "%s/%s", path, e->d_name);
        rc |= run_file(name, n_edits);
    }
    closedir(d);
    return rc;
}

int main(int argc, char **argv)
{
    long n_edits = 0;
    int rc = 0;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "-m") == 0 && i + 1 < argc)
            n_edits = strtol(argv[++i], NULL, 10);
        else
            rc |= run_path(argv[i], n_edits);
    }
    printf("%lu inputs\n", runs);
    return runs == 0 ? 1 : rc;
}
