/* SPDX-License-Identifier: Apache-2.0
 *
 * halyard tokenize: text to ids (with each token's text), or ids to text.
 *
 * Thread: main.  Owner: none.
 */
#include "core/base/file.h"
#include "core/text/tokenizer.h"
#include "core/text/load.h"
#include "tools/cli/cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* All of stdin. */
static void read_stdin(hy_buf *b)
{
    char part[65536];
    size_t n;
    while ((n = fread(part, 1, sizeof(part), stdin)) > 0)
        hy_buf_add(b, part, n);
}

static int encode(const hy_tok *t, const char *text, size_t len, int flags, bool ids_only)
{
    hy_tok_ids v = {0};
    if (hy_tok_encode(t, text, len, flags, 0, &v) < 0)
        return hy_cli_fail("tokenize");
    hy_buf piece;
    hy_buf_init(&piece);
    for (size_t i = 0; i < v.n; i++) {
        if (ids_only) {
            printf("%s%d", i > 0 ? " " : "", v.ids[i]);
            continue;
        }
        hy_buf_clear(&piece);
        hy_tok_piece(t, v.ids[i], false, &piece);
        printf("%7d  '", v.ids[i]);
        for (size_t j = 0; j < piece.len; j++) {
            unsigned char c = (unsigned char)piece.data[j];
            if (c < 32 || c == 127)
                printf("\\x%02x", c);
            else
                putchar(c);
        }
        printf("'\n");
    }
    if (ids_only)
        putchar('\n');
    hy_buf_fini(&piece);
    hy_tok_ids_fini(&v);
    return HY_EXIT_OK;
}

static int decode(const hy_tok *t, const hy_cli *cli)
{
    hy_tok_ids v = {0};
    hy_buf out;
    hy_buf_init(&out);
    int n = cli->n_args - 1;
    v.ids = malloc(sizeof(int32_t) * (size_t)(n > 0 ? n : 1));
    int rc = HY_EXIT_OK;
    for (int i = 0; v.ids != NULL && i < n; i++) {
        char *end;
        long id = strtol(cli->args[i + 1], &end, 10);
        if (*end != '\0' || id < 0 || id >= hy_tok_n_vocab(t)) {
            hy_fail(HY_E_INVAL, "'%s' is no token id (0 to %d)", cli->args[i + 1],
                    hy_tok_n_vocab(t) - 1);
            rc = hy_cli_fail("tokenize");
            break;
        }
        v.ids[v.n++] = (int32_t)id;
    }
    if (rc == HY_EXIT_OK) {
        if (hy_tok_decode(t, v.ids, v.n, false, &out) < 0)
            rc = hy_cli_fail("tokenize");
        else
            printf("%s\n", hy_buf_str(&out));
    }
    hy_buf_fini(&out);
    hy_tok_ids_fini(&v);
    return rc;
}

int hy_cmd_tokenize(int argc, char **argv)
{
    bool dec = false, ids_only = false, no_special = false, plain = false;
    const hy_cli_opt opts[] = {
        {.name = "--decode",
         .letter = 'd',
         .help = "the arguments are ids: print their text",
         .flag = &dec},
        {.name = "--ids", .letter = 'i', .help = "print ids on one line", .flag = &ids_only},
        {.name = "--no-special", .help = "add no begin or end token", .flag = &no_special},
        {.name = "--plain", .help = "marks such as <|im_end|> are plain text", .flag = &plain},
    };
    hy_conf *conf = hy_cli_conf();
    hy_cli cli = {.usage = "tokenize MODEL [TEXT | --decode ID...]",
                  .about = "Print the tokens of TEXT (or of standard input), or the text of ids.",
                  .opts = opts,
                  .n_opts = HY_COUNTOF(opts),
                  .conf = conf};
    int rc = hy_cli_parse(&cli, argc, argv);
    if (rc < 0 && cli.n_args < 1) {
        fprintf(stderr, "Usage: halyard %s\n", cli.usage);
        rc = HY_EXIT_USAGE;
    }
    char *path = NULL;
    hy_tok *t = NULL;
    if (rc < 0 && (hy_cli_model_path(conf, cli.args[0], &path) < 0 || hy_tok_load(path, &t) < 0))
        rc = hy_cli_fail("tokenize");
    if (rc < 0 && dec) {
        rc = decode(t, &cli);
    } else if (rc < 0) {
        hy_buf text;
        hy_buf_init(&text);
        if (cli.n_args < 2)
            read_stdin(&text);
        for (int i = 1; i < cli.n_args; i++) {
            if (i > 1)
                hy_buf_putc(&text, ' ');
            hy_buf_puts(&text, cli.args[i]);
        }
        int flags = (no_special ? 0 : HY_TOK_ADD_SPECIAL) | (plain ? 0 : HY_TOK_PARSE_SPECIAL);
        rc = encode(t, hy_buf_str(&text), text.len, flags, ids_only);
        hy_buf_fini(&text);
    }
    hy_tok_destroy(t);
    free(path);
    hy_conf_destroy(conf);
    return rc;
}
