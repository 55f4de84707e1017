#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
#
# Makes the fixtures of this folder: small BPE vocabularies laid out as published folders are, and
# the ids and texts that Hugging Face's tokenizers gives for a list of strings.
#
#   pip install tokenizers==0.23.3 && ./make.py ../text/harbour.txt ../smollm2/tokenizer.jsonl
import json, os, random, sys, unicodedata
from tokenizers import Tokenizer, models, trainers, pre_tokenizers, normalizers, Regex

HERE = os.path.dirname(os.path.abspath(__file__))
text = open(sys.argv[1]).read()
strings = [json.loads(l).get("text") for l in open(sys.argv[2])]
strings = list(dict.fromkeys(s for s in strings if s is not None and len(s) < 400))

LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN = LLAMA3.replace("{1,3}", "")
O200K = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
BYTES = ["<0x%02X>" % i for i in range(256)]
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}


def split(p):
    return {"type": "Split", "pattern": {"Regex": p}, "behavior": "Isolated", "invert": False}


def template(t):
    return {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": t, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {t: {"id": t, "ids": [0], "tokens": [t]}}}


def train(marks, byte_level):
    t = Tokenizer(models.BPE(byte_fallback=not byte_level, unk_token=None if byte_level else "<unk>",
                             fuse_unk=not byte_level))
    if byte_level:
        t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tr = trainers.BpeTrainer(vocab_size=700, special_tokens=marks, show_progress=False,
                                 initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    else:
        t.normalizer = normalizers.Replace(" ", "▁")
        t.pre_tokenizer = pre_tokenizers.Split(Regex("▁?[^▁]+|▁+"), "isolated")
        tr = trainers.BpeTrainer(vocab_size=800, special_tokens=marks + BYTES, show_progress=False)
    t.train_from_iterator([text, text.upper()], tr)
    j = json.loads(t.to_str())
    j["added_tokens"] = [a for a in j["added_tokens"] if a["content"] not in BYTES]
    return j


def styles():
    spm = {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
        {"type": "Fuse"}]}
    strip = {"type": "Sequence", "decoders": spm["decoders"] + [
        {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
    prepend = {"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "▁"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}
    marks = ["<s>", "</s>", "<unk>", "<|im_start|>", "<|im_end|>"]

    j = train(marks, False)
    j.update(normalizer=prepend, pre_tokenizer=None, decoder=strip, post_processor=template("<s>"))
    j["model"]["merges"] = [" ".join(m) for m in j["model"]["merges"]]
    yield "llama", j

    j = train(marks, False)
    j.update(normalizer=None, decoder=strip, post_processor=template("<s>"),
             pre_tokenizer={"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False})
    yield "llama-metaspace", j

    j = train(marks, False)
    for a in j["added_tokens"][3:]:
        a["rstrip"] = True
    j.update(normalizer=prepend, pre_tokenizer=None, decoder=strip, post_processor=None)
    yield "phi3", j

    j = train(["<bos>", "<eos>", "<unk>", "<start_of_turn>", "<end_of_turn>"], False)
    for s in ("\n\n", "\n\n\n", "▁▁", "▁▁▁", "▁▁▁▁", "<table>"):
        vocab = j["model"]["vocab"]  # published files have every mark in the vocabulary, too
        vocab.setdefault(s, len(vocab))
        j["added_tokens"].append({"id": vocab[s], "content": s, "single_word": False, "lstrip": False,
                                  "rstrip": False, "normalized": False, "special": False})
    j.update(normalizer={"type": "Replace", "pattern": {"String": " "}, "content": "▁"}, decoder=spm,
             pre_tokenizer={"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False},
             post_processor=template("<bos>"))
    yield "gemma", j

    j = train(marks, True)
    j.update(normalizer={"type": "NFC"}, decoder=BYTE_LEVEL, post_processor=BYTE_LEVEL,
             pre_tokenizer={"type": "Sequence", "pretokenizers": [split(QWEN), BYTE_LEVEL]})
    n = len(j["model"]["vocab"])
    j["added_tokens"].append({"id": n, "content": "<tool_call>", "single_word": False, "lstrip": False,
                              "rstrip": False, "normalized": False, "special": False})
    yield "qwen", j

    j = train(marks, True)
    j["model"]["ignore_merges"] = True
    j.update(normalizer=None, decoder=BYTE_LEVEL,
             pre_tokenizer={"type": "Sequence", "pretokenizers": [split(LLAMA3), BYTE_LEVEL]},
             post_processor={"type": "Sequence", "processors": [BYTE_LEVEL, template("<s>")]})
    yield "llama3", j

    j = train(marks, True)
    j.update(normalizer=None, decoder=BYTE_LEVEL, post_processor=None,
             pre_tokenizer={"type": "Sequence", "pretokenizers": [split(O200K), BYTE_LEVEL]})
    yield "phi4", j

    j = train(marks, True)
    for a, k in zip(j["added_tokens"], ("single_word", "lstrip", "rstrip", "normalized", "lstrip")):
        a[k] = True
    j.update(normalizer={"type": "Sequence", "normalizers": [
                {"type": "NFKC"}, {"type": "Lowercase"},
                {"type": "Replace", "pattern": {"Regex": " {3,}"}, "content": "_"},
                {"type": "Strip", "strip_left": False, "strip_right": True}]},
             pre_tokenizer={"type": "Sequence", "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": "[aeiou]"}, "behavior": "Contiguous", "invert": False},
                {"type": "Split", "pattern": {"Regex": "[\\s.]+"}, "behavior": "MergedWithNext", "invert": False},
                {"type": "Punctuation", "behavior": "Isolated"},
                {"type": "Digits", "individual_digits": False},
                dict(BYTE_LEVEL, add_prefix_space=True, use_regex=True)]},
             decoder=BYTE_LEVEL, post_processor=None)
    yield "odd", j


def cases():
    rnd = random.Random(5)
    pool = "abcDEF ghi  \t\n\r\n'sS'tTreVE123456²³½٣४.,!?-—…«»éÉßİıſǅ가힣漢字かな \u00a0\u2003\u3000\u180e\u200b\u200d\u0301\u0308👩‍👧😀🏽\ufeff\ufffd▁Ġ<"
    marks = ["<s>", "</s>", "<unk>", "<|im_start|>", "<|im_end|>", "<tool_call>", "<bos>", "<end_of_turn>",
             "<table>", "<0x41>", "    ", "\n\n\n"]
    out = list(strings)
    for _ in range(120):
        s = ""
        for _ in range(rnd.randint(1, 24)):
            r = rnd.random()
            if r < 0.15:
                s += rnd.choice(marks)
            elif r < 0.9:
                s += rnd.choice(pool)
            else:
                c = rnd.randint(0x20, 0x2ffff)
                s += chr(c) if unicodedata.category(chr(c)) not in ("Cn", "Cs", "Co") else "A"
        out.append(s)
    return out


for name, j in styles():
    os.makedirs(f"{HERE}/{name}", exist_ok=True)
    with open(f"{HERE}/{name}/tokenizer.json", "w") as f:
        json.dump(j, f, ensure_ascii=False, separators=(",", ":"))
    t = Tokenizer.from_str(json.dumps(j))
    with open(f"{HERE}/{name}/cases.jsonl", "w") as f:
        for s in cases():
            e = {"text": s}
            t.encode_special_tokens = True
            e["plain"] = t.encode(s, add_special_tokens=False).ids
            t.encode_special_tokens = False
            e["marked"] = t.encode(s, add_special_tokens=True).ids
            if name != "odd":
                e["back"] = t.decode(e["marked"], skip_special_tokens=False)
                e["back_skip"] = t.decode(e["marked"], skip_special_tokens=True)
            f.write(json.dumps(e, ensure_ascii=False, separators=(",", ":")) + "\n")
