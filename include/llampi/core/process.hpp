// SPDX-License-Identifier: Apache-2.0
// Processes of this machine, as /proc shows them.
#pragma once

#include <cstdint>
#include <string>

namespace llampi {

/// State of the process: 'R' runs, 'S' sleeps, 'D' waits for a disk, 'T' is stopped, '?' unknown; 0 if it has
/// ended or is not to be seen from here.
char process_state(std::int64_t pid);
/// The set of process numbers that this process belongs to; empty if unknown. Containers have their own.
std::string process_namespace();
/// Of this machine; empty if unknown.
std::string host_name();
/// Lets this process have as many files open as it may, up to 65,536: data of many shards need more than the usual 1,024.
void raise_open_files();
/// Read and written by this process so far, from and to whatever; 0 if unknown.
std::int64_t io_bytes();

}  // namespace llampi
