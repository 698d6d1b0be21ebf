// SPDX-License-Identifier: Apache-2.0
// What the GPU tests need of the driver: memory, streams, graphs. Every function comes through cuGetProcAddress, so
// that the fake libcuda.so.1 serves them too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace mica::test {

using Address = std::uint64_t;

class Gpu {
 public:
  // GPU 0, opened at the first call. problem() is "" if it is there.
  static Gpu& instance();
  const std::string& problem() const { return problem_; }

  // Each thread calls it once.
  void make_current() const { f_.context_set_current(context_); }
  size_t free_bytes() const;
  void* allocate(size_t bytes) const;  // null: no memory
  void release(void* address) const { f_.mem_free(reinterpret_cast<Address>(address)); }
  void upload(void* to, const void* from, size_t bytes) const;
  void download(void* to, const void* from, size_t bytes) const;
  void fill(void* to, unsigned char value, size_t bytes) const;

  void* create_stream() const;
  void destroy_stream(void* stream) const { f_.stream_destroy(stream); }
  // "" or what the GPU says went wrong.
  std::string synchronise(void* stream) const;

  // What is launched between the two becomes a graph. Null: it could not be captured.
  bool begin_capture(void* stream) const { return f_.begin_capture(stream, 1 /* this thread alone */) == 0; }
  void* end_capture(void* stream) const;
  bool launch_graph(void* graph, void* stream) const { return f_.graph_launch(graph, stream) == 0; }

 private:
  Gpu();
  std::string open();

  struct Functions {
    int (*init)(unsigned);
    int (*device_get)(int*, int);
    int (*primary_context_retain)(void**, int);
    int (*context_set_current)(void*);
    int (*mem_get_info)(size_t*, size_t*);
    int (*mem_alloc)(Address*, size_t);
    int (*mem_free)(Address);
    int (*copy_to_device)(Address, const void*, size_t);
    int (*copy_to_host)(void*, Address, size_t);
    int (*memset_bytes)(Address, unsigned char, size_t);
    int (*stream_create)(void**, unsigned);
    int (*stream_destroy)(void*);
    int (*stream_synchronize)(void*);
    int (*begin_capture)(void*, int);
    int (*end_capture)(void*, void**);
    int (*graph_instantiate)(void**, void*, unsigned long long);
    int (*graph_launch)(void*, void*);
    int (*error_name)(int, const char**);
  };
  Functions f_ = {};
  void* context_ = nullptr;
  std::string problem_;
};

}  // namespace mica::test
