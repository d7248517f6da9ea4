#!/usr/bin/env python3
"""Reads G2BX files by docs/G2BX.md alone: a second implementation, to hold the document and the first one to each other.

    scripts/read_g2bx.py FILE

prints one JSON object: version, metadata, and of each tensor its name, type code, dimensions, layout, where it lies and the
CRC-32 of its bytes row after row. Every rule that the document has for readers is checked, checksums too; what breaks one is
said, with exit code 1. Nothing but Python's library is needed.
"""

import json
import struct
import sys
import zlib

# Elements and bytes of a block, by type code: GGUF's, then our own.
BLOCKS = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 9: (32, 36), 10: (256, 84),
    11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292), 16: (256, 66), 17: (256, 74),
    18: (256, 98), 19: (256, 50), 20: (32, 18), 21: (256, 110), 22: (256, 82), 23: (256, 136), 24: (1, 1), 25: (1, 2),
    26: (1, 4), 27: (1, 8), 28: (1, 8), 29: (256, 56), 30: (1, 2), 34: (256, 54), 35: (256, 66), 39: (32, 17),
    128: (256, 130), 129: (256, 132), 130: (256, 98),
}
# Scalars of the metadata, by value type.
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9


class Bad(Exception):
    pass


def need(so, what):
    if not so:
        raise Bad(what)


class Cursor:
    """Reads forwards up to an end."""

    def __init__(self, data, at, end):
        self.data, self.at, self.end = data, at, end

    def bytes(self, n):
        need(n <= self.end - self.at, f"{n} bytes at byte {self.at} go beyond byte {self.end}")
        self.at += n
        return self.data[self.at - n : self.at]

    def get(self, form):
        values = struct.unpack("<" + form, self.bytes(struct.calcsize("<" + form)))
        return values if len(values) > 1 else values[0]

    def text(self):
        return self.bytes(self.get("Q"))


def value(cursor):
    kind = cursor.get("I")
    if kind == STRING:
        return cursor.text().decode("utf-8", "replace")
    if kind == ARRAY:
        of, n = cursor.get("IQ")
        if of == STRING:
            return [cursor.text().decode("utf-8", "replace") for _ in range(n)]
        need(of in SCALARS, f"an array of type {of}")
        return list(struct.unpack(f"<{n}{SCALARS[of]}", cursor.bytes(n * struct.calcsize(SCALARS[of]))))
    need(kind in SCALARS, f"a value of type {kind}")
    return cursor.get(SCALARS[kind])


def shown(value):
    """A value, or how many an array has."""
    return {"values": len(value)} if isinstance(value, list) else value


def up(n, to):
    return (n + to - 1) // to * to


def size_of(dims, ty):
    block, size = BLOCKS[ty]
    need(dims[0] % block == 0, f"rows of {dims[0]} are no whole blocks of type {ty}")
    rows = 1
    for dim in dims[1:]:
        rows *= dim
    return rows, dims[0] // block, rows * (dims[0] // block) * size


def row_after_row(data, rows, blocks, size):
    """The bytes of a tensor of layout 1 as layout 0 has them."""
    out = bytearray()
    for row in range(rows):
        group, i = divmod(row, 8)
        r = min(8, rows - 8 * group)
        for b in range(blocks):
            at = (8 * group * blocks + b * r + i) * size
            out += data[at : at + size]
    return bytes(out)


def version_4(data):
    magic, version, flags, header_size, data_start, file_size, n_kv, n_tensors = struct.unpack_from("<4sHHQQQQQ", data)
    need(flags == 0 and not any(data[48:60]), "flags or reserved bytes are not 0")
    need(64 <= header_size <= len(data), f"header_size is {header_size}")
    (checksum,) = struct.unpack_from("<I", data, 60)
    need(zlib.crc32(data[:60] + data[64:header_size]) == checksum, "the checksum of the header is wrong")
    need(data_start == up(header_size, 4096), f"data_start is {data_start}")
    need(file_size == len(data), f"file_size is {file_size}, the file has {len(data)}")
    need(n_kv <= 100000 and n_tensors <= 100000, "too many entries")
    cursor = Cursor(data, 64, header_size)
    meta = {}
    for _ in range(n_kv):
        key = cursor.text().decode()
        need(key not in meta, f"key {key} occurs twice")
        meta[key] = value(cursor)
    tensors, ends = [], [(data_start, header_size)]
    for _ in range(n_tensors):
        name = cursor.text()
        need(1 <= len(name) <= 127 and 0 not in name, f"a name of {len(name)} bytes")
        n_dims = cursor.get("I")
        need(1 <= n_dims <= 4, f"{n_dims} dimensions")
        dims = [cursor.get("Q") for _ in range(n_dims)]
        need(all(1 <= dim < 2**31 for dim in dims), f"dimensions {dims}")
        ty, offset, size, layout, checksum = cursor.get("IQQII")
        need(ty in BLOCKS, f"type {ty}")
        rows, blocks, wanted = size_of(dims, ty)
        need(size == wanted and offset % 64 == 0, f"size {size} at {offset}")
        need(layout == 0 or layout == 1 and BLOCKS[ty][0] > 1, f"layout {layout} of type {ty}")
        start = data_start + offset
        part = data[start : start + size]
        need(len(part) == size and zlib.crc32(part) == checksum, f"{name.decode()} is damaged")
        plain = row_after_row(part, rows, blocks, BLOCKS[ty][1]) if layout else part
        ends.append((start, start + size))
        tensors.append({
            "name": name.decode(), "code": ty, "dims": dims, "layout": ["rows", "rows8"][layout], "bytes": size,
            "offset": start, "crc32": zlib.crc32(plain),
        })
    need(cursor.at == header_size, "the directory does not end the header")
    need(len({t["name"] for t in tensors}) == len(tensors), "a name occurs twice")
    ends.sort()
    for (_, end), (start, _) in zip(ends, ends[1:]):
        need(end <= start, f"tensors overlap at byte {start}")
        need(not any(data[end:start]), f"padding before byte {start} is not 0")
    need(file_size == max([data_start] + [end for _, end in ends[1:]]), "the last tensor does not end the file")
    need(not any(data[header_size:data_start]), "padding after the header is not 0")
    return {"version": version, "metadata": {key: shown(v) for key, v in meta.items()}, "tensors": tensors}


