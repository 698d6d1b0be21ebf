// SPDX-License-Identifier: Apache-2.0
#include "cpu/threads/openmp.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>

#include <atomic>
#include <cstdio>
#include <cstring>

#include "cpu/threads/dealer.h"

namespace mica {

// Where in a program a region stands, as the LLVM and Intel runtimes want to be told.
struct KmpPlace {
  i32 reserved_1, flags, reserved_2, reserved_3;
  const char* source;
};

struct OpenMp {
  // libgomp's entry, which the LLVM and Intel runtimes have as well; null: fork_call is the way in.
  void (*parallel)(void (*body)(void*), void* data, unsigned num_threads, unsigned flags);
  void (*fork_call)(const KmpPlace* place, i32 num_arguments, void (*body)(i32*, i32*, void*), ...);
  void (*push_num_threads)(const KmpPlace* place, i32 global_thread, i32 num_threads);
  i32 (*global_thread_num)(const KmpPlace* place);
  int (*get_max_threads)();
  int (*get_thread_num)();
  int (*get_num_threads)();
  int (*get_level)();
  char name[64];
};

namespace {

constexpr i32 kMaxRuntimes = 4;
constexpr i32 kMaxObjects = 16;  // loaded objects whose name looks like a runtime's
constexpr size_t kMaxPath = 1024;

OpenMp runtimes[kMaxRuntimes];
std::atomic<i32> num_runtimes{0};  // those before it are complete and stay as they are
std::atomic<bool> forked{false};

// Objects by the loader's count of those it ever loaded.
struct Objects {
  unsigned long long loaded_ever = 0;
  i32 count = 0;
  char path[kMaxObjects][kMaxPath];
  char pytorch[kMaxPath] = "";
};

const char* file_name(const char* path) {
  const char* slash = std::strrchr(path, '/');
  return slash ? slash + 1 : path;
}

// NOTE: the loader holds a lock meanwhile, so names are only copied.
int note_object(dl_phdr_info* info, size_t, void* context) {
  Objects& objects = *static_cast<Objects*>(context);
  objects.loaded_ever = info->dlpi_adds;
  const char* path = info->dlpi_name;
  if (!path || std::strlen(path) >= kMaxPath) return 0;
  const char* name = file_name(path);
  if (std::strncmp(name, "libtorch_cpu.", 13) == 0) std::strcpy(objects.pytorch, path);
  if (objects.count < kMaxObjects && std::strstr(name, "omp")) std::strcpy(objects.path[objects.count++], path);
  return 0;
}

int count_loads(dl_phdr_info* info, size_t, void* count) {
  *static_cast<unsigned long long*>(count) = info->dlpi_adds;
  return 1;
}

template <class Function>
void look_up(Function& function, void* handle, const char* name) {
  function = reinterpret_cast<Function>(dlsym(handle, name));
}

// Where the entry of a runtime that `handle` sees is defined; null: it sees none.
void* entry_of(void* handle) {
  void* entry = dlsym(handle, "GOMP_parallel");
  return entry ? entry : dlsym(handle, "__kmpc_fork_call");
}

// An object that is loaded. It stays so: the handle is never closed.
void* open_loaded(const char* path) { return dlopen(path, RTLD_NOLOAD | RTLD_LAZY); }

bool open_runtime(OpenMp& runtime, const char* path) {
  void* handle = open_loaded(path);
  if (!handle) return false;
  runtime = OpenMp{};
  look_up(runtime.parallel, handle, "GOMP_parallel");
  look_up(runtime.fork_call, handle, "__kmpc_fork_call");
  look_up(runtime.push_num_threads, handle, "__kmpc_push_num_threads");
  look_up(runtime.global_thread_num, handle, "__kmpc_global_thread_num");
  look_up(runtime.get_max_threads, handle, "omp_get_max_threads");
  look_up(runtime.get_thread_num, handle, "omp_get_thread_num");
  look_up(runtime.get_num_threads, handle, "omp_get_num_threads");
  look_up(runtime.get_level, handle, "omp_get_level");
  const bool has_entry =
      runtime.parallel || (runtime.fork_call && runtime.push_num_threads && runtime.global_thread_num);
  // dlsym also looks into what the object needs; the runtime is the object that defines the entry itself.
  Dl_info at = {};
  const bool is_own =
      has_entry && dladdr(entry_of(handle), &at) && at.dli_fname && std::strcmp(at.dli_fname, path) == 0;
  if (!is_own || !runtime.get_max_threads || !runtime.get_thread_num || !runtime.get_num_threads ||
      !runtime.get_level) {
    dlclose(handle);
    return false;
  }
  std::snprintf(runtime.name, sizeof runtime.name, "%s", file_name(path));
  return true;
}

bool same_entry(const OpenMp& a, const OpenMp& b) { return a.parallel == b.parallel && a.fork_call == b.fork_call; }

pthread_mutex_t search_mutex = PTHREAD_MUTEX_INITIALIZER;
std::atomic<unsigned long long> searched_at{0};  // loads ever, when the last search was made
std::atomic<const OpenMp*> chosen{nullptr};

void search() {
  static Objects objects;  // large; guarded by the mutex
  objects = Objects{};
  dl_iterate_phdr(note_object, &objects);
  i32 count = num_runtimes.load(std::memory_order_relaxed);
  for (i32 n = 0; n < objects.count && count < kMaxRuntimes; ++n) {
    OpenMp& runtime = runtimes[count];
    if (!open_runtime(runtime, objects.path[n])) continue;
    bool is_known = false;
    for (i32 i = 0; i < count; ++i) is_known |= same_entry(runtimes[i], runtime);
    if (!is_known) num_runtimes.store(++count, std::memory_order_release);
  }
  const OpenMp* found = count > 0 ? &runtimes[0] : nullptr;
  if (void* pytorch = count > 1 && *objects.pytorch ? open_loaded(objects.pytorch) : nullptr) {
    void* entry = entry_of(pytorch);
    for (i32 i = 0; i < count; ++i)
      if (entry && (entry == reinterpret_cast<void*>(runtimes[i].parallel) ||
                    entry == reinterpret_cast<void*>(runtimes[i].fork_call)))
        found = &runtimes[i];
    dlclose(pytorch);
  }
  chosen.store(found, std::memory_order_release);
  searched_at.store(objects.loaded_ever, std::memory_order_release);
}

// Whether this process is a copy that fork made and exec did not replace, by the flags that Linux keeps: the library
// may have been loaded after the fork.
bool is_a_copy() {
  constexpr unsigned kForkedNoExec = 0x40;
  std::FILE* file = std::fopen("/proc/self/stat", "re");
  if (!file) return false;
  char text[512];
  const size_t length = std::fread(text, 1, sizeof text - 1, file);
  std::fclose(file);
  text[length] = 0;
  // The name of the program, in brackets, may hold anything; then: state, five numbers, flags.
  const char* end = std::strrchr(text, ')');
  unsigned flags = 0;
  return end && std::sscanf(end + 1, " %*c %*d %*d %*d %*d %*d %u", &flags) == 1 && (flags & kForkedNoExec);
}

__attribute__((constructor)) void watch_forks() {
  if (is_a_copy()) forked.store(true, std::memory_order_relaxed);
  pthread_atfork(nullptr, nullptr, [] { forked.store(true, std::memory_order_relaxed); });
}

// Whether a race detector watches. It sees nothing of how a runtime forks and joins; two atomics tell it, for which all
// threads would otherwise queue at the end of each call.
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define MICA_RACES_ARE_WATCHED 1
#endif
#endif
#if defined(MICA_RACES_ARE_WATCHED) || defined(__SANITIZE_THREAD__)
constexpr bool kRacesAreWatched = true;
#else
constexpr bool kRacesAreWatched = false;
#endif

// Lives on the stack of the thread that called run_on_openmp. Derived, so that all that the others must fetch from that
// core before they can begin lies on one line.
struct Team : Dealer {
  Team(const OpenMp& runtime, i32 num_threads, i64 count, ParallelBody body, void* context)
      : Dealer(count, num_threads, num_threads, body, context), openmp(&runtime) {}

