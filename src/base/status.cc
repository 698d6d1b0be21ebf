// SPDX-License-Identifier: Apache-2.0
#include "base/status.h"

#include <cstdarg>
#include <cstdio>

namespace mica {
namespace {
thread_local char message[512];
}

mica_status fail(mica_status status, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(message, sizeof message, format, arguments);
  va_end(arguments);
  return status;
}

const char* last_error() { return message; }

}  // namespace mica
