"""Attributes that a process keeps over fork and exec (execve(2)), by the names of the table in docs/reference.md.

    attributes.py odd PROGRAM ARGS…   gives each attribute an unusual value, then becomes the program
    attributes.py show                prints all of them as JSON
"""

import ctypes
import json
import os
import resource
import signal
import sys

LIBC = ctypes.CDLL(None, use_errno=True)
IGNORED = [signal.SIGHUP, signal.SIGPIPE, signal.SIGCHLD, signal.SIGUSR2, signal.SIGXFSZ]
BLOCKED = [signal.SIGCHLD, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM]
TIMERS = [signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF]
LIMITS = {name: getattr(resource, name) for name in sorted(dir(resource)) if name.startswith("RLIMIT_")}
SOFT = {
    "RLIMIT_AS": 1 << 46,
    "RLIMIT_CORE": 1 << 20,
    "RLIMIT_CPU": 5000,
    "RLIMIT_DATA": 1 << 45,
    "RLIMIT_FSIZE": 64 << 20,
    "RLIMIT_MEMLOCK": 48 << 10,
    "RLIMIT_NOFILE": 900,
    "RLIMIT_SIGPENDING": 500,
    "RLIMIT_STACK": 6 << 20,
}
ONE_PROGRAM = ["RLIMIT_AS", "RLIMIT_CPU", "RLIMIT_DATA", "RLIMIT_FSIZE"]

# prctl(2), personality(2), ioprio_set(2), seccomp(2).
PR_SET_PDEATHSIG, PR_GET_SECUREBITS, PR_SET_SECUREBITS, PR_CAPBSET_DROP = 1, 27, 28, 24
PR_SET_TIMERSLACK, PR_SET_NO_NEW_PRIVS, PR_SET_THP_DISABLE, PR_GET_THP_DISABLE = 29, 38, 41, 42
PR_SET_SECCOMP, SECCOMP_MODE_FILTER, SECCOMP_RET_ALLOW = 22, 2, 0x7FFF0000
ADDR_NO_RANDOMIZE, CAP_SYS_BOOT, SECBIT_NO_CAP_AMBIENT_RAISE = 0x40000, 22, 0x40
CALLS = {"x86_64": (251, 252), "aarch64": (30, 31)}[os.uname().machine]
LOW_BEST_EFFORT = 2 << 13 | 6


class Instruction(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint16), ("jt", ctypes.c_uint8), ("jf", ctypes.c_uint8), ("k", ctypes.c_uint32)]


class Filter(ctypes.Structure):
    _fields_ = [("length", ctypes.c_uint16), ("instructions", ctypes.POINTER(Instruction))]


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read().strip()


def write(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def prctl(*words):
    return LIBC.prctl(*[word if isinstance(word, ctypes.c_void_p) else ctypes.c_ulong(word) for word in words])


def odd():
    for name, soft in SOFT.items():
        hard = resource.getrlimit(LIMITS[name])[1]
        resource.setrlimit(LIMITS[name], (soft, hard))
    os.umask(0o27)
    os.nice(3)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    LIBC.syscall(CALLS[0], 1, 0, LOW_BEST_EFFORT)
    write("/proc/self/oom_score_adj", "300")
    write("/proc/self/coredump_filter", "0x7")
    LIBC.personality(ADDR_NO_RANDOMIZE)
    prctl(PR_SET_TIMERSLACK, 123456)
    prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)
    if os.geteuid() == 0:
        prctl(PR_CAPBSET_DROP, CAP_SYS_BOOT)
        prctl(PR_SET_SECUREBITS, SECBIT_NO_CAP_AMBIENT_RAISE)
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    allow = Filter(1, ctypes.pointer(Instruction(6, 0, 0, SECCOMP_RET_ALLOW)))
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.c_void_p(ctypes.addressof(allow)))
    os.environ["ATTRIBUTE"] = "odd"
    for timer in TIMERS:
        signal.setitimer(timer, 3600)
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, BLOCKED)


def show():
    status = dict(line.split(":\t", 1) for line in read("/proc/self/status").splitlines() if ":\t" in line)
    # Of a program that started no Python, which ignores two signals by itself.
    signals = dict(line.split(":\t", 1) for line in os.environ["SIGNALS"].splitlines())
    # The C library ignores its own two for each program that posix_spawn(3) starts.
    ignored = int(signals["SigIgn"], 16) & ~(1 << 31 | 1 << 32)
    limits = {name: resource.getrlimit(number) for name, number in LIMITS.items() if name != "RLIMIT_OFILE"}
    program = {name: limits.pop(name) for name in ONE_PROGRAM}
    return {
        "blocked signals": signals["SigBlk"],
        "ignored signals": f"{ignored:016x}",
        "interval timers": [signal.getitimer(timer)[0] > 0 for timer in TIMERS],
        "limits of CPU time, file size, data and address space": program,
        "other limits": limits,
        "umask": status["Umask"],
        "nice value": os.nice(0),
        "scheduling policy": os.sched_getscheduler(0),
        "CPU affinity": status["Cpus_allowed_list"],
        "I/O priority": LIBC.syscall(CALLS[1], 1, 0),
        "working directory": os.getcwd(),
        "root, namespaces": [os.stat("/").st_ino] + [os.readlink(f"/proc/self/ns/{name}") for name in ("net", "pid", "user")],
        "environment": os.environ.get("ATTRIBUTE"),
        "OOM score adjustment": read("/proc/self/oom_score_adj"),
        "core dump filter": read("/proc/self/coredump_filter"),
        "personality": read("/proc/self/personality"),
        "timer slack": read("/proc/self/timerslack_ns"),
        "huge pages disabled": prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0),
        "bounding set, secure bits": [status["CapBnd"], prctl(PR_GET_SECUREBITS)],
        "no new privileges": status["NoNewPrivs"],
        "seccomp filters": status["Seccomp"],
    }


if sys.argv[1] == "odd":
    odd()
    os.execvp(sys.argv[2], sys.argv[2:])
print(json.dumps(show()))
