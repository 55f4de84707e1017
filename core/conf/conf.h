/* SPDX-License-Identifier: Apache-2.0
 *
 * Configuration: INI files and "section.key=value" overrides, checked against one table of keys
 * that is also the manual. Nothing unknown passes: section, key and value must be in the table,
 * and an error names file and line, section and key, and the nearest valid name.
 *
 * Rules of the file: one `key = value` per line; `#` or `;` begins a comment line; ` ;` (blank,
 * semicolon) begins a comment behind a value; no continuation lines, indentation means nothing. A
 * key twice in one file is an error; a section may be opened again. A later file overrides an
 * earlier one, and hy_conf_set and hy_conf_put (the command line) override any file.
 *
 * A section of the table may be a pattern: `peer.*` stands for [peer.NAME] with any NAME.
 *
 * Thread: one at a time while loading; any number of readers afterwards.
 * Owner: hy_conf owns all strings it returns; key tables live forever (they are constant data).
 */
#ifndef HY_CONF_CONF_H
#define HY_CONF_CONF_H

#include "core/base/buf.h"
#include "core/base/conf_key.h"

typedef struct hy_conf hy_conf;

/* With the built-in table (core/conf/keys.c). NULL when out of memory. */
hy_conf *hy_conf_create(void);
void hy_conf_destroy(hy_conf *c); /* NULL is fine */

/* Add the keys of a backend or provider, before loading. A key that is there already is replaced:
 * its owner knows best. The table must be right: an invalid default is our bug (HY_ASSERT). */
hy_status hy_conf_add_table(hy_conf *c, const hy_conf_key *keys, size_t n);

hy_status hy_conf_load_file(hy_conf *c, const char *path);
/* The same from memory; `name` stands for the file in messages. */
hy_status hy_conf_load_text(hy_conf *c, const char *name, const char *text, size_t len);
/* "engine.threads=2": the key is what stands behind the last dot before the '='. Failures name
 * section and key, not where the text came from. */
hy_status hy_conf_set(hy_conf *c, const char *assignment);
/* The same in parts; `origin` stands for the file in messages ("--port"). */
hy_status hy_conf_put(hy_conf *c, const char *section, const char *key, const char *value,
                      const char *origin);

/* Values. A section or key that is not in the table, or of another type, is our bug (HY_ASSERT).
 * In a pattern's section that nobody wrote, the defaults are returned. */
bool hy_conf_bool(const hy_conf *c, const char *section, const char *key);
int64_t hy_conf_int(const hy_conf *c, const char *section, const char *key);
double hy_conf_float(const hy_conf *c, const char *section, const char *key);
uint64_t hy_conf_size(const hy_conf *c, const char *section, const char *key); /* bytes */
uint64_t hy_conf_ns(const hy_conf *c, const char *section, const char *key);
/* STRING, PATH and ENUM; never NULL. */
const char *hy_conf_str(const hy_conf *c, const char *section, const char *key);
/* ENUM: index into choices. */
int hy_conf_enum(const hy_conf *c, const char *section, const char *key);
/* LIST: the number of items, and item i (borrowed, blanks around it cut). */
size_t hy_conf_list_len(const hy_conf *c, const char *section, const char *key);
const char *hy_conf_list_at(const hy_conf *c, const char *section, const char *key, size_t i);

/* True when a file or an override gave it (even if it gave the default). */
bool hy_conf_is_set(const hy_conf *c, const char *section, const char *key);
/* "conf/all.ini:12", "-o", or "default". */
const char *hy_conf_origin(const hy_conf *c, const char *section, const char *key);
/* Sections written so far that match a pattern: the i-th, in order of appearance; NULL: no more. */
const char *hy_conf_section_at(const hy_conf *c, const char *pattern, size_t i);

/* The i-th key of the table in manual order, NULL: no more. */
const hy_conf_key *hy_conf_key_at(const hy_conf *c, size_t i);
/* The manual: every key with type, default, range and help. */
void hy_conf_manual(const hy_conf *c, hy_buf *out);
/* What is in force: INI text of all values, with their origin as comments. Secrets are masked. */
void hy_conf_dump(const hy_conf *c, hy_buf *out);

#endif
