#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The official `openai` client, unchanged, against a server.

Usage: test_openai.py --base-url http://127.0.0.1:8000 [--tools-url URL] [--model NAME] [--key KEY]
                      [--expect TEXT]
       test_openai.py --fake PATH/http_fake_server

With a real model only forms and rules are checked (plus that TEXT stands in a greedy answer);
with --fake also the exact texts. Exit status 77: the client library is not installed.
"""
import argparse
import json
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

try:
    import openai
except ImportError:
    print("skipped: python package `openai` is not installed (tests/http/openai makes a venv)")
    sys.exit(77)

ASK = [{"role": "user", "content": "What is the capital of France?"}]
TOOLS = [{"type": "function", "function": {
    "name": "get_weather", "description": "Weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"},
                                                    "days": {"type": "integer"}},
                   "required": ["city"]}}}]


class Suite:
    def __init__(self, args):
        self.args = args
        self.client = openai.OpenAI(base_url=args.base_url + "/v1", api_key=args.key,
                                    max_retries=0, timeout=120)
        self.tools_client = openai.OpenAI(base_url=(args.tools_url or args.base_url) + "/v1",
                                          api_key=args.key, max_retries=0, timeout=120)
        self.model = args.model or self.client.models.list().data[0].id

    def chat(self, **kw):
        kw = {"model": self.model, "messages": ASK, "max_tokens": 24, "temperature": 0, **kw}
        return self.client.chat.completions.create(**kw)

    def complete(self, **kw):
        kw = {"model": self.model, "prompt": "The capital of France is", "max_tokens": 8,
              "temperature": 0, **kw}
        return self.client.completions.create(**kw)

    def raises(self, kind, status, call):
        try:
            call()
        except kind as e:
            assert e.status_code == status, (e.status_code, status)
            assert e.body and e.body.get("message"), e.body
            return e
        raise AssertionError(f"expected {kind.__name__}")

    # ---- tests, in order of their names ----

    def test_models(self):
        m = self.client.models.list().data
        assert any(x.id == self.model for x in m)
        assert self.client.models.retrieve(self.model).id == self.model
        self.raises(openai.NotFoundError, 404, lambda: self.client.models.retrieve("no-such"))

    def test_chat(self):
        r = self.chat()
        c = r.choices[0]
        assert r.object == "chat.completion" and r.id.startswith("chatcmpl-")
        assert c.message.role == "assistant" and c.message.content
        assert c.finish_reason in ("stop", "length")
        u = r.usage
        assert u.total_tokens == u.prompt_tokens + u.completion_tokens
        assert 0 < u.completion_tokens <= 24
        if self.args.expect:
            assert self.args.expect in c.message.content, c.message.content

    def test_chat_stream(self):
        whole = self.chat().choices[0].message.content
        text, roles, finish, usage = "", [], [], None
        for ev in self.chat(stream=True, stream_options={"include_usage": True}):
            assert ev.object == "chat.completion.chunk"
            if ev.usage:
                usage = ev.usage
            for c in ev.choices:
                if c.delta.role:
                    roles.append(c.delta.role)
                text += c.delta.content or ""
                if c.finish_reason:
                    finish.append(c.finish_reason)
        assert roles == ["assistant"] and len(finish) == 1, (roles, finish)
        assert text == whole, (text, whole)
        assert usage and usage.completion_tokens > 0

    def test_chat_stream_helper(self):
        try:
            with self.client.chat.completions.stream(model=self.model, messages=ASK,
                                                     max_tokens=64, temperature=0) as s:
                for _ in s:
                    pass
                assert s.get_final_completion().choices[0].message.content
        except openai.LengthFinishReasonError as e:  # the helper's rule, not ours
            assert e.completion.choices[0].message.content

    def test_chat_logprobs(self):
        r = self.chat(logprobs=True, top_logprobs=3, max_tokens=4)
        items = r.choices[0].logprobs.content
        assert 0 < len(items) <= 4
        for t in items:
            assert t.logprob <= 0 and len(t.top_logprobs) == 3
            assert bytes(t.bytes).decode("utf-8", "replace") == t.token
            best = [x.logprob for x in t.top_logprobs]
            assert best == sorted(best, reverse=True)

    def test_chat_choices(self):
        r = self.chat(n=3, temperature=0.9, seed=5, max_tokens=6)
        assert [c.index for c in r.choices] == [0, 1, 2]
        again = self.chat(n=3, temperature=0.9, seed=5, max_tokens=6)
        assert [c.message.content for c in r.choices] == [c.message.content for c in again.choices]

    def test_chat_parts_and_limits(self):
        r = self.chat(messages=[{"role": "system", "content": "Be short."},
                                {"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
                      max_tokens=None, max_completion_tokens=3)
        assert r.usage.completion_tokens <= 3

    def test_completion(self):
        r = self.complete()
        assert r.object == "text_completion" and r.id.startswith("cmpl-")
        assert r.choices[0].text
        streamed = "".join(c.text for ev in self.complete(stream=True) for c in ev.choices)
        assert streamed == r.choices[0].text

    def test_completion_prompts(self):
        r = self.complete(prompt=["One", "Two"], n=2, temperature=0.8, max_tokens=3)
        assert [c.index for c in r.choices] == [0, 1, 2, 3]
        r = self.complete(prompt=[5, 6, 7], max_tokens=2, extra_body={"return_token_ids": True})
        assert r.choices[0].prompt_token_ids == [5, 6, 7]
        assert 0 < len(r.choices[0].token_ids) <= 2
        assert r.usage.prompt_tokens == 3

    def test_completion_logprobs_and_echo(self):
        r = self.complete(logprobs=2, echo=True, max_tokens=1)
        lp = r.choices[0].logprobs
        assert len(lp.tokens) == r.usage.prompt_tokens + 1
        assert lp.token_logprobs[0] is None and lp.token_logprobs[1] <= 0
        assert r.choices[0].text.startswith("The capital of France is")

    def test_stop(self):
        text = self.complete(max_tokens=24).choices[0].text
        if len(text) > 6:
            stop = text[3:6]
            r = self.complete(max_tokens=24, stop=[stop])
            assert r.choices[0].text == text[:text.index(stop)], r.choices[0].text
            assert r.choices[0].finish_reason == "stop"

    def test_tools(self):
        r = self.tools_client.chat.completions.create(
            model=self.model, messages=ASK, tools=TOOLS, max_tokens=200, temperature=0)
        c = r.choices[0]
        if self.args.fake:
            assert c.finish_reason == "tool_calls"
        for t in c.message.tool_calls or []:
            assert t.type == "function" and t.id and t.function.name
            json.loads(t.function.arguments)
        args, names = {}, {}
        for ev in self.tools_client.chat.completions.create(
                model=self.model, messages=ASK, tools=TOOLS, max_tokens=200, temperature=0,
                stream=True):
            for x in ev.choices[0].delta.tool_calls or [] if ev.choices else []:
                names[x.index] = names.get(x.index) or x.function.name
                args[x.index] = args.get(x.index, "") + (x.function.arguments or "")
        assert len(args) == len(c.message.tool_calls or [])
        for i, t in enumerate(c.message.tool_calls or []):
            assert names[i] == t.function.name
            assert json.loads(args[i]) == json.loads(t.function.arguments)
        # what the client sends back for the next turn
        if c.message.tool_calls:
            self.chat(messages=ASK + [c.message.model_dump(exclude_none=True),
                                      {"role": "tool", "tool_call_id": c.message.tool_calls[0].id,
                                       "content": "sunny"}], tools=TOOLS)

    def test_errors(self):
        bad = openai.BadRequestError
        e = self.raises(bad, 400, lambda: self.chat(temperature=-1))
        assert e.body["param"] == "temperature", e.body
        self.raises(bad, 400, lambda: self.chat(messages=[]))
        self.raises(bad, 400, lambda: self.chat(response_format={"type": "json_object"}))
        self.raises(bad, 400, lambda: self.chat(tools=TOOLS, tool_choice="required"))
        self.raises(bad, 400, lambda: self.complete(prompt="a " * 300000))
        self.raises(bad, 400, lambda: self.complete(stop=[str(i) for i in range(10000)]))
        self.raises(openai.NotFoundError, 404, lambda: self.chat(model="no-such-model"))

    def test_hang_up(self):
        s = self.chat(stream=True, max_tokens=200)
        next(iter(s))
        s.close()
        assert self.chat(max_tokens=2).choices

    def test_parallel(self):
        want = self.chat().choices[0].message.content
        got, threads = [], []
        for _ in range(8):
            t = threading.Thread(target=lambda: got.append(self.chat().choices[0].message.content))
            t.start()
            threads.append(t)
        for t in threads:
            t.join()
        assert got == [want] * 8, got

    def test_raw_endpoints(self):
        def call(path, body=None):
            data = None if body is None else json.dumps(body).encode()
            q = urllib.request.Request(self.args.base_url + path, data, {
                "Content-Type": "application/json", "Authorization": "Bearer " + self.args.key})
            with urllib.request.urlopen(q, timeout=60) as r:
                return r.status, r.read()
        assert call("/health")[0] == 200
        assert b"http_requests_total" in call("/metrics")[1]
        ids = json.loads(call("/tokenize", {"prompt": "Hello world"})[1])
        back = json.loads(call("/detokenize", {"tokens": ids["tokens"]})[1])
        assert back["prompt"].endswith("Hello world") and ids["count"] == len(ids["tokens"])
        chat = json.loads(call("/tokenize", {"messages": ASK})[1])
        assert chat["count"] == self.chat(max_tokens=1).usage.prompt_tokens


def run(args):
    suite, failed = Suite(args), 0
    for name in sorted(n for n in dir(Suite) if n.startswith("test_")):
        t0 = time.time()
        try:
            getattr(suite, name)()
            print(f"ok   {name}  {time.time() - t0:.2f} s")
        except Exception as e:  # a test must not hide the others
            failed += 1
            print(f"FAIL {name}: {type(e).__name__}: {e}")
    print(f"openai {openai.__version__}: {failed} failed")
    return 1 if failed else 0


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--base-url")
    p.add_argument("--tools-url")
    p.add_argument("--model")
    p.add_argument("--key", default="none")
    p.add_argument("--expect")
    p.add_argument("--fake", help="start this http_fake_server and test it")
    args = p.parse_args()
    if not args.fake:
        return run(args)
    with subprocess.Popen([args.fake], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          text=True) as server:
        try:
            ports = server.stdout.readline().split()
            args.base_url = f"http://127.0.0.1:{ports[0]}"
            args.tools_url = f"http://127.0.0.1:{ports[1]}"
            args.expect = "Paris"
            status = run(args)
        finally:
            server.stdin.close()
        return status or server.wait(20)


if __name__ == "__main__":
    sys.exit(main())
