#!/usr/bin/env python3
"""Writes every.gguf with the gguf package of PyPI: an independent writer to hold the reader against.

Usage: make.py OUT, with `pip install gguf numpy`. The values are repeated in the tests of src/gguf/mod.rs.
"""
import sys

import numpy as np
from gguf import GGMLQuantizationType as T
from gguf import GGUFValueType as V
from gguf import GGUFWriter
from gguf.constants import GGML_QUANT_SIZES

w = GGUFWriter(sys.argv[1], "every")
w.add_key_value("t.u8", 200, V.UINT8)
w.add_key_value("t.i8", -100, V.INT8)
w.add_key_value("t.u16", 60000, V.UINT16)
w.add_key_value("t.i16", -30000, V.INT16)
w.add_key_value("t.u32", 4000000000, V.UINT32)
w.add_key_value("t.i32", -2000000000, V.INT32)
w.add_key_value("t.f32", 1.5e-7, V.FLOAT32)
w.add_key_value("t.bool", True, V.BOOL)
w.add_key_value("t.str", "grüße, 世界", V.STRING)
w.add_key_value("t.u64", 2**63 + 11, V.UINT64)
w.add_key_value("t.i64", -(2**62) - 7, V.INT64)
w.add_key_value("t.f64", -2.5e300, V.FLOAT64)
w.add_array("t.strs", ["a", "", "long enough", "\u2581x"])
w.add_array("t.ints", [1, -2, 3])
w.add_array("t.floats", [0.5, -0.25, 1e10])
w.add_array("t.bools", [True, False, True])
w.add_key_value("t.bytes", bytes([0, 1, 255]), V.ARRAY, V.UINT8)

w.add_tensor("f32", np.arange(12, dtype=np.float32).reshape(3, 4))
w.add_tensor("f16", np.arange(5, dtype=np.float16))
w.add_tensor("i32", np.arange(6, dtype=np.int32).reshape(1, 2, 3))
w.add_tensor("f64", np.arange(3, dtype=np.float64))
for ty in [T.BF16, T.Q4_0, T.Q8_0, T.Q5_1, T.Q4_K, T.Q6_K, T.Q8_K, T.IQ4_NL, T.IQ2_XXS, T.TQ1_0, T.MXFP4]:
    block, size = GGML_QUANT_SIZES[ty]
    rows, row = 2, 256 // block * size
    raw = (np.arange(rows * row, dtype=np.int64) * 7 + ty.value).astype(np.uint8).reshape(rows, row)
    w.add_tensor(ty.name.lower(), raw, raw_dtype=ty)
w.write_header_to_file()
w.write_kv_data_to_file()
w.write_tensors_to_file()
w.close()
