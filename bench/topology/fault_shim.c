/* The fault shim: what a server believes of its disk and its clock, decided from outside.
 *
 * Preloaded into a server (LD_PRELOAD), it shares one mapped file with lockbench (bench/topology/shim.py, same
 * layout). Without that file it changes nothing.
 *
 *   fsync, fdatasync     delayed or refused on demand; what they made durable is written into the ledger: the size that
 *                        the file had *before* the call, published after the call returned 0
 *   truncate, ftruncate  lower what the ledger calls durable
 *   write                its time noted, or refused as on a full disk, for files that are appended to (an AOF), never for
 *                        sockets or the log
 *   clock_gettime, gettimeofday, time    the wall clock, shifted or running at another rate; monotonic clocks are true
 *
 * Rules: no allocation, no lock, nothing that a SIGKILL could leave half done for the next process. A file is known by
 * inode *and* birth time, because inodes are used again. Source: fdatasync(2), statx(2), ld.so(8).
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define LAYOUT 4
#define ENTRIES 1024
#define CLOCKS 8
#define SECOND_NS 1000000000LL

typedef _Atomic int64_t word;

struct clock { word offset_ns, since_ns, ppb; };          /* shown = true + offset + (true - since) * ppb / 10^9 */

struct entry {                                            /* one file */
    word ready, inode, born_ns;                           /* ready: the two others are valid */
    word durable_bytes;                                   /* what survives a power cut */
    word in_flight, syncs, failures, truncations;         /* calls that run now; that returned 0; that did not */
    word written_ns, synced_ns;                           /* end of the last append (if noted), of the last sync */
};

struct control {                                          /* 64 words, then the ledger */
    word layout;                                          /* LAYOUT, written by lockbench */
    word loaded, program;                                 /* the process that loaded the shim, its program's inode */
    word sync_delay_ns, sync_error;                       /* an errno; 0 = none */
    word turn;                                            /* clocks[turn % CLOCKS] counts; 0 = the true clock */
    word used, overflow;                                  /* entries in use; files that found none */
    word note_writes;                                     /* 1 = the time of each append is noted */
    word disk_full;                                       /* 1 = nothing more can be written to a file */
    word spare[30];
    struct clock clocks[CLOCKS];
    struct entry ledger[ENTRIES];
};
_Static_assert(sizeof(struct control) == (64 + 10 * ENTRIES) * 8, "shim.py knows this layout");

static struct control *shared;
static int (*true_clock_gettime)(clockid_t, struct timespec *);

