#version 450
#extension GL_GOOGLE_include_directive : require
// Q6_K: blocks of 256 in 210 bytes: 128 bytes with the low four bits of the codes, 64 with the high two, 16 signed
// scales, f16 scale of the scales. Two blocks are 105 words.
//   x      codes, a word each
//   meta   [blocks][17]: scale, sums of 16 codes
#include "common.glsl"

// Word i of the block that begins at word j, or in the middle of it.
uint part(uint j, bool odd, uint i) {
    return odd ? straddle(word(j + i), word(j + i + 1u)) : word(j + i);
}

float row() {
    precise float acc = 0.0;
    for (uint b = 0u; b < push.blocks; ++b) {
        bool odd = b % 2u == 1u;
        uint j = b / 2u * 105u + (odd ? 52u : 0u);
        int isum = 0;
        // 32 codes are eight words of bytes; `s` is one for each half (128 elements) and each half of the 32s in it.
        for (uint s = 0u; s < 4u; ++s) {
            uint h = s / 2u, upper = s % 2u;
            ivec4 sums = ivec4(0);
            for (uint i = 0u; i < 4u; ++i) {
                uint g = upper * 4u + i;
                uint a = part(j, odd, h * 16u + g), c = part(j, odd, h * 16u + 8u + g);
                uint high = part(j, odd, 32u + h * 8u + g);
                uint at = b * 64u + h * 32u + g;
                sums.x += bytes4((a & 0x0f0f0f0fu) | (high << 4 & 0x30303030u), x[at]);
                sums.y += bytes4((c & 0x0f0f0f0fu) | (high << 2 & 0x30303030u), x[at + 8u]);
                sums.z += bytes4((a >> 4 & 0x0f0f0f0fu) | (high & 0x30303030u), x[at + 16u]);
                sums.w += bytes4((c >> 4 & 0x0f0f0f0fu) | (high >> 2 & 0x30303030u), x[at + 24u]);
            }
            // Sub-blocks of 16: number h * 8 + 2 * k + upper for the k-th 32.
            uint m = b * 17u + 1u + h * 8u + upper;
            sums -= 32 * ivec4(meta[m], meta[m + 2u], meta[m + 4u], meta[m + 6u]);
            int s0 = int(part(j, odd, 48u + h * 2u)), s1 = int(part(j, odd, 49u + h * 2u));
            int shift = int(upper) * 8;
            isum += bitfieldExtract(s0, shift, 8) * sums.x + bitfieldExtract(s0, shift + 16, 8) * sums.y
                + bitfieldExtract(s1, shift, 8) * sums.z + bitfieldExtract(s1, shift + 16, 8) * sums.w;
        }
        uint last = word(j + 52u);
        acc = acc + rounded(isum) * (f16(odd ? last >> 16 : last) * intBitsToFloat(meta[b * 17u]));
    }
    return acc;
}
