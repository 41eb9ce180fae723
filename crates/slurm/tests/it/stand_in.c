/* stand_in PLUGIN CONTEXT [NAME=VALUE…] -- CMD…: loads a SPANK plugin as Slurm's programs do, and calls its hooks in their order.
 *
 *   CONTEXT  local: what srun and sbatch do; remote: what slurmstepd does with a step of one task
 *   job=N         number of the job
 *   gpu-memory=S  the option of the user
 *   argument=A    an argument of plugstack.conf
 *   uid=N         whose the task becomes after the privileged hook
 *
 * The functions are those of spank(7). Exits as the task does, with 1 after a hook that failed, with 2 for a plugin that Slurm would not load. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <grp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef API
#define API 38
#endif

typedef int (*hook)(void *, int, char **);
struct option { char *name, *arginfo, *usage; int has_arg, val; int (*cb)(int, const char *, int); };

static int handle, remote;
static uint32_t job = 7;
static const struct option *registered;

long slurm_api_version(void) { return (long)API << 16; }

int spank_remote(void *spank) { return spank == &handle ? remote : -1; }

int spank_get_item(void *spank, int item, ...) {
    va_list list;
    va_start(list, item);
    uint32_t *answer = va_arg(list, uint32_t *);
    va_end(list);
    if (spank != &handle) return 1;
    if (item == 2) return *answer = job, 0;
    if (item == 6) return *answer = 1, 0;
    return 2;
}

int spank_getenv(void *spank, const char *name, char *buffer, int length) {
    const char *value = getenv(name);
    if (spank != &handle || !remote) return 1;
    if (!value) return 8;
    if (snprintf(buffer, length, "%s", value) >= length) return 9;
    return 0;
}

int spank_setenv(void *spank, const char *name, const char *value, int overwrite) {
    if (spank != &handle || !remote) return 1;
    return setenv(name, value, overwrite) ? 1 : 0;
}

int spank_job_control_setenv(void *spank, const char *name, const char *value, int overwrite) {
    (void)overwrite;
    if (spank != &handle || remote) return 1;
    return printf("SPANK_%s=%s\n", name, value) < 0;
}

int spank_option_register(void *spank, const struct option *option) {
    registered = option;
    return spank != &handle;
}

void slurm_spank_log(const char *format, ...) {
    va_list list;
    va_start(list, format);
    vfprintf(stderr, format, list);
    va_end(list);
    fputc('\n', stderr);
}

static void *plugin;
static int count;
static char *words[16];

/* A plugin may lack any hook. */
static void call(const char *name) {
    hook found = (hook)dlsym(plugin, name);
    fflush(stdout);
    if (found && found(&handle, count, words)) exit(1);
}

int main(int argc, char **argv) {
    const char *option = NULL;
    int at = 3, uid = -1;
    if (argc < 3) return 3;
    remote = !strcmp(argv[2], "remote");
    for (; at < argc && strcmp(argv[at], "--"); at++) {
        char *value = strchr(argv[at], '=') + 1;
        if (!strncmp(argv[at], "job=", 4)) job = atoi(value);
        if (!strncmp(argv[at], "uid=", 4)) uid = atoi(value);
        if (!strncmp(argv[at], "gpu-memory=", 11)) option = value;
        if (!strncmp(argv[at], "argument=", 9) && count < 16) words[count++] = value;
    }
    plugin = dlopen(argv[1], RTLD_NOW);
    if (!plugin) return fprintf(stderr, "stand_in: %s\n", dlerror()), 2;
    const char *type = dlsym(plugin, "plugin_type"), *name = dlsym(plugin, "plugin_name");
    const uint32_t *version = dlsym(plugin, "plugin_version");
    if (!type || strcmp(type, "spank") || !name || !version) return fprintf(stderr, "stand_in: no plugin of Slurm\n"), 2;
    fprintf(stderr, "release %u.%02u\n", *version >> 16, *version >> 8 & 0xff);
    call("slurm_spank_init");
    if (!registered || strcmp(registered->name, "gpu-memory")) return fprintf(stderr, "stand_in: no option\n"), 2;
    if (option && registered->cb(registered->val, option, remote)) return 1;
    call("slurm_spank_init_post_opt");
    if (!remote) return 0;
    pid_t task = fork();
    if (!task) {
        call("slurm_spank_task_init_privileged");
        if (uid >= 0 && (setgroups(0, NULL) || setgid(uid) || setuid(uid))) return perror("stand_in"), 3;
        execvp(argv[at + 1], argv + at + 1);
        return perror(argv[at + 1]), 127;
    }
    int status;
    if (waitpid(task, &status, 0) != task) return 3;
    call("slurm_spank_task_exit");
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
