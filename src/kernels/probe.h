// What the machine gives at this moment: the peaks under which kernels run.
//
// A unit's peak is that of independent chains of the instruction that the table's kernels use, from registers, on all
// workers together; memory's is reading more than caches hold, a cache's is copying what only the second level holds.
// Medians of several runs. Other work on the machine lowers them as it lowers the kernels, so they belong to one
// moment. One thread calls it.
#pragma once

#include "base/buffer.h"
#include "base/thread_pool.h"
#include "kernels/kernels.h"
#include "kernels/roofline.h"
#include "quire/error.h"

namespace quire::kernels {

// Takes about half a second and, while it runs, a GiB of memory: kExhausted without it. The scalar table's kernels are
// no unit of the CPU, so of them only memory is known.
Result<MachinePeaks> probe_peaks(const KernelTable& table, ThreadPool& pool, Allocator& allocator);

}  // namespace quire::kernels
