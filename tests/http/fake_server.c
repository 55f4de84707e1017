/* SPDX-License-Identifier: Apache-2.0
 *
 * The real HTTP server over the scripted engine of tests/unit/http_kit.c, for clients in other
 * languages. Prints two ports: one answers "The capital of France is Paris.", one calls a tool.
 * Ends when its standard input ends.
 *
 * Usage: http_fake_server
 *
 * Thread: the kit's.  Owner: itself.
 */
#include "tests/unit/http_kit.h"

#include <unistd.h>

static void start(kit *k, const char *text)
{
    kit_init(k);
    kit_start(k);
    fake_script(k->engine, k->tok, text, true);
}

int main(void)
{
    kit plain, tools;
    char c;
    start(&plain, "The capital of France is Paris.");
    start(&tools, "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", "
                  "\"days\": 3}}\n</tool_call>");
    printf("%d %d\n", plain.port, tools.port);
    fflush(stdout);
    while (read(0, &c, 1) > 0)
        ;
    kit_stop(&plain);
    kit_stop(&tools);
    return 0;
}
