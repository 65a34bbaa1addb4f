// Counts every operator new of the program: for a test program of its own, which has allocation_count.cc among its
// sources.
//
// All threads are counted but those that leave themselves out. The first allocations of a count are shown, with the
// functions that asked for them, on standard error.
#pragma once

namespace quire::test {

void leave_out_this_thread();
void start_count();  // from zero
void stop_count();
bool counting();
int counted_allocations();  // of the latest count

}  // namespace quire::test
