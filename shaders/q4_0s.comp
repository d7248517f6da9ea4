#version 450
#extension GL_GOOGLE_include_directive : require
// Q4_0S: blocks of 256 in 130 bytes: f16 scale, then 8 groups of 32 as in Q4_0. Two blocks are 65 words.
//   x      codes in pairs, as for Q4_0
//   meta   [blocks][2]: scale, sum of the codes
#include "common.glsl"

float row() {
    precise float acc = 0.0;
    for (uint b = 0u; b < push.blocks; b += 2u) {
        uint j = b / 2u * 65u;
        uint scale = word(j), last = scale;
        int isum = -8 * meta[b * 2u + 1u];
        for (uint g = 0u; g < 8u; ++g) {
            uint k = j + 1u + g * 4u;
            uint w0 = word(k), w1 = word(k + 1u), w2 = word(k + 2u), w3 = word(k + 3u);
            isum += nibbles32(straddle(last, w0), straddle(w0, w1), straddle(w1, w2), straddle(w2, w3), b * 32u + g * 4u);
            last = w3;
        }
        acc = acc + float(isum) * (f16(scale) * intBitsToFloat(meta[b * 2u]));
        if (b + 1u < push.blocks) {
            isum = -8 * meta[b * 2u + 3u];
            for (uint g = 0u; g < 8u; ++g) {
                uint k = j + 33u + g * 4u;
                isum += nibbles32(word(k), word(k + 1u), word(k + 2u), word(k + 3u), b * 32u + 32u + g * 4u);
            }
            acc = acc + float(isum) * (f16(last >> 16) * intBitsToFloat(meta[b * 2u + 2u]));
        }
    }
    return acc;
}
