// SPDX-License-Identifier: Apache-2.0
// Files of an environment exchanged as a whole or not at all. All moves are written down before the first is made; who
// finds an unfinished list undoes it, however often that is interrupted itself.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace builder {

struct Move {
  std::string from, to;  // on one file system
};

class Swap {
 public:
  // `folder` holds what is going to be moved in, what was moved out, and the list; it is made if it is not there.
  explicit Swap(std::string folder);

  // Makes all moves. Throws support::WriteError, and then all are undone. `each` is called after every step, by name.
  void commit(const std::vector<Move>& moves, const std::function<void(const std::string&)>& each = {});
  // It is good: what was moved out is removed.
  void finish();

  // Undoes what an interrupted one left in the folder, and removes it. Whether there was anything.
  static bool undo(const std::string& folder);

 private:
  std::string folder_;
};

}  // namespace builder
