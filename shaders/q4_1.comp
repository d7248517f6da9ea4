#version 450
#extension GL_GOOGLE_include_directive : require
// Q4_1: blocks of 32 in 20 bytes: f16 scale, f16 minimum, 16 bytes of nibbles.
//   x      codes in pairs, as for Q4_0
//   meta   [blocks][2]: scale, sum of the codes
#include "common.glsl"

float row() {
    precise float acc = 0.0;
    for (uint b = 0u; b < push.blocks; ++b) {
        uint j = b * 5u;
        uint scales = word(j);
        int isum = nibbles32(word(j + 1u), word(j + 2u), word(j + 3u), word(j + 4u), b * 4u);
        float x_scale = intBitsToFloat(meta[b * 2u]);
        acc = acc + float(isum) * (f16(scales) * x_scale);
        acc = acc + float(meta[b * 2u + 1u]) * (f16(scales >> 16) * x_scale);
    }
    return acc;
}