__attribute__((constructor)) static void load(void)
{
    true_clock_gettime = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    const char *path = getenv("LOCKBENCH_SHIM");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    struct control *found = mmap(NULL, sizeof *found, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (found == MAP_FAILED || found->layout != LAYOUT)
        return;
    for (int64_t i = 0; i < found->used && i < ENTRIES; i++)
        found->ledger[i].in_flight = 0;                   /* whoever was syncing is dead */
    struct stat program;
    found->program = stat("/proc/self/exe", &program) == 0 ? (int64_t)program.st_ino : 0;
    found->loaded = getpid();
    shared = found;
}

/* ---- the disk --------------------------------------------------------------------------------------------------- */

static struct entry *entry_of(const struct statx *file)
{
    int64_t inode = file->stx_ino;
    int64_t born_ns = file->stx_btime.tv_sec * SECOND_NS + file->stx_btime.tv_nsec;
    int64_t used = shared->used < ENTRIES ? shared->used : ENTRIES;
    for (int64_t i = 0; i < used; i++) {
        struct entry *entry = &shared->ledger[i];
        if (entry->ready && entry->inode == inode && entry->born_ns == born_ns)
            return entry;
    }
    int64_t free_one = atomic_fetch_add(&shared->used, 1);
    if (free_one >= ENTRIES) {
        shared->overflow++;
        return NULL;
    }
    struct entry *entry = &shared->ledger[free_one];      /* two threads at once make two: the reader takes the larger */
    entry->inode = inode;
    entry->born_ns = born_ns;
    entry->ready = 1;
    return entry;
}

static int look(int at, const char *path, int flags, struct statx *file)
{
    unsigned wanted = STATX_TYPE | STATX_INO | STATX_SIZE | STATX_BTIME;
    return statx(at, path, flags, wanted, file) == 0 && S_ISREG(file->stx_mode);
}

static void publish(struct entry *entry, int64_t bytes)
{
    int64_t known = entry->durable_bytes;
    while (known < bytes && !atomic_compare_exchange_weak(&entry->durable_bytes, &known, bytes))
        ;
}

static int64_t monotonic_ns(void)
{
    struct timespec now = {0, 0};
    true_clock_gettime ? true_clock_gettime(CLOCK_MONOTONIC, &now) : (int)syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
    return now.tv_sec * SECOND_NS + now.tv_nsec;
}

static void nap(int64_t ns)
{
    struct timespec left = {ns / SECOND_NS, ns % SECOND_NS};
    while (ns > 0 && nanosleep(&left, &left) != 0 && errno == EINTR)
        ;
}

static int sync_file(int fd, long number)
{
    if (!shared)
        return (int)syscall(number, fd);
    struct statx file;
    struct entry *entry = look(fd, "", AT_EMPTY_PATH, &file) ? entry_of(&file) : NULL;
    int64_t truncations = entry ? entry->truncations : 0;
    if (entry)
        entry->in_flight++;
    nap(shared->sync_delay_ns);
    int result = -1, error = (int)shared->sync_error;
    if (!error) {
        result = (int)syscall(number, fd);
        error = errno;
    }
    if (entry) {
        if (result == 0 && truncations == entry->truncations)
            publish(entry, (int64_t)file.stx_size);
        atomic_fetch_add(result == 0 ? &entry->syncs : &entry->failures, 1);
        entry->synced_ns = monotonic_ns();
        entry->in_flight--;
    }
    errno = error;
    return result;
}

int fsync(int fd) { return sync_file(fd, SYS_fsync); }
int fdatasync(int fd) { return sync_file(fd, SYS_fdatasync); }

static int shortened(int result, int at, const char *path, int flags, off_t bytes)
{
    struct statx file;
    int error = errno;
    struct entry *entry = result == 0 && shared && look(at, path, flags, &file) ? entry_of(&file) : NULL;
    if (entry) {
        entry->truncations++;
        if (entry->durable_bytes > bytes)
            entry->durable_bytes = bytes;
    }
    errno = error;
    return result;
}

int ftruncate(int fd, off_t bytes)
{
    return shortened((int)syscall(SYS_ftruncate, fd, bytes), fd, "", AT_EMPTY_PATH, bytes);
}

int truncate(const char *path, off_t bytes)
{
    return shortened((int)syscall(SYS_truncate, path, bytes), AT_FDCWD, path, 0, bytes);
}

int ftruncate64(int fd, off_t bytes) { return ftruncate(fd, bytes); }
int truncate64(const char *path, off_t bytes) { return truncate(path, bytes); }

static int is_appended_to(int fd)
{
    struct stat file;
    int flags = fd > STDERR_FILENO ? fcntl(fd, F_GETFL) : -1;
    return flags >= 0 && (flags & O_APPEND) && fstat(fd, &file) == 0 && S_ISREG(file.st_mode);
}

static void note_write(int fd)
{
    struct statx file;
    int error = errno;
    struct entry *entry = look(fd, "", AT_EMPTY_PATH, &file) ? entry_of(&file) : NULL;
    if (entry)
        entry->written_ns = monotonic_ns();
    errno = error;
}

ssize_t write(int fd, const void *data, size_t bytes)
{
    if (shared && shared->disk_full && is_appended_to(fd)) {
        errno = ENOSPC;
        return -1;
    }
    ssize_t result = syscall(SYS_write, fd, data, bytes);
    if (result > 0 && shared && shared->note_writes && is_appended_to(fd))
        note_write(fd);
    return result;
}

/* ---- the wall clock --------------------------------------------------------------------------------------------- */

int clock_gettime(clockid_t which, struct timespec *out)
{
    int result = true_clock_gettime ? true_clock_gettime(which, out) : (int)syscall(SYS_clock_gettime, which, out);
    if (result != 0 || !shared || (which != CLOCK_REALTIME && which != CLOCK_REALTIME_COARSE))
        return result;
    int64_t turn = shared->turn;
    if (turn == 0)
        return 0;
    struct clock *clock = &shared->clocks[turn % CLOCKS];
    int64_t now_ns = out->tv_sec * SECOND_NS + out->tv_nsec;
    now_ns += clock->offset_ns + (int64_t)((__int128)(now_ns - clock->since_ns) * clock->ppb / SECOND_NS);
    out->tv_sec = now_ns / SECOND_NS;
    out->tv_nsec = now_ns % SECOND_NS;
    return 0;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone)
{
    (void)zone;
    struct timespec now;
    int result = clock_gettime(CLOCK_REALTIME, &now);
    if (result == 0) {
        out->tv_sec = now.tv_sec;
        out->tv_usec = now.tv_nsec / 1000;
    }
    return result;
}

time_t time(time_t *out)
{
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0)
        return (time_t)-1;
    if (out)
        *out = now.tv_sec;
    return now.tv_sec;
}