  void work() {
    if (kRacesAreWatched) opened.load(std::memory_order_acquire);
    const i32 thread = openmp->get_thread_num();
    if (thread < members()) work_in_team(thread, openmp->get_num_threads());
    if (kRacesAreWatched) left.fetch_add(1, std::memory_order_release);
  }

  const OpenMp* openmp;
  std::atomic<i32> opened{0}, left{0};
};
static_assert(sizeof(Team) == 2 * 64);

void work_in_region(void* team) { static_cast<Team*>(team)->work(); }
void work_in_fork(i32*, i32*, void* team) { static_cast<Team*>(team)->work(); }
constexpr KmpPlace kPlace = {0, 2, 0, 0, ";mica;mica;0;0;;"};

}  // namespace

const OpenMp* find_openmp() {
  if (is_forked()) return nullptr;
  unsigned long long loaded_ever = 0;
  dl_iterate_phdr(count_loads, &loaded_ever);
  if (searched_at.load(std::memory_order_acquire) != loaded_ever) {
    pthread_mutex_lock(&search_mutex);
    if (searched_at.load(std::memory_order_relaxed) != loaded_ever) search();
    pthread_mutex_unlock(&search_mutex);
  }
  return chosen.load(std::memory_order_acquire);
}

const char* why_no_openmp() { return is_forked() ? "this process is a fork" : "no OpenMP runtime is loaded"; }

const char* openmp_name(const OpenMp& openmp) { return openmp.name; }

i32 openmp_max_threads(const OpenMp& openmp) { return openmp.get_max_threads(); }

bool is_forked() { return forked.load(std::memory_order_relaxed); }

bool is_in_parallel_region() {
  const i32 count = num_runtimes.load(std::memory_order_acquire);
  for (i32 i = 0; i < count; ++i)
    if (runtimes[i].get_level() > 0) return true;
  return false;
}

void run_on_openmp(const OpenMp& openmp, i32 num_threads, i64 count, ParallelBody body, void* context) {
  Team team(openmp, num_threads, count, body, context);
  team.opened.store(1, std::memory_order_release);
  const i32 asked = num_threads > openmp.get_max_threads() ? num_threads : 0;  // 0: as many as it likes
  if (openmp.parallel) {
    openmp.parallel(work_in_region, &team, unsigned(asked), 0);
  } else {
    if (asked > 0) openmp.push_num_threads(&kPlace, openmp.global_thread_num(&kPlace), asked);
    openmp.fork_call(&kPlace, 1, work_in_fork, &team);
  }
  team.left.load(std::memory_order_acquire);
}

}  // namespace mica
