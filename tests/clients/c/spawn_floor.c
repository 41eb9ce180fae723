/* The floor under any job queue: `spawn_floor COUNT WIDTH PROGRAM ARGUMENTS…` starts COUNT programs, WIDTH at a time,
 * with posix_spawn and waits for them. Prints the seconds it took. */
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>

extern char **environ;

int main(int count, char **words)
{
    if (count < 4)
        return 2;
    long wanted = atol(words[1]), width = atol(words[2]), started = 0, ended = 0;
    struct timespec from, to;
    clock_gettime(CLOCK_MONOTONIC, &from);
    while (ended < wanted) {
        while (started < wanted && started - ended < width) {
            pid_t child;
            if (posix_spawn(&child, words[3], NULL, NULL, words + 3, environ) != 0)
                return 1;
            started++;
        }
        int status;
        if (wait(&status) < 0 || status != 0)
            return 1;
        ended++;
    }
    clock_gettime(CLOCK_MONOTONIC, &to);
    printf("%.6f\n", (double)(to.tv_sec - from.tv_sec) + (double)(to.tv_nsec - from.tv_nsec) / 1e9);
    return 0;
}
