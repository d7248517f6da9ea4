// What every head shader shares: the product of the rows of a matrix and one vector of activations.
//
//   w      uint  [tiles][words][64]   weights: word j of 64 neighbouring rows side by side
//   x      uvec4 [..]                 the activation codes of a row, in the form the format reads
//   meta   int   [blocks][..]         for each block the bits of its activation scale, then sums of codes
//   y      float [rows]               results
//
// One invocation computes one row, one workgroup one tile of 64 rows. The last tile may be partly filled: its missing
// rows hold zeros and are not written. Only the core of Vulkan 1.0 is needed.
//
// A result has the bits that the CPU would compute: the sum within a block is an exact integer, the steps across blocks
// are single operations in ascending order, and `precise` keeps a driver from fusing them.

layout(local_size_x = 64) in;

layout(std430, set = 0, binding = 0) restrict readonly buffer Weights { uint w[]; };
layout(std430, set = 0, binding = 1) restrict readonly buffer Codes { uvec4 x[]; };
layout(std430, set = 0, binding = 2) restrict readonly buffer Meta { int meta[]; };
layout(std430, set = 0, binding = 3) restrict writeonly buffer Results { float y[]; };

layout(push_constant) uniform Push {
    uint first_tile; // first tile to compute, in w
    uint tiles;      // how many tiles
    uint first_row;  // where their results begin in y
    uint rows;       // how many results
    uint words;      // 32-bit words in a row
    uint blocks;     // blocks in a row
} push;

// Index of the first word of this invocation's row.
uint base;

// Word j of the row.
uint word(uint j) { return w[base + j * 64u]; }

// The upper half of a and the lower half of b: a word that begins in the middle of one.
uint straddle(uint a, uint b) { return (a >> 16) | (b << 16); }

// An f16 in the low half of h, exactly, by integers: no denormal f32 is ever formed that a device could flush.
float f16(uint h) {
    uint magnitude = h & 0x7fffu;
    precise float tiny = float(magnitude) * 5.9604644775390625e-8; // 2^-24: exact, and normal as f32
    uint normal = magnitude < 0x7c00u ? (magnitude << 13) + 0x38000000u : (magnitude << 13) | 0x7f800000u;
    uint bits = magnitude < 0x0400u ? floatBitsToUint(tiny) : normal;
    return uintBitsToFloat(bits | (h & 0x8000u) << 16);
}

// i rounded once, to nearest even. A device may convert integers above 2^24 in another direction: both parts here are
// below, and the sum is an addition like any other.
float rounded(int i) {
    precise float f = float(i & ~4095) + float(i & 4095);
    return f;
}

// The sum of 16 products, from the low half of a sum of 8 products (a + b * 2^16) * (xb + xa * 2^16): modulo 2^32 that is
// sum(a * xb) + 2^16 * sum(a * xa + b * xb). With a, b in 0..15 and codes in -127..127 both sums fit 16 bits.
int middle(uint s) {
    int i = int(s);
    return (i - bitfieldExtract(i, 0, 16)) >> 16;
}

const uint NIBBLES = 0x000f000fu;

// The products of two words' low nibbles (8 elements) and the codes of these.
uint low8(uint a, uint b, uvec4 x) {
    return (a & NIBBLES) * x.x + (a >> 8 & NIBBLES) * x.y + (b & NIBBLES) * x.z + (b >> 8 & NIBBLES) * x.w;
}

// 32 elements in ggml's order: low nibble of byte j = element j, high nibble = element j + 16. `at` is where their codes
// begin in x.
int nibbles32(uint q0, uint q1, uint q2, uint q3, uint at) {
    uint low = low8(q0, q1, x[at]) + low8(q2, q3, x[at + 1u]);
    uint high = low8(q0 >> 4, q1 >> 4, x[at + 2u]) + low8(q2 >> 4, q3 >> 4, x[at + 3u]);
    return middle(low) + middle(high);
}

// The four signed bytes of q by four codes.
int bytes4(uint q, uvec4 x) {
    int i = int(q);
    ivec4 codes = ivec4(x);
    return bitfieldExtract(i, 0, 8) * codes.x + bitfieldExtract(i, 8, 8) * codes.y
        + bitfieldExtract(i, 16, 8) * codes.z + (i >> 24) * codes.w;
}

float row();

void main() {
    uint tile = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
    if (tile >= push.tiles) {
        return;
    }
    uint r = tile * 64u + gl_LocalInvocationID.x;
    base = (push.first_tile + tile) * push.words * 64u + gl_LocalInvocationID.x;
    float result = row();
    if (r < push.rows) {
        y[push.first_row + r] = result;
    }
}
