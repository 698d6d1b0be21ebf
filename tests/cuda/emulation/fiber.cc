// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda/emulation/fiber.h"

#include <cstdint>
#include <cstring>

// void mica_switch_stack(void** save_stack_pointer_here, void* stack_pointer): pushes the registers that a call
// preserves, changes stacks, and pops those that lie on the other.
extern "C" void mica_switch_stack(void** save, void* other);
#if defined(__aarch64__)
constexpr size_t kFrameBytes = 160, kFrameReturn = 88;  // x19 to x30, d8 to d15
__asm__(
    ".text\n.p2align 2\n.globl mica_switch_stack\n.hidden mica_switch_stack\n.type mica_switch_stack, %function\n"
    "mica_switch_stack:\n"
    "  sub sp, sp, #160\n"
    "  stp x19, x20, [sp, #0]\n  stp x21, x22, [sp, #16]\n  stp x23, x24, [sp, #32]\n  stp x25, x26, [sp, #48]\n"
    "  stp x27, x28, [sp, #64]\n  stp x29, x30, [sp, #80]\n"
    "  stp d8, d9, [sp, #96]\n  stp d10, d11, [sp, #112]\n  stp d12, d13, [sp, #128]\n  stp d14, d15, [sp, #144]\n"
    "  mov x9, sp\n  str x9, [x0]\n  mov sp, x1\n"
    "  ldp x19, x20, [sp, #0]\n  ldp x21, x22, [sp, #16]\n  ldp x23, x24, [sp, #32]\n  ldp x25, x26, [sp, #48]\n"
    "  ldp x27, x28, [sp, #64]\n  ldp x29, x30, [sp, #80]\n"
    "  ldp d8, d9, [sp, #96]\n  ldp d10, d11, [sp, #112]\n  ldp d12, d13, [sp, #128]\n  ldp d14, d15, [sp, #144]\n"
    "  add sp, sp, #160\n  ret\n"
    ".size mica_switch_stack, . - mica_switch_stack\n");
#elif defined(__x86_64__)
// rbx, rbp, r12 to r15, the return address, and a word that puts the stack where a call would have left it.
constexpr size_t kFrameBytes = 64, kFrameReturn = 48;
__asm__(
    ".text\n.p2align 4\n.globl mica_switch_stack\n.hidden mica_switch_stack\n.type mica_switch_stack, @function\n"
    "mica_switch_stack:\n"
    "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
    "  movq %rsp, (%rdi)\n  movq %rsi, %rsp\n"
    "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n  ret\n"
    ".size mica_switch_stack, . - mica_switch_stack\n");
#else
#error "no stack switch for this processor"
#endif

namespace mica::emulation {

void Fiber::prepare(void (*entry)()) {
  if (!stack_) stack_.reset(new std::byte[kStackBytes]);
  const auto end = (reinterpret_cast<std::uintptr_t>(stack_.get()) + kStackBytes) / 16 * 16;
  std::byte* frame = reinterpret_cast<std::byte*>(end - kFrameBytes);
  std::memset(frame, 0, kFrameBytes);
  std::memcpy(frame + kFrameReturn, &entry, sizeof entry);
  stack_pointer_ = frame;
}

void Fiber::hand_over(Fiber& from, Fiber& to) { mica_switch_stack(&from.stack_pointer_, to.stack_pointer_); }

}  // namespace mica::emulation
