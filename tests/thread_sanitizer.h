// SPDX-License-Identifier: Apache-2.0
// Whether this is a build with the thread sanitizer, which ends a child that makes threads after a fork of many.
#pragma once

#if defined(__SANITIZE_THREAD__)
constexpr bool kHasThreadSanitizer = true;
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
constexpr bool kHasThreadSanitizer = true;
#else
constexpr bool kHasThreadSanitizer = false;
#endif
#else
constexpr bool kHasThreadSanitizer = false;
#endif
