// Which block is the last one of a grid, without a second launch.
#pragma once

// Counts one up and returns the count before. Releases what this thread read and wrote before, and acquires what the
// earlier callers released: whoever gets gridDim.x - 1 may overwrite what all the other blocks have read.
__device__ inline unsigned int take_ticket(unsigned int* ticket) {
    unsigned int before;
    asm volatile("atom.acq_rel.gpu.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(ticket) : "memory");
    return before;
}
