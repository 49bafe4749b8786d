/* Preloaded into User-Mode Linux 6.1, for host processors whose register state is larger than it knows.
 *
 * At each switch between processes of the guest, its kernel reads and writes their registers by
 * ptrace(PTRACE_GETREGSET and PTRACE_SETREGSET, NT_X86_XSTATE), with a buffer that ends after AVX-512.
 * A processor with AMX has some 11 KiB of state. The host then cuts what is read short, and refuses to
 * take it back, so that no process of the guest ever runs.
 *
 * So the state is exchanged with the host in its full size, and the guest's kernel sees its beginning.
 * What does not fit is written back as "never used": a process would have to ask its own kernel before
 * it may use AMX, and that kernel has nothing of the kind. Where all of it fits, nothing is changed.
 */
#define _GNU_SOURCE
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { XSTATE = 0x202, HEADER = 512, STATE_MAX = 1 << 16 };
/* Bits of the header: x87, SSE, AVX, three of AVX-512, protection keys. */
static const uint64_t known = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 9;

static unsigned char state[STATE_MAX] __attribute__((aligned(64)));
static size_t host_size;

static long call(long request, long pid, void *addr, void *data)
{
    return syscall(SYS_ptrace, request, pid, addr, data);
}

static long read_state(long pid, void *addr)
{
    struct iovec whole = {state, sizeof state};
    long answer = call(PTRACE_GETREGSET, pid, addr, &whole);

    if (answer == 0)
        host_size = whole.iov_len;
    return answer;
}

static long get(long pid, void *addr, struct iovec *guest)
{
    long answer = read_state(pid, addr);

    if (answer != 0)
        return answer;
    if (guest->iov_len > host_size)
        guest->iov_len = host_size;
    memcpy(guest->iov_base, state, guest->iov_len);
    return 0;
}

static long set(long pid, void *addr, struct iovec *guest)
{
    if (host_size == 0 && read_state(pid, addr) != 0)
        return -1;
    if (guest->iov_len >= host_size)
        return call(PTRACE_SETREGSET, pid, addr, guest);
    memset(state, 0, host_size);
    memcpy(state, guest->iov_base, guest->iov_len);

    uint64_t present;
    memcpy(&present, state + HEADER, sizeof present);
    present &= known;
    memcpy(state + HEADER, &present, sizeof present);

    struct iovec whole = {state, host_size};
    return call(PTRACE_SETREGSET, pid, addr, &whole);
}

long ptrace(enum __ptrace_request request, ...)
{
    va_list rest;

    va_start(rest, request);
    long pid = va_arg(rest, int);
    void *addr = va_arg(rest, void *);
    void *data = va_arg(rest, void *);
    va_end(rest);

    if (request == PTRACE_PEEKTEXT || request == PTRACE_PEEKDATA || request == PTRACE_PEEKUSER) {
        long word; /* the kernel stores it, the C function returns it */
        long answer = call(request, pid, addr, &word);
        return answer < 0 ? answer : word;
    }
    if ((long)addr == XSTATE && request == PTRACE_GETREGSET)
        return get(pid, addr, data);
    if ((long)addr == XSTATE && request == PTRACE_SETREGSET)
        return set(pid, addr, data);
    return call(request, pid, addr, data);
}
