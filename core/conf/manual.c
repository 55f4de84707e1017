/* SPDX-License-Identifier: Apache-2.0
 *
 * The manual (every key, as a commented INI file) and the dump of what is in force.
 *
 * Thread: see conf.h.  Owner: the caller's buffer.
 */
#include "core/conf/conf_int.h"

#include <string.h>

enum { WIDTH = 92 };

static void put_wrapped(hy_buf *b, const char *text)
{
    while (*text != '\0') {
        size_t n = strlen(text);
        if (n > WIDTH) {
            n = WIDTH;
            while (n > 0 && text[n] != ' ')
                n--;
            if (n == 0)
                n = strcspn(text, " ");
        }
        hy_buf_puts(b, "# ");
        hy_buf_add(b, text, n);
        hy_buf_putc(b, '\n');
        text += n;
        while (*text == ' ')
            text++;
    }
}

static void put_choices(hy_buf *b, const char *choices)
{
    for (; *choices != '\0'; choices++) {
        if (*choices == '|')
            hy_buf_puts(b, ", ");
        else
            hy_buf_putc(b, *choices);
    }
}

static void put_type(hy_buf *out, const hy_conf_key *k)
{
    hy_buf b;
    hy_buf_init(&b);
    hy_buf_printf(&b, "(%s", hy_conf__type_name(k->type));
    if (k->choices != NULL) {
        hy_buf_puts(&b, ": ");
        put_choices(&b, k->choices);
    }
    if (k->min != NULL && k->max != NULL)
        hy_buf_printf(&b, ", %s to %s", k->min, k->max);
    else if (k->min != NULL)
        hy_buf_printf(&b, ", at least %s", k->min);
    else if (k->max != NULL)
        hy_buf_printf(&b, ", at most %s", k->max);
    hy_buf_printf(&b, "; default%s%s)", k->def[0] != '\0' ? " " : ": empty", k->def);
    put_wrapped(out, hy_buf_str(&b));
    hy_buf_fini(&b);
}

/* [peer.*] is written [peer.NAME]. */
static void put_section(hy_buf *b, const char *section)
{
    size_t n = strlen(section);
    if (hy_conf__is_pattern(section))
        hy_buf_printf(b, "[%.*sNAME]\n", (int)n - 1, section);
    else
        hy_buf_printf(b, "[%s]\n", section);
}

void hy_conf_manual(const hy_conf *c, hy_buf *out)
{
    const char *section = "";
    const hy_conf_key *k;
    for (size_t i = 0; (k = hy_conf_key_at(c, i)) != NULL; i++) {
        if (i != 0)
            hy_buf_putc(out, '\n');
        if (strcmp(k->section, section) != 0) {
            put_section(out, k->section);
            section = k->section;
        }
        put_wrapped(out, k->help);
        put_type(out, k);
        hy_buf_printf(out, ";%s =%s%s\n", k->key, k->def[0] != '\0' ? " " : "", k->def);
    }
}

bool hy_conf__is_secret(const hy_conf_key *k)
{
    static const char *const names[] = {"api_key", "secret", "password", "token"};
    for (size_t i = 0; i < HY_COUNTOF(names); i++)
        if (strcmp(k->key, names[i]) == 0)
            return true;
    return false;
}

static void dump_section(const hy_conf *c, const hy_conf_key *k, const char *section, hy_buf *out)
{
    const char *text = hy_conf__text(c, section, k->key);
    if (hy_conf__is_secret(k) && text[0] != '\0')
        text = "********";
    hy_buf_printf(out, "%s =%s%s ; %s\n", k->key, text[0] != '\0' ? " " : "", text,
                  hy_conf_origin(c, section, k->key));
}

/* All keys of the table's section, for one section of the file. */
static void dump_keys(const hy_conf *c, const char *table_section, const char *section, hy_buf *out)
{
    const hy_conf_key *k;
    hy_buf_printf(out, "%s[%s]\n", out->len != 0 ? "\n" : "", section);
    for (size_t i = 0; (k = hy_conf_key_at(c, i)) != NULL; i++)
        if (strcmp(k->section, table_section) == 0)
            dump_section(c, k, section, out);
}

void hy_conf_dump(const hy_conf *c, hy_buf *out)
{
    const char *section = "", *name;
    const hy_conf_key *k;
    for (size_t i = 0; (k = hy_conf_key_at(c, i)) != NULL; i++) {
        if (strcmp(k->section, section) == 0)
            continue;
        section = k->section;
        if (!hy_conf__is_pattern(section))
            dump_keys(c, section, section, out);
        else
            for (size_t j = 0; (name = hy_conf_section_at(c, section, j)) != NULL; j++)
                dump_keys(c, section, name, out);
    }
}
