// SPDX-License-Identifier: Apache-2.0
// All processes of a session: their memory, and their end.
#pragma once

#include <cstdint>
#include <vector>

namespace support {

// Resident bytes of all processes of a session, and their ids.
struct SessionUse {
  uint64_t bytes = 0;
  std::vector<int> processes;
};
SessionUse session_use(int session);
// Ends all processes of a session: asks first, then insists.
void end_session(int session, double patience_seconds);

// When a process began, in clock ticks since boot; 0 if there is none. With its id, it names a process for good.
uint64_t process_start(int process);

}  // namespace support
