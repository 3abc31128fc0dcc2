/* fsync and fdatasync that take PAUSE_MS milliseconds longer: see bench/peer/slow_sync.py. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>
#include <unistd.h>

static int slowly(const char *name, int descriptor) {
    int (*sync)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    struct timespec pause = {PAUSE_MS / 1000, PAUSE_MS % 1000 * 1000000L};
    int result = sync(descriptor);
    nanosleep(&pause, 0);
    return result;
}

int fsync(int descriptor) { return slowly("fsync", descriptor); }
int fdatasync(int descriptor) { return slowly("fdatasync", descriptor); }
