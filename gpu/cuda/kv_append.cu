// One launch for one decoded token: keys and values of all layers go into the session's next row, which only the device
// knows, and the registers count on. So one captured graph serves a whole conversation. Numbers are bytes to this code;
// the twin in torch is gpu/kv/append_kernel.py, which also fills in the arguments.
#include "ticket.cuh"

struct KvAppend {
    const unsigned char* keys;       // [tokens][layers][part_units] units, like the next two
    const unsigned char* values;
    const unsigned char* unrotated;  // read where `parts` is 3
    unsigned char* rows;             // [rows][layers][parts][part_units] units
    int* registers;                  // length, position, first row of the view
    unsigned int* ticket;            // 0 between launches
    long long ring_rows;             // distance at which every row is written a second time; 0: it is not
    int tokens;
    int layers;
    int parts;
    int part_units;                  // kv_heads * head_dim, in units
    int unit_bytes;                  // 16, 8, 4, 2 or 1: what one thread moves at a time
};

static constexpr unsigned int COUNTING_THREADS = 32;  // the last warp of every block moves no data

template <typename Unit>
__device__ const Unit* source_of(const KvAppend& a, unsigned int unit) {
    const unsigned int piece = unit / a.part_units;
    const unsigned int part = piece % a.parts;
    const unsigned int place = piece / a.parts * a.part_units + unit % a.part_units;
    const unsigned char* from = part == 0 ? a.keys : part == 1 ? a.values : a.unrotated;
    return reinterpret_cast<const Unit*>(from) + place;
}

template <typename Unit>
__device__ void store(const KvAppend& a, long long first_row, unsigned int unit, Unit value) {
    const unsigned int row_units = a.layers * a.parts * a.part_units;
    const long long row = first_row + unit / row_units;
    Unit* rows = reinterpret_cast<Unit*>(a.rows) + unit % row_units;
    rows[row * row_units] = value;
    if (a.ring_rows) {
        const long long twin = row < a.ring_rows ? row + a.ring_rows : row - a.ring_rows;
        rows[twin * row_units] = value;
    }
}

// The copying threads fetch their first unit while the counting thread fetches the registers; the last counting thread
// of the grid, when no block has them still to read, counts and leaves the ticket as it was.
template <typename Unit>
__device__ void append(const KvAppend& a) {
    __shared__ long long first_row;
    const unsigned int copying_threads = blockDim.x - COUNTING_THREADS;
    const bool copies = threadIdx.x < copying_threads;
    const bool counts = threadIdx.x == copying_threads;
    const unsigned int units = static_cast<unsigned int>(a.tokens) * a.layers * a.parts * a.part_units;
    const unsigned int step = gridDim.x * copying_threads;
    unsigned int unit = blockIdx.x * copying_threads + threadIdx.x;
    Unit value = {};
    int length = 0, position = 0;
    if (copies && unit < units) value = *source_of<Unit>(a, unit);
    if (counts) {
        length = a.registers[0];
        position = a.registers[1];
        first_row = static_cast<long long>(a.registers[2]) + length;
    }
    __syncthreads();
    if (copies && unit < units) {
        store(a, first_row, unit, value);
        for (unit += step; unit < units; unit += step) store(a, first_row, unit, *source_of<Unit>(a, unit));
    }
    if (counts && take_ticket(a.ticket) == gridDim.x - 1) {
        *a.ticket = 0;
        a.registers[0] = length + a.tokens;
        a.registers[1] = position + a.tokens;
    }
}

extern "C" __global__ void kv_append(const KvAppend a) {
    switch (a.unit_bytes) {
        case 16: append<uint4>(a); break;
        case 8: append<uint2>(a); break;
        case 4: append<unsigned int>(a); break;
        case 2: append<unsigned short>(a); break;
        default: append<unsigned char>(a);
    }
}
