/* Writes down what a process does to the files below $RECORDED, in order: see power.py. Preload it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* A line: what, path, offset and length; then as many bytes. */
static void record(const char *what, const char *path, off_t at, const void *data, size_t length) {
    const char *below = getenv("RECORDED"), *to = getenv("RECORD");
    if (!below || !to || strncmp(path, below, strlen(below)) != 0) return;
    static int file = -1;
    pthread_mutex_lock(&lock);
    if (file < 0) file = open(to, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    char line[PATH_MAX + 100];
    int size = snprintf(line, sizeof line, "%s\t%s\t%lld\t%zu\n", what, path, (long long)at, length);
    if (write(file, line, size) != size || (data && write(file, data, length) != (ssize_t)length)) abort();
    pthread_mutex_unlock(&lock);
}

static void record_file(const char *what, int file, off_t at, const void *data, size_t length) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size <= 0) return;
    path[size] = 0;
    record(what, path, at, data, length);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t pwrite64(int file, const void *data, size_t length, off64_t at) {
    ssize_t done = REAL(pwrite64)(file, data, length, at);
    if (done > 0) record_file("write", file, at, data, done);
    return done;
}
ssize_t pwrite(int file, const void *data, size_t length, off_t at) { return pwrite64(file, data, length, at); }
int fsync(int file) {
    int done = REAL(fsync)(file);
    if (!done) record_file("sync", file, 0, NULL, 0);
    return done;
}
int fdatasync(int file) {
    int done = REAL(fdatasync)(file);
    if (!done) record_file("sync", file, 0, NULL, 0);
    return done;
}
int ftruncate64(int file, off64_t length) {
    int done = REAL(ftruncate64)(file, length);
    if (!done) record_file("cut", file, length, NULL, 0);
    return done;
}
int ftruncate(int file, off_t length) { return ftruncate64(file, length); }
int unlink(const char *path) {
    int done = REAL(unlink)(path);
    if (!done) record("remove", path, 0, NULL, 0);
    return done;
}
/* The program says what it was told, by a file that does not exist. */
int access(const char *path, int mode) {
    if (strstr(path, "/told:")) record("told", path, 0, NULL, 0);
    return REAL(access)(path, mode);
}
