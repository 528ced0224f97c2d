// What a debugger asks of an arm64 processor: steps, a breakpoint and watchpoints of the hardware, by ptrace.
#include <elf.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>
#include <asm/ptrace.h>

#ifndef NT_ARM_HW_BREAK
#define NT_ARM_HW_BREAK 0x402
#define NT_ARM_HW_WATCH 0x403
#endif

static volatile uint64_t watched[4];
static pid_t child;

__attribute__((noinline)) static void function(void) { __asm__ volatile("" ::: "memory"); }

// Ten instructions, of which one is a system call (getppid), one stores, one loads and one is atomic.
extern long stepped(volatile uint64_t *place);
__asm__(".text\n .arch armv8.1-a\n .type stepped, %function\nstepped:\n"
        "mov x9, x0\n mov x8, #173\n svc #0\n mov x1, #7\n str x1, [x9]\n"
        "ldr x2, [x9]\n ldadd x1, x3, [x9]\n nop\n mov x0, x2\n ret\n .previous\n");

static void check(int is, const char *what) {
    printf("%s %s\n", is ? "ok" : "FAILED", what);
    fflush(stdout);
    if (!is) {
        kill(child, SIGKILL);
        exit(1);
    }
}

static uint64_t pc(void) {
    struct user_pt_regs regs;
    struct iovec of = {&regs, sizeof regs};
    ptrace(PTRACE_GETREGSET, child, NT_PRSTATUS, &of);
    return regs.pc;
}

static int traps(int request) {
    int status;
    ptrace(request, child, 0, 0);
    waitpid(child, &status, 0);
    return WIFSTOPPED(status) && WSTOPSIG(status) == SIGTRAP;
}

// Sets the first register of a set: type is 0 for execution, 1 for loads, 2 for stores.
static int set(int which, const volatile void *address, int length, int type, int on) {
    struct user_hwdebug_state state = {0};
    uint64_t own = (uint64_t)address;
    state.dbg_regs[0].addr = type ? own & ~7ull : own;
    state.dbg_regs[0].ctrl = on | 2 << 1 | type << 3 | ((1 << length) - 1) << (5 + (type ? own & 7 : 0));
    struct iovec of = {&state, offsetof(struct user_hwdebug_state, dbg_regs) + sizeof state.dbg_regs[0]};
    return ptrace(PTRACE_SETREGSET, child, which, &of) == 0;
}

static uint64_t where(void) {
    siginfo_t info;
    ptrace(PTRACE_GETSIGINFO, child, 0, &info);
    return (uint64_t)info.si_addr;
}

int main(void) {
    if ((child = fork()) == 0) {
        ptrace(PTRACE_TRACEME, 0, 0, 0);
        raise(SIGSTOP);
        function();
        watched[1] = 1;
        stepped(&watched[2]);
        watched[3] = watched[0];
        _exit(9);
    }
    int status;
    waitpid(child, &status, 0);
    check(set(NT_ARM_HW_BREAK, (void *)function, 4, 0, 1), "a breakpoint is set");
    check(traps(PTRACE_CONT) && pc() == (uint64_t)function && where() == pc(), "it stops where it is");
    check(set(NT_ARM_HW_BREAK, (void *)function, 4, 0, 0), "and goes away");

    check(set(NT_ARM_HW_WATCH, (volatile char *)watched + 12, 4, 2, 1) && traps(PTRACE_SINGLESTEP),
          "a watchpoint is set, and a step made");
    check(set(NT_ARM_HW_WATCH, watched + 1, 8, 2, 1), "another place is watched");
    check(traps(PTRACE_CONT) && where() == (uint64_t)(watched + 1), "a store stops it");
    check(set(NT_ARM_HW_WATCH, watched, 8, 1, 1) && set(NT_ARM_HW_BREAK, (void *)stepped, 4, 0, 1), "loads are watched");
    check(traps(PTRACE_CONT) && pc() == (uint64_t)stepped, "the next function is reached");
    check(set(NT_ARM_HW_BREAK, (void *)stepped, 4, 0, 0), "its breakpoint goes away");
    for (int n = 1; n < 10; n++) {
        char what[40];
        snprintf(what, sizeof what, "step %d", n);
        int stopped = traps(PTRACE_SINGLESTEP);
        // Linux stops a second time behind a system call: PSTATE.SS is clear there.
        if (stopped && pc() == (uint64_t)stepped + 4 * (n - 1))
            stopped = n == 4 && traps(PTRACE_SINGLESTEP);
        check(stopped && pc() == (uint64_t)stepped + 4 * n, what);
    }
    check(traps(PTRACE_CONT) && where() == (uint64_t)watched, "a load stops it");
    check(set(NT_ARM_HW_WATCH, watched, 8, 1, 0), "nothing is watched any more");
    ptrace(PTRACE_CONT, child, 0, 0);
    waitpid(child, &status, 0);
    check(WIFEXITED(status) && WEXITSTATUS(status) == 9, "it ends");
    return 0;
}
