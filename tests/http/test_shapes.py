#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Answers must have the shape of vLLM's: the same keys with the same JSON types, for requests that
were sent to vLLM 0.32 (tests/golden/interop/api, SmolLM2-135M-Instruct).

Usage: test_shapes.py --base-url http://127.0.0.1:8000 [--exact]

--exact (with SmolLM2-135M-Instruct): token ids and prompt counts must be equal too.
"""
import argparse
import glob
import json
import os
import sys
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
API = os.path.join(HERE, "..", "golden", "interop", "api")
# keys of vLLM that say nothing here: other features, or empty in every answer
LEFT_OUT = {"ec_transfer_params", "metrics", "routed_experts"}
# what we add, and where we always tell what vLLM tells when configured to
ADDED = {"prompt_tokens_details", "parent", "tool_calls"}
SKIP = {"chat_json_object": "response_format json_object is refused until it exists"}


def post(url, body):
    data = None if body is None else json.dumps(body).encode()
    q = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(q, timeout=120) as r:
        return r.read().decode(), r.headers


def kind(v):
    return "number" if isinstance(v, (int, float)) and not isinstance(v, bool) else type(v).__name__


def compare(theirs, ours, path, out):
    if theirs is None or ours is None:
        return  # null stands for "none" of any type
    if kind(theirs) != kind(ours):
        out.append(f"{path}: {kind(ours)}, vLLM has {kind(theirs)}")
    elif isinstance(theirs, dict):
        if path.endswith(("top_logprobs[]", "prompt_logprobs[]")):
            if theirs and ours:
                compare(next(iter(theirs.values())), next(iter(ours.values())), path + ".*", out)
            return
        for k in theirs:
            if k not in ours and k not in LEFT_OUT:
                out.append(f"{path}.{k} is missing")
        for k in ours:
            if k not in theirs and k not in ADDED:
                out.append(f"{path}.{k} is not in vLLM's answer")
        for k in theirs.keys() & ours.keys():
            if k != "permission":
                compare(theirs[k], ours[k], f"{path}.{k}", out)
    elif isinstance(theirs, list) and theirs and ours:
        compare(theirs[-1], ours[-1], path + "[]", out)


def events(text):
    parts = [p for p in text.split("\n\n") if p]
    assert parts[-1] == "data: [DONE]", parts[-1]
    return [json.loads(p[len("data: "):]) for p in parts[:-1]]


def stream_kinds(evs):
    """First event, one in the middle, and those with finish_reason and usage."""
    last = [e for e in evs if e["choices"] and e["choices"][0].get("finish_reason")][-1]
    return [evs[0], last] + ([evs[-1]] if not evs[-1]["choices"] else [])


def exact(name, theirs, ours, out):
    if name.startswith("tokenize") and theirs["tokens"] != ours["tokens"]:
        out.append(f"tokens {ours['tokens']}")
    if name == "detokenize" and theirs != ours:
        out.append(f"{ours}")
    if "usage" in theirs and theirs["usage"]["prompt_tokens"] != ours["usage"]["prompt_tokens"]:
        out.append(f"prompt_tokens {ours['usage']['prompt_tokens']}")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--base-url", required=True)
    p.add_argument("--exact", action="store_true")
    args = p.parse_args()
    model = json.loads(post(args.base_url + "/v1/models", None)[0])["data"][0]["id"]
    failed = 0
    for f in sorted(glob.glob(os.path.join(API, "*.json"))):
        name = os.path.basename(f)[:-5]
        if name in SKIP:
            print(f"skip {name}: {SKIP[name]}")
            continue
        case = json.load(open(f))
        body = case["request"]["body"]
        if body:
            body["model"] = model
        text, headers = post(args.base_url + case["request"]["path"], body)
        out = []
        if "json" in case["response"]:
            theirs, ours = case["response"]["json"], json.loads(text)
            compare(theirs, ours, "", out)
            if args.exact:
                exact(name, theirs, ours, out)
        elif "data: " in case["response"]["text"]:
            for a, b in zip(stream_kinds(events(case["response"]["text"])),
                            stream_kinds(events(text))):
                compare(a, b, "event", out)
        elif text != case["response"]["text"]:
            out.append("another text")
        theirs = {k.lower(): v for k, v in case["response"]["headers"]}
        if headers.get("Content-Type") != theirs.get("content-type"):
            out.append(f"Content-Type {headers.get('Content-Type')}")
        print(f"{'FAIL' if out else 'ok  '} {name} {'; '.join(out)}")
        failed += bool(out)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
