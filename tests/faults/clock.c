/* Loaded before the C library: the time of day of this process is DRILL_CLOCK_SHIFT seconds ahead. Its other clocks, by which it waits, are not. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>

int clock_gettime(clockid_t id, struct timespec *at)
{
    int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    const char *shift = getenv("DRILL_CLOCK_SHIFT");
    int code = real(id, at);
    if (code == 0 && shift && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE))
        at->tv_sec += atol(shift);
    return code;
}
