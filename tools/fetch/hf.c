/* SPDX-License-Identifier: Apache-2.0
 *
 * Hugging Face repositories: the list of files from /api/models, each file from /resolve, which
 * redirects to storage and names the object by X-Linked-Etag (its SHA-256 when it is large).
 *
 * A repository with safetensors becomes a folder; one with GGUF files gives one file, chosen by
 * name or by a fixed order of preference.
 *
 * Thread: main.  Owner: path_out is malloc'd.
 * Source: huggingface_hub's documented download scheme.
 */
#include "core/base/file.h"
#include "tools/fetch/fetch.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

typedef struct repo {
    const char *endpoint, *token;
    char id[256]; /* owner/name */
    char revision[128];
    const char *file; /* NULL: choose */
} repo;

/* Only characters that repositories and files use; no "..", no empty parts. */
static bool safe_name(const char *s)
{
    if (*s == '\0' || *s == '/' || strstr(s, "..") != NULL || strstr(s, "//") != NULL)
        return false;
    for (; *s != '\0'; s++)
        if (!(*s >= 'a' && *s <= 'z') && !(*s >= 'A' && *s <= 'Z') && !(*s >= '0' && *s <= '9') &&
            strchr("-_./+ ()=,", *s) == NULL)
            return false;
    return true;
}

static hy_status parse_spec(const char *spec, repo *r)
{
    const char *slash = strchr(spec, '/');
    const char *end = slash != NULL ? strpbrk(slash + 1, "/@") : NULL;
    if (slash == NULL)
        return hy_fail(HY_E_INVAL, "hf:%s: write hf:owner/repo[@revision][/file]", spec);
    size_t n = end != NULL ? (size_t)(end - spec) : strlen(spec);
    if (n >= sizeof(r->id))
        return hy_fail(HY_E_INVAL, "hf:%.40s...: name too long", spec);
    memcpy(r->id, spec, n);
    r->id[n] = '\0';
    snprintf(r->revision, sizeof(r->revision), "main");
    if (end != NULL && *end == '@') {
        const char *rev = end + 1;
        end = strchr(rev, '/');
        size_t len = end != NULL ? (size_t)(end - rev) : strlen(rev);
        if (len == 0 || len >= sizeof(r->revision))
            return hy_fail(HY_E_INVAL, "hf:%s: bad revision", spec);
        memcpy(r->revision, rev, len);
        r->revision[len] = '\0';
    }
    r->file = end != NULL && *end == '/' && end[1] != '\0' ? end + 1 : NULL;
    if (slash[1] == '\0' || slash + 1 == end)
        return hy_fail(HY_E_INVAL, "hf:%s: no repository name behind the owner", spec);
    if (!safe_name(r->id) || !safe_name(r->revision) || (r->file != NULL && !safe_name(r->file)))
        return hy_fail(HY_E_INVAL, "hf:%s: only letters, digits and -_./ may stand here", spec);
    return HY_OK;
}

static hy_status list_files(const repo *r, json_t **out)
{
    hy_buf url, body;
    hy_buf_init(&url);
    hy_buf_init(&body);
    hy_buf_printf(&url, "%s/api/models/%s/revision/%s", r->endpoint, r->id, r->revision);
    hy_status st = hy_get_text(hy_buf_str(&url), r->token, 64u << 20, &body);
    if (st == HY_E_NOTFOUND)
        hy_fail(st, "hf:%s: no such repository or revision '%s' at %s (404)", r->id, r->revision,
                r->endpoint);
    json_error_t err;
    json_t *doc = st == HY_OK ? json_loadb(hy_buf_str(&body), body.len, 0, &err) : NULL;
    json_t *list = json_object_get(doc, "siblings");
    if (st == HY_OK && doc == NULL)
        st = hy_fail(HY_E_FORMAT, "%s: the answer is not JSON: %s", hy_buf_str(&url), err.text);
    else if (st == HY_OK && !json_is_array(list))
        st = hy_fail(HY_E_FORMAT, "%s: the answer has no list of files", hy_buf_str(&url));
    if (st == HY_OK) {
        const char *license =
            json_string_value(json_object_get(json_object_get(doc, "cardData"), "license"));
        if (license != NULL)
            printf("licence: %s (as %s states)\n", license, r->id);
        *out = json_incref(list);
    }
    json_decref(doc);
    hy_buf_fini(&url);
    hy_buf_fini(&body);
    return st;
}

static bool ends_with(const char *s, const char *tail)
{
    size_t n = strlen(s), m = strlen(tail);
    return n >= m && strcasecmp(s + n - m, tail) == 0;
}

static const char *name_at(const json_t *list, size_t i)
{
    const char *s = json_string_value(json_object_get(json_array_get(list, i), "rfilename"));
    return s != NULL && safe_name(s) ? s : NULL;
}

/* Part of a model folder that we read. */
static bool wanted(const char *name)
{
    static const char *const exact[] = {"config.json",
                                        "tokenizer.json",
                                        "tokenizer_config.json",
                                        "generation_config.json",
                                        "special_tokens_map.json",
                                        "chat_template.jinja",
                                        "chat_template.json",
                                        "model.safetensors.index.json",
                                        "preprocessor_config.json",
                                        "processor_config.json"};
    for (size_t i = 0; i < HY_COUNTOF(exact); i++)
        if (strcmp(name, exact[i]) == 0)
            return true;
    return strchr(name, '/') == NULL && ends_with(name, ".safetensors") &&
           strncmp(name, "consolidated", 12) != 0;
}

