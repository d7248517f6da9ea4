#version 450
#extension GL_GOOGLE_include_directive : require
// F16 by f32 activations: eight lanes, lane i adds the products of elements i, i + 8, .. and the lanes are added in a
// fixed tree. A block here is eight elements, four words; the last may be shorter.
//   x      activations as f32, zeros up to whole blocks
//   meta   not read
#include "common.glsl"

// Past the end of the row lie other rows: zeros stand for them.
uint part(uint j) { return j < push.words ? word(j) : 0u; }

vec4 four(uint a, uint b) { return vec4(f16(a), f16(a >> 16), f16(b), f16(b >> 16)); }

float row() {
    precise vec4 low = vec4(0.0), high = vec4(0.0);
    for (uint b = 0u; b < push.blocks; ++b) {
        uint j = b * 4u;
        low = low + uintBitsToFloat(x[b * 2u]) * four(part(j), part(j + 1u));
        high = high + uintBitsToFloat(x[b * 2u + 1u]) * four(part(j + 2u), part(j + 3u));
    }
    precise vec4 s = low + high;
    precise float sum = (s.x + s.z) + (s.y + s.w);
    return sum;
}
