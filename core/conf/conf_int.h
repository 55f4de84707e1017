/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside of the configuration: the built-in keys, parsed values, nearest names.
 *
 * Thread: see conf.h.  Owner: see conf.h.
 */
#ifndef HY_CONF_CONF_INT_H
#define HY_CONF_CONF_INT_H

#include "core/conf/conf.h"

#include <stdint.h>

extern const hy_conf_key hy_conf__keys[];
extern const size_t hy_conf__n_keys;

typedef struct hy_conf__value {
    char *text; /* as written; also STRING, PATH (expanded) and ENUM */
    union {
        bool b;
        int64_t i;
        double f;
        uint64_t u; /* SIZE, DURATION */
        int e;
    };
    char **items; /* LIST: one allocation with its strings */
    size_t n_items;
} hy_conf__value;

/* Check text against the key's type and range. The failure text says only what is wrong with the
 * value; the caller puts the place before it. */
hy_status hy_conf__parse(const hy_conf_key *k, const char *text, hy_conf__value *out);
void hy_conf__value_fini(hy_conf__value *v);
const char *hy_conf__type_name(hy_conf_type t);

/* Nearest of a set of names by edit distance, when it is near enough to be meant. */
typedef struct hy_conf__near {
    const char *want;
    const char *best; /* borrowed; NULL: none is near */
    size_t best_d;
} hy_conf__near;
void hy_conf__near_init(hy_conf__near *n, const char *want);
void hy_conf__near_try(hy_conf__near *n, const char *name);

/* Where a value came from: in a file (line > 0, unit counts the loads), or an override. */
typedef struct hy_conf__where {
    const char *origin; /* file name, "-o", "--port" */
    int line;           /* 0: not a file */
    unsigned unit;
} hy_conf__where;

/* A section of the table under that very name, patterns as they are written. */
bool hy_conf__has_section(const hy_conf *c, const char *section);
/* Is there such a section, by name or by pattern? A failure is a full message. */
hy_status hy_conf__check_section(hy_conf *c, const char *section, const hy_conf__where *w);
hy_status hy_conf__assign(hy_conf *c, const char *section, const char *key, const char *text,
                          const hy_conf__where *w);
unsigned hy_conf__next_unit(hy_conf *c);

/* Any key's value, as written. */
const char *hy_conf__text(const hy_conf *c, const char *section, const char *key);

/* Keys whose values are never printed. */
bool hy_conf__is_secret(const hy_conf_key *k);
bool hy_conf__is_pattern(const char *section);

/* "file:12" or "-o". */
void hy_conf__put_where(hy_buf *b, const hy_conf__where *w);

#endif