ROLES = {
    0: ("token_embd.weight", "dim", "vocab"), 1: ("output_norm.weight", "dim", None),
    2: ("output.weight", "dim", "vocab"), 3: ("attn_norm.weight", "dim", None), 4: ("attn_q.weight", "dim", "q"),
    5: ("attn_k.weight", "dim", "kv"), 6: ("attn_v.weight", "dim", "kv"), 7: ("attn_output.weight", "q", "dim"),
    8: ("attn_q_norm.weight", "head", None), 9: ("attn_k_norm.weight", "head", None),
    10: ("ffn_norm.weight", "dim", None), 11: ("ffn_gate.weight", "dim", "hidden"), 12: ("ffn_up.weight", "dim", "hidden"),
    13: ("ffn_down.weight", "hidden", "dim"), 14: ("attn_q.bias", "q", None), 15: ("attn_k.bias", "kv", None),
    16: ("attn_v.bias", "kv", None),
}


def versions_1_to_3(data, version):
    if version == 3:
        need(data[-4:] == b"G2BX" and zlib.crc32(data[:-8]) == struct.unpack("<I", data[-8:-4])[0], "wrong checksum")
        data = data[:-8]
    cursor = Cursor(data, 6, len(data))
    architecture, flags = cursor.get("BB")
    need(architecture <= 2 and flags < 8, f"architecture {architecture}, flags {flags}")
    dim, hidden, layers, heads, kv_heads, vocab, context, head_dim, epsilon, base = cursor.get("8i2f")
    rotated = cursor.get("7i")[6] if version > 1 else 0
    shape = {"dim": dim, "hidden": hidden, "vocab": vocab, "head": head_dim, "q": heads * head_dim, "kv": kv_heads * head_dim}
    n_slots = cursor.get("I")
    need(1 <= n_slots <= 2**20, f"{n_slots} slots")
    slots = [cursor.get("BHBIQ") for _ in range(n_slots)]
    start, tensors, last = cursor.at, [], 0
    for role, layer, ty, size, offset in slots:
        need(offset % 4 == 0 and offset + size <= len(data) - start, f"a slot at {offset}")
        last = max(last, offset + size)
        need(role not in range(17, 30), f"role {role}")
        if role not in ROLES:
            continue
        name, row, rows = ROLES[role]
        need((layer == 65535) == (role <= 2) and (role <= 2 or layer < layers), f"role {role} of layer {layer}")
        if version == 3:
            need(ty not in (25, 26, 27), f"type {ty}")
        elif ty in (25, 26, 27):
            ty += 103
        dims = [shape[row]] + ([shape[rows]] if rows else [])
        wanted = size_of(dims, ty)[2]
        need(size >= wanted, f"{name} has {size} bytes")
        at = start + offset
        tensors.append({
            "name": name if role <= 2 else f"blk.{layer}.{name}", "code": ty, "dims": dims, "layout": "rows", "bytes": wanted,
            "offset": at, "crc32": zlib.crc32(data[at : at + wanted]),
        })
    tokens = None
    cursor = Cursor(data, min(start + up(last, 64), len(data)), len(data))
    if len(data) - cursor.at > 20:
        n_tokens, n_merges, bos, eos, unknown = cursor.get("II3i")
        texts = [cursor.bytes(cursor.get("I")) for _ in range(n_tokens + n_merges)]
        tokens = {"tokens": n_tokens, "merges": n_merges, "first": texts[0].decode("utf-8", "replace") if texts else None}
    configuration = {"layers": layers, "context": context, "rotated": rotated, "epsilon": epsilon, "base": base, **shape}
    return {"version": version, "configuration": configuration, "tokenizer": tokens, "tensors": tensors}


def read(data):
    need(data[:4] == b"G2BX" and len(data) >= 64, "no G2BX file")
    (version,) = struct.unpack_from("<H", data, 4)
    need(1 <= version <= 4, f"version {version}")
    return version_4(data) if version == 4 else versions_1_to_3(data, version)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with open(sys.argv[1], "rb") as file:
        data = file.read()
    try:
        print(json.dumps(read(data)))
    except (Bad, UnicodeDecodeError, struct.error) as trouble:
        sys.exit(f"{sys.argv[1]}: {trouble}")


if __name__ == "__main__":
    main()
