/* SPDX-License-Identifier: Apache-2.0
 *
 * One key of the configuration, as data: name, type, default, range and help. Backends and
 * providers export tables of these, so that adding one touches no file of core/conf, which checks
 * values against them and prints them as the manual.
 *
 * Thread: constant data.  Owner: tables live forever.
 */
#ifndef HY_BASE_CONF_KEY_H
#define HY_BASE_CONF_KEY_H

typedef enum hy_conf_type {
    HY_CONF_BOOL,     /* true false yes no on off 1 0 */
    HY_CONF_INT,      /* decimal, or 0x hexadecimal */
    HY_CONF_FLOAT,    /* finite */
    HY_CONF_SIZE,     /* bytes: 4096, 64k, 512M, 2G, 1T (powers of 1024; "KiB" and "KB" alike) */
    HY_CONF_DURATION, /* 250ms, 30s, 5m, 1h, 2d; a number alone is seconds; kept as ns */
    HY_CONF_STRING,
    HY_CONF_PATH, /* `~/` at the start is the home folder */
    HY_CONF_ENUM, /* one of `choices` */
    HY_CONF_LIST, /* strings with commas between */
} hy_conf_type;

typedef struct hy_conf_key {
    const char *section; /* "engine", or a pattern "peer.*" */
    const char *key;
    hy_conf_type type;
    const char *def; /* as in a file; "" for an empty string, path or list */
    const char *min; /* as in a file; NULL: no bound (numbers, sizes, durations) */
    const char *max;
    const char *choices; /* ENUM: "exact|fast"; else NULL */
    const char *help;    /* one or two sentences: what it does, what its special values mean */
} hy_conf_key;

#endif
