// SPDX-License-Identifier: Apache-2.0
// The front door: extern "C" over validate, plan and the backends.
#include <cstring>

#include "api/plan.h"
#include "api/prefix.h"
#include "api/validate.h"
#include "base/status.h"
#include "cpu/threads/threads.h"
#include "mica/mica.h"
#include "mica/version.h"

using mica::fail;

struct mica_plan {
  mica::Plan plan;
};

extern "C" {

mica_status mica_plan_create(const mica_attention* attention, mica_pass pass, mica_plan** plan) {
  if (!plan) return fail(MICA_ERROR_INVALID, "plan is null, want where to put the plan");
  *plan = nullptr;
  if (!attention) return fail(MICA_ERROR_INVALID, "attention is null, want a description");
  mica_plan* made = reinterpret_cast<mica_plan*>(mica::acquire_plan());
  if (!made) return fail(MICA_ERROR_OUT_OF_MEMORY, "no memory for a plan of %zu bytes", sizeof(mica_plan));
  const mica_status status = mica::make_plan(*attention, pass, made->plan);
  if (status == MICA_OK)
    *plan = made;
  else
    mica::release_plan(&made->plan);
  return status;
}

void mica_plan_destroy(mica_plan* plan) {
  if (!plan) return;
  mica::release_prefix_plans(plan->plan);
  mica::release_plan(&plan->plan);
}

size_t mica_plan_workspace(const mica_plan* plan) { return plan ? plan->plan.workspace_bytes : 0; }
const char* mica_plan_kernel(const mica_plan* plan) { return plan ? plan->plan.kernel : ""; }
int32_t mica_plan_splits(const mica_plan* plan) { return plan ? plan->plan.num_splits : 0; }

mica_status mica_execute(const mica_plan* plan, const mica_bindings* bindings) {
  if (!plan) return fail(MICA_ERROR_INVALID, "plan is null, want one from mica_plan_create");
  if (!bindings) return fail(MICA_ERROR_INVALID, "bindings is null, want pointers");
  const mica::Plan& p = plan->plan;
  mica_bindings taken;
  if (bindings->struct_bytes != sizeof taken) {
    if (const mica_status status = mica::take_bindings(*bindings, taken); status != MICA_OK) return status;
    bindings = &taken;
  }
  const mica_bindings& x = *bindings;
  const mica_status status =
      mica::validate_bindings(p.problem, x, p.bound, p.workspace_bytes, p.backend->workspace_alignment);
  if (status != MICA_OK) return status;
  return p.with_prefix ? mica::execute_with_prefix(p, x) : p.backend->execute(p, x);
}

mica_status mica_list_kernels(const mica_attention* attention, mica_pass pass, mica_kernel_visitor visit,
                              void* context) {
  if (!attention) return fail(MICA_ERROR_INVALID, "attention is null, want a description");
  if (!visit) return fail(MICA_ERROR_INVALID, "visit is null, want a function");
  return mica::list_kernels(*attention, pass, visit, context);
}

const char* mica_last_error(void) { return mica::last_error(); }

const char* mica_status_name(mica_status status) {
  switch (status) {
    case MICA_OK: return "ok";
    case MICA_ERROR_INVALID: return "invalid";
    case MICA_ERROR_UNSUPPORTED: return "unsupported";
    case MICA_ERROR_NO_DEVICE: return "no device";
    case MICA_ERROR_OUT_OF_MEMORY: return "out of memory";
    case MICA_ERROR_DEVICE: return "device error";
    case MICA_ERROR_INTERNAL: return "internal error";
  }
  return "unknown status";
}

const char* mica_version(void) { return MICA_VERSION_STRING; }
uint32_t mica_abi_version(void) { return MICA_ABI_VERSION; }

int32_t mica_device_count(mica_backend backend) {
  const mica::Backend* b = mica::find_backend(backend);
  return b ? b->device_count() : 0;
}

const char* mica_device_description(mica_device device) {
  thread_local char text[256];
  const mica::Backend* b = mica::find_backend(device.backend);
  if (!b) return nullptr;
  const int32_t count = b->device_count();
  if (device.ordinal < 0 || device.ordinal >= count) {
    if (count > 0)
      fail(MICA_ERROR_NO_DEVICE, "device.ordinal is %d, want 0 to %d (backend %s)", device.ordinal, count - 1, b->name);
    return nullptr;
  }
  b->describe_device(device.ordinal, text, sizeof text);
  return text;
}

mica_status mica_set_num_threads(int32_t num_threads) {
  if (num_threads < 0 || num_threads > 1024)
    return fail(MICA_ERROR_INVALID, "num_threads is %d, want 0 (all) to 1024", num_threads);
  mica::set_num_threads(num_threads);
  return MICA_OK;
}

int32_t mica_get_num_threads(void) { return mica::num_threads(); }

const char* mica_threads_from(void) {
  thread_local char text[128];
  mica::describe_threads(text, sizeof text);
  return text;
}

mica_status mica_set_thread_pool(mica_run_tasks run, void* pool) {
  if (!run && pool) return fail(MICA_ERROR_INVALID, "run is null and pool is not, want a function, or null for both");
  mica::set_thread_pool(run, pool);
  return MICA_OK;
}

}  // extern "C"
