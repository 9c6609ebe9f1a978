"""A wrong clock for a process: a library that is loaded before all others moves the time of day.

Only what the program itself reads is moved, not the time since boot. OpenSSL asks by another call, so certificates stay
valid: from when on they are is their maker's business.
"""

from pathlib import Path

from tests.testbed.nvml.shim import compile_c

_SOURCE = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real)
        real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, now);
    const char *skew = getenv("SHOAL_TEST_SKEW");
    if (skew && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += atol(skew);
    return result;
}
"""


def skewed(folder: Path, seconds: int) -> dict[str, str]:
    """The environment of a process whose clock goes wrong by so many seconds."""
    library = folder / "clock.so"
    if not library.exists():
        source = folder / "clock.c"
        source.write_text(_SOURCE)
        compile_c(library, "-shared", "-fPIC", source, "-ldl")
    return {"LD_PRELOAD": str(library), "SHOAL_TEST_SKEW": str(seconds)}
