#version 450
#extension GL_GOOGLE_include_directive : require
// Q4_K: blocks of 256 in 144 bytes: f16 scale, f16 scale of the minimums, 8 six-bit scales and 8 six-bit minimums in 12
// bytes, then 32 bytes of nibbles for each two sub-blocks of 32: low nibbles the first, high nibbles the second.
//   x      codes in pairs, as for Q4_0
//   meta   [blocks][9]: scale, sums of 32 codes
#include "common.glsl"

float row() {
    precise float acc = 0.0;
    for (uint b = 0u; b < push.blocks; ++b) {
        uint j = b * 36u;
        uint scales = word(j), p0 = word(j + 1u), p1 = word(j + 2u), p2 = word(j + 3u);
        // Four bytes each: sub-blocks 0 to 3, then 4 to 7.
        uvec2 scale = uvec2(p0 & 0x3f3f3f3fu, (p2 & 0x0f0f0f0fu) | (p0 >> 2 & 0x30303030u));
        uvec2 minimum = uvec2(p1 & 0x3f3f3f3fu, (p2 >> 4 & 0x0f0f0f0fu) | (p1 >> 2 & 0x30303030u));
        int isum = 0, msum = 0;
        for (uint c = 0u; c < 4u; ++c) {
            uint k = j + 4u + c * 8u, at = b * 32u + c * 8u;
            uint q0 = word(k), q1 = word(k + 1u), q2 = word(k + 2u), q3 = word(k + 3u);
            uint q4 = word(k + 4u), q5 = word(k + 5u), q6 = word(k + 6u), q7 = word(k + 7u);
            int first = middle(low8(q0, q1, x[at]) + low8(q2, q3, x[at + 1u]))
                + middle(low8(q4, q5, x[at + 2u]) + low8(q6, q7, x[at + 3u]));
            int second = middle(low8(q0 >> 4, q1 >> 4, x[at + 4u]) + low8(q2 >> 4, q3 >> 4, x[at + 5u]))
                + middle(low8(q4 >> 4, q5 >> 4, x[at + 6u]) + low8(q6 >> 4, q7 >> 4, x[at + 7u]));
            uint shift = c % 2u * 16u, m = b * 9u + 1u + c * 2u;
            uint s = (c < 2u ? scale.x : scale.y) >> shift, n = (c < 2u ? minimum.x : minimum.y) >> shift;
            isum += int(s & 0xffu) * first + int(s >> 8 & 0xffu) * second;
            msum += int(n & 0xffu) * meta[m] + int(n >> 8 & 0xffu) * meta[m + 1u];
        }
        float x_scale = intBitsToFloat(meta[b * 9u]);
        acc = acc + rounded(isum) * (f16(scales) * x_scale);
        acc = acc - rounded(msum) * (f16(scales >> 16) * x_scale);
    }
    return acc;
}
