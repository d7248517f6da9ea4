#version 450
#extension GL_GOOGLE_include_directive : require
// Q8_0: blocks of 32 in 34 bytes: f16 scale, 32 signed codes. Two blocks are 17 words.
//   x      codes, a word each
//   meta   [blocks][1]: scale
#include "common.glsl"

float row() {
    precise float acc = 0.0;
    for (uint b = 0u; b < push.blocks; b += 2u) {
        uint j = b / 2u * 17u;
        uint scale = word(j), last = scale;
        int isum = 0;
        for (uint i = 0u; i < 8u; ++i) {
            uint next = word(j + 1u + i);
            isum += bytes4(straddle(last, next), x[b * 8u + i]);
            last = next;
        }
        acc = acc + float(isum) * (f16(scale) * intBitsToFloat(meta[b]));
        if (b + 1u < push.blocks) {
            isum = 0;
            for (uint i = 0u; i < 8u; ++i) {
                isum += bytes4(word(j + 9u + i), x[b * 8u + 8u + i]);
            }
            acc = acc + float(isum) * (f16(last >> 16) * intBitsToFloat(meta[b + 1u]));
        }
    }
    return acc;
}
