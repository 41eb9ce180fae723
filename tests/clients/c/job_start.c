/* A job that does nothing but say when it began and ended, on which GPU: `job_start LOG` appends
 * "start JOB NANOSECONDS GPU" and "end JOB NANOSECONDS GPU", each in one write, so lines of many jobs do not mix. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static const char *or_none(const char *text)
{
    return text ? text : "-";
}

static int say(int log, const char *what)
{
    struct timespec t;
    char line[256];
    clock_gettime(CLOCK_REALTIME, &t);
    int length = snprintf(line, sizeof line, "%s %s %lld%09ld %s\n", what, or_none(getenv("DIVVY_JOB_ID")),
                          (long long)t.tv_sec, t.tv_nsec, or_none(getenv("NVIDIA_VISIBLE_DEVICES")));
    return write(log, line, (size_t)length) == length;
}

int main(int count, char **words)
{
    if (count != 2)
        return 2;
    int log = open(words[1], O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    return log >= 0 && say(log, "start") && say(log, "end") ? 0 : 1;
}
