/* SPDX-License-Identifier: Apache-2.0
 *
 * generation_config.json to sampling defaults: temperature, top_p, top_k, min_p,
 * repetition_penalty. `do_sample` is not looked at, as in vLLM: a request decides by temperature.
 *
 * Thread: any.  Owner: plain values.
 */
#include "core/node/generation.h"

#include "core/base/file.h"

#include <jansson.h>

static hy_status number(const json_t *doc, const char *file, const char *key, double lo, double hi,
                        double *out)
{
    const json_t *v = json_object_get(doc, key);
    if (v == NULL || json_is_null(v))
        return HY_OK;
    if (!json_is_number(v) || json_number_value(v) < lo || json_number_value(v) > hi)
        return hy_fail(HY_E_FORMAT, "%s: %s must be a number from %g to %g", file, key, lo, hi);
    *out = json_number_value(v);
    return HY_OK;
}

static hy_status read_all(const json_t *doc, const char *file, hy_sampling *s)
{
    double temperature = (double)s->temperature, top_p = (double)s->top_p;
    double min_p = (double)s->min_p, top_k = s->top_k;
    double penalty = (double)s->repetition_penalty;
    HY_TRY(number(doc, file, "temperature", 0, 100, &temperature));
    HY_TRY(number(doc, file, "top_p", 1e-6, 1, &top_p));
    HY_TRY(number(doc, file, "min_p", 0, 1, &min_p));
    HY_TRY(number(doc, file, "top_k", -1, INT32_MAX, &top_k));
    if (top_k != (double)(int32_t)top_k)
        return hy_fail(HY_E_FORMAT, "%s: top_k must be a whole number", file);
    HY_TRY(number(doc, file, "repetition_penalty", 1e-6, 100, &penalty));
    s->temperature = (float)temperature;
    s->top_p = (float)top_p;
    s->min_p = (float)min_p;
    s->top_k = (int32_t)top_k;
    s->repetition_penalty = (float)penalty;
    return HY_OK;
}

hy_status hy_generation_read(const char *path, hy_sampling *s)
{
    if (!hy_file_is_dir(path))
        return HY_OK;
    hy_buf name, text;
    hy_buf_init(&name);
    hy_buf_init(&text);
    hy_buf_printf(&name, "%s/generation_config.json", path);
    const char *file = hy_buf_str(&name);
    hy_status st = HY_OK;
    if (hy_file_exists(file))
        st = hy_file_read(file, 1u << 20, &text);
    if (st == HY_OK && text.len > 0) {
        json_error_t err;
        json_t *doc = json_loadb(hy_buf_str(&text), text.len, 0, &err);
        if (!json_is_object(doc))
            st = hy_fail(HY_E_FORMAT, "%s: %s", file, doc != NULL ? "not an object" : err.text);
        else
            st = read_all(doc, file, s);
        json_decref(doc);
    }
    hy_buf_fini(&name);
    hy_buf_fini(&text);
    return st;
}
