/* Makes each fsync and fdatasync of a program take 200 ms longer while the file SLOW_FSYNC exists: a slow disk.
 * Built as a library, for LD_PRELOAD. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static void delay(void)
{
    const char *file = getenv("SLOW_FSYNC");
    const struct timespec time = {0, 200 * 1000 * 1000};
    if (file && !access(file, F_OK))
        nanosleep(&time, NULL);
}

int fsync(int fd)
{
    delay();
    return (int)syscall(SYS_fsync, fd);
}

int fdatasync(int fd)
{
    delay();
    return (int)syscall(SYS_fdatasync, fd);
}
