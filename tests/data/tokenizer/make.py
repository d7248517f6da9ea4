#!/usr/bin/env python3
"""Makes the fixtures in this folder. Needs the packages gguf and xllamacpp, and the files named below.

    make.py VOCABS [MODEL.gguf ...]

VOCABS is a folder with llama.cpp's `ggml-vocab-*.gguf` and their `.inp` and `.out` (texts, and ids without BOS, EOS and
special tokens); models are used for their vocabulary. For each vocabulary NAME:

    NAME.inp, NAME.out   as they are; of models there is none
    NAME.extra.out       what llama.cpp gives for each text of extra.inp, parsing special tokens
    NAME.json            what the tokenizer needs for these texts, and no more: see `reduce`
"""

import ctypes
import json
import shutil
import sys
from pathlib import Path

import gguf
import xllamacpp

HERE = Path(__file__).parent
SEPARATOR = "\n__ggml_vocab_test__\n"


class Reference:
    """llama.cpp's tokenizer, through the C interface of the library inside xllamacpp."""

    class Params(ctypes.Structure):
        # llama_model_params, with room to spare; `vocab_only` is the byte behind the pointers.
        _fields_ = [("bytes", ctypes.c_ubyte * 256)]
        VOCAB_ONLY = 72

    def __init__(self):
        self.lib = ctypes.CDLL(next(Path(xllamacpp.__file__).parent.glob("*.so")))
        self.lib.llama_model_default_params.restype = self.Params
        self.lib.llama_model_load_from_file.restype = ctypes.c_void_p
        self.lib.llama_model_load_from_file.argtypes = [ctypes.c_char_p, self.Params]
        self.lib.llama_model_get_vocab.restype = ctypes.c_void_p
        self.lib.llama_model_get_vocab.argtypes = [ctypes.c_void_p]
        self.lib.llama_tokenize.argtypes = [
            ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int32, ctypes.c_void_p, ctypes.c_int32,
            ctypes.c_bool, ctypes.c_bool,
        ]  # fmt: skip

    def load(self, path):
        params = self.lib.llama_model_default_params()
        params.bytes[self.Params.VOCAB_ONLY] = 1
        model = self.lib.llama_model_load_from_file(str(path).encode(), params)
        return self.lib.llama_model_get_vocab(model)

    def tokenize(self, vocab, text, special):
        text = text.encode()
        out = (ctypes.c_int32 * (4 * len(text) + 16))()
        n = self.lib.llama_tokenize(vocab, text, len(text), out, len(out), False, special)
        assert n >= 0
        return list(out[:n])


def byte_alphabet():
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [b for b in range(256) if b not in printable]
    return {**{b: chr(b) for b in printable}, **{b: chr(0x100 + i) for i, b in enumerate(rest)}}


def reduce(fields, texts):
    """The tokens and merges that can occur in `texts`: those whose text is a part of one of them, as the file writes
    it. A merge of two such tokens into a third is kept, so each step of the merging is what it was. Tokens that are left
    out become empty, and their ids stay."""

    def strings(key):
        return [bytes(fields[key].parts[i]).decode() for i in fields[key].data]

    def numbers(key):
        return [fields[key].parts[i][0].item() for i in fields[key].data]

    model = fields["tokenizer.ggml.model"].contents()
    tokens, types = strings("tokenizer.ggml.tokens"), numbers("tokenizer.ggml.token_type")
    raw = "\0".join(texts)
    if model == "gpt2":
        alphabet = byte_alphabet()
        written = "\0".join("".join(alphabet[b] for b in text.encode()) for text in texts)
        single = set(alphabet.values())
    else:
        # Some put a space before every text, and behind every special token.
        parts = list(texts)
        for token, type in zip(tokens, types):
            if type in (2, 3, 4) and token in raw:
                parts += [part for text in texts for part in text.split(token)]
        written = "\0".join(" " + part for part in parts).replace(" ", "▁")
        single = set()
    roles = {
        key: int(field.contents())
        for key, field in fields.items()
        if key.startswith("tokenizer.ggml.") and key.endswith("_token_id")
    }

    def needed(i, text, type):
        if i in roles.values() or type == 6 or text in single:
            return True
        return text in (written if type in (1, 5) else raw)

    kept = [i for i, text in enumerate(tokens) if text and needed(i, text, types[i])]
    out = {"model": model, "n_tokens": len(tokens), "roles": roles}
    for key in ("pre", "add_bos_token", "add_eos_token", "add_space_prefix"):
        if field := fields.get("tokenizer.ggml." + key):
            out[key] = field.contents()
    out["ids"] = [i - before for before, i in zip([0, *kept], kept)]
    out["tokens"] = [tokens[i] for i in kept]
    out["types"] = {i: types[i] for i in kept if types[i] != 1}
    if model == "llama":
        scores = numbers("tokenizer.ggml.scores")
        out["scores"] = [scores[i] for i in kept]
    else:
        known = set(out["tokens"])
        merges = [merge.split(" ", 1) for merge in strings("tokenizer.ggml.merges")]
        out["merges"] = [f"{a} {b}" for a, b in merges if a + b in known and a + b in written]
    return out


def compact(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def main():
    vocabs = sorted(Path(sys.argv[1]).glob("ggml-vocab-*.gguf"))
    extra = (HERE / "extra.inp").read_bytes().decode().split(SEPARATOR)
    reference = Reference()
    for path in [*vocabs, *map(Path, sys.argv[2:])]:
        name = path.stem.removeprefix("ggml-vocab-")
        texts = list(extra)
        if path in vocabs:
            for end in ("inp", "out"):
                shutil.copyfile(f"{path}.{end}", HERE / f"{name}.{end}")
            texts += (HERE / f"{name}.inp").read_bytes().decode().split(SEPARATOR)
        if (prompts := HERE / f"{name}.prompts.json").exists():
            texts += [prompt["text"] for prompt in json.loads(prompts.read_text())]
        vocab = reference.load(path)
        ids = (reference.tokenize(vocab, text, True) for text in extra)
        lines = "".join(" ".join(map(str, line)) + "\n" for line in ids)
        (HERE / f"{name}.extra.out").write_text(lines)
        fixture = reduce(gguf.GGUFReader(path).fields, texts)
        lines = (f"{json.dumps(key)}:{compact(value)}" for key, value in fixture.items())
        (HERE / f"{name}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


main()
