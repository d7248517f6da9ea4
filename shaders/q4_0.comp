#version 450
#extension GL_GOOGLE_include_directive : require
// Q4_0: blocks of 32 in 18 bytes: f16 scale, 16 bytes of nibbles. Two blocks are nine words.
//   x      codes in pairs: word 2g + i holds code 4g + i in its upper half, plus code 4g + i + 2
//   meta   [blocks][2]: scale, sum of the codes
#include "common.glsl"

float row() {
    precise float acc = 0.0;
    for (uint b = 0u; b < push.blocks; b += 2u) {
        uint j = b / 2u * 9u;
        uint w0 = word(j), w1 = word(j + 1u), w2 = word(j + 2u), w3 = word(j + 3u), w4 = word(j + 4u);
        int even = nibbles32(straddle(w0, w1), straddle(w1, w2), straddle(w2, w3), straddle(w3, w4), b * 4u)
            - 8 * meta[b * 2u + 1u];
        acc = acc + float(even) * (f16(w0) * intBitsToFloat(meta[b * 2u]));
        if (b + 1u < push.blocks) {
            int odd = nibbles32(word(j + 5u), word(j + 6u), word(j + 7u), word(j + 8u), b * 4u + 4u)
                - 8 * meta[b * 2u + 3u];
            acc = acc + float(odd) * (f16(w4 >> 16) * intBitsToFloat(meta[b * 2u + 2u]));
        }
    }
    return acc;
}