static hy_status get_one(const repo *r, const char *dir, const char *file, hy_buf *path)
{
    hy_buf url;
    hy_buf_init(&url);
    hy_buf_clear(path);
    hy_buf_printf(path, "%s/%s", dir, file);
    hy_buf_printf(&url, "%s/%s/resolve/%s/", r->endpoint, r->id, r->revision);
    for (const char *p = file; *p != '\0'; p++)
        if (strchr(" ()+=,", *p) != NULL)
            hy_buf_printf(&url, "%%%02X", (unsigned char)*p);
        else
            hy_buf_putc(&url, *p);
    hy_status st = HY_OK;
    if (!hy_file_exists(hy_buf_str(path))) {
        char *slash = strrchr(path->data, '/');
        *slash = '\0';
        st = hy_file_mkdirs(path->data, 0755);
        *slash = '/';
        hy_get g = {.url = hy_buf_str(&url),
                    .path = hy_buf_str(path),
                    .label = file,
                    .bearer = r->token,
                    .retries = 5};
        if (st == HY_OK)
            st = hy_get_file(&g);
    } else {
        fprintf(stderr, "%s: already here\n", file);
    }
    hy_buf_fini(&url);
    return st;
}

/* A whole model: no shard, image projector or calibration data. */
static bool is_model_gguf(const char *s)
{
    return ends_with(s, ".gguf") && strstr(s, "-of-") == NULL && strcasestr(s, "mmproj") == NULL &&
           strcasestr(s, "imatrix") == NULL;
}

/* The GGUF file most people want when none is named. */
static const char *choose_gguf(const json_t *list)
{
    static const char *const order[] = {"q4_k_m", "q4_k_s", "q4_0", "q5_k_m",
                                        "q8_0",   "q6_k",   "f16",  ""};
    for (size_t o = 0; o < HY_COUNTOF(order); o++)
        for (size_t i = 0; i < json_array_size(list); i++) {
            const char *s = name_at(list, i);
            if (s != NULL && is_model_gguf(s) && strcasestr(s, order[o]) != NULL)
                return s;
        }
    return NULL;
}

static hy_status get_folder(const repo *r, const json_t *list, const char *dir, hy_buf *path)
{
    bool config = false;
    size_t weights = 0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *s = name_at(list, i);
        if (s == NULL || !wanted(s))
            continue;
        config |= strcmp(s, "config.json") == 0;
        weights += ends_with(s, ".safetensors");
    }
    if (!config || weights == 0)
        return hy_fail(HY_E_NOTFOUND,
                       "hf:%s has neither safetensors with a config.json nor a GGUF file in one "
                       "piece",
                       r->id);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *s = name_at(list, i);
        if (s != NULL && wanted(s))
            HY_TRY(get_one(r, dir, s, path));
    }
    hy_buf_clear(path);
    hy_buf_puts(path, dir);
    return HY_OK;
}

static hy_status fetch_into(const repo *r, const char *dir, hy_buf *path)
{
    json_t *list = NULL;
    hy_status st = list_files(r, &list); /* prints the licence */
    if (r->file != NULL) {               /* a mirror may have no list */
        json_decref(list);
        return get_one(r, dir, r->file, path);
    }
    HY_TRY(st);
    const char *gguf = choose_gguf(list);
    bool safetensors = false;
    for (size_t i = 0; i < json_array_size(list); i++)
        safetensors |= name_at(list, i) != NULL && ends_with(name_at(list, i), ".safetensors");
    if (gguf != NULL && !safetensors) {
        printf("hf:%s: taking %s\n", r->id, gguf);
        st = get_one(r, dir, gguf, path);
    } else {
        st = get_folder(r, list, dir, path);
    }
    json_decref(list);
    return st;
}

hy_status hy_fetch_hf(const char *endpoint, const char *token, const char *spec, const char *dir,
                      char **path_out)
{
    char base[1024];
    repo r = {.endpoint = base, .token = token};
    size_t n = strlen(endpoint);
    while (n > 0 && endpoint[n - 1] == '/')
        n--;
    if (n >= sizeof(base))
        return hy_fail(HY_E_INVAL, "[fetch] hf_endpoint: too long");
    memcpy(base, endpoint, n);
    base[n] = '\0';
    HY_TRY(parse_spec(spec, &r));
    hy_buf folder, path;
    hy_buf_init(&folder);
    hy_buf_init(&path);
    hy_buf_printf(&folder, "%s/%s", dir, r.id);
    if (strcmp(r.revision, "main") != 0)
        hy_buf_printf(&folder, "@%s", r.revision);
    hy_status st = hy_file_mkdirs(hy_buf_str(&folder), 0755);
    if (st == HY_OK)
        st = fetch_into(&r, hy_buf_str(&folder), &path);
    if (st == HY_OK)
        *path_out = hy_buf_take(&path);
    hy_buf_fini(&folder);
    hy_buf_fini(&path);
    return st;
}
