/* A CUDA driver and NVRTC that compute nothing: a program that trains on a card runs without one, with all that happens on the
 * host: its operations, their fusion, the allocator, every launch. Results are whatever memory holds, zeros mostly.
 *
 * Only what burn-lct's own kernels tell the host is written, as if tensors had the exponents of trained weights: the header of
 * each packed form, from which the host learns how large it became. So tensors go to rest and come back as they would.
 *
 * Only what Burn 0.21 calls is here: cudarc looks a function up when it is first called, and says which one is missing.
 *
 * NO_CARD_LOG=FILE: what was counted, at the end. NO_CARD_SOURCES=FOLDER: the source of every kernel. NO_CARD_CARDS=N: so many
 * cards, which share the memory, and between which NCCL moves nothing.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

typedef uint32_t u32;
typedef uint64_t u64;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- The card: an H200 by its attributes. ---- */

static u64 launch_ns;
static const u64 TOTAL = (u64)141 << 30;

int cuInit(unsigned flags) {
    const char *us = getenv("NO_CARD_LAUNCH_US");
    launch_ns = us ? 1000 * strtoull(us, 0, 10) : 0;
    return 0;
}
int cuDriverGetVersion(int *version) { return *version = 13000, 0; }
int cuDeviceGet(int *device, int index) { return *device = index, 0; }
int cuDeviceGetCount(int *count) {
    const char *cards = getenv("NO_CARD_CARDS");
    return *count = cards ? atoi(cards) : 1, 0;
}
int cuDeviceGetName(char *name, int size, int device) { return strncpy(name, "no card", size), 0; }
int cuDeviceTotalMem_v2(size_t *bytes, int device) { return *bytes = TOTAL, 0; }
int cuDeviceGetUuid_v2(char *uuid, int device) { return memset(uuid, 1, 16), 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    static const struct { int attribute, value; } known[] = {
        {1, 1024}, /* threads of a block */
        {2, 1024}, {3, 1024}, {4, 64}, {5, 2147483647}, {6, 65535}, {7, 65535}, /* block, grid */
        {8, 49152}, {81, 233472}, {97, 232448}, /* shared memory */
        {10, 32}, {16, 132}, {39, 2048}, /* warp, multiprocessors, threads of one */
        {75, 9}, {76, 0}, /* compute capability */
    };
    *value = 1;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].attribute == attribute) *value = known[i].value;
    return 0;
}

/* ---- Contexts, streams, events. Everything is done when it is asked for, but with NO_CARD_LAUNCH_US a kernel counts as running
 * for so many microseconds, one after the other: whoever waits for the card then waits as long. ---- */

static u64 busy_until, waits, idle;

static u64 now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000ull + time.tv_nsec;
}

static void work(u64 ns) {
    if (!ns) return;
    u64 start = now(), end = __atomic_load_n(&busy_until, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(&busy_until, &end, (end > start ? end : start) + ns, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    if (end && end < start) __atomic_add_fetch(&idle, start - end, __ATOMIC_RELAXED);
}

static int wait_until(u64 end) {
    u64 start = now();
    __atomic_add_fetch(&waits, 1, __ATOMIC_RELAXED);
    if (end > start) {
        struct timespec time = {(end - start) / 1000000000, (end - start) % 1000000000};
        nanosleep(&time, 0);
    }
    return 0;
}

int cuDevicePrimaryCtxRetain(void **context, int device) { return *context = (void *)0x1000, 0; }
int cuDevicePrimaryCtxRelease_v2(int device) { return 0; }
int cuCtxSetCurrent(void *context) { return 0; }
int cuCtxGetCurrent(void **context) { return *context = (void *)0x1000, 0; }
int cuStreamCreate(void **stream, unsigned flags) { return *stream = malloc(1), 0; }
int cuStreamSynchronize(void *stream) { return wait_until(__atomic_load_n(&busy_until, __ATOMIC_RELAXED)); }
int cuStreamWaitEvent(void *stream, void *event, unsigned flags) { return 0; }
int cuEventCreate(u64 **event, unsigned flags) { return *event = calloc(1, sizeof **event), 0; }
int cuEventDestroy_v2(void *event) { return free(event), 0; }
int cuEventRecord(u64 *event, void *stream) { return *event = __atomic_load_n(&busy_until, __ATOMIC_RELAXED), 0; }
int cuEventSynchronize(u64 *event) { return wait_until(*event); }

/* ---- Memory: pages that the system makes when they are written. ---- */

/* Of what is used, what lies outside of the pool. */
static u64 used, outside, most, allocations, releases;

static int allocate(u64 *address, size_t bytes) {
    enum { OUT_OF_MEMORY = 2 };
    if (__atomic_load_n(&used, __ATOMIC_RELAXED) + bytes > TOTAL) return OUT_OF_MEMORY;
    char *page = mmap(0, bytes + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (page == MAP_FAILED) return OUT_OF_MEMORY;
    *(u64 *)page = bytes;
    *address = (u64)page + 4096;
    pthread_mutex_lock(&lock);
    used += bytes;
    if (used > most) most = used;
    allocations++;
    pthread_mutex_unlock(&lock);
    return 0;
}

static int release(u64 address) {
    u64 *page = (u64 *)(address - 4096), bytes = *page;
    pthread_mutex_lock(&lock);
    used -= bytes;
    releases++;
    pthread_mutex_unlock(&lock);
    return munmap(page, bytes + 4096);
}

int cuMemAlloc_v2(u64 *address, size_t bytes) {
    int error = allocate(address, bytes);
    if (!error) __atomic_add_fetch(&outside, bytes, __ATOMIC_RELAXED);
    return error;
}
int cuMemAllocAsync(u64 *address, size_t bytes, void *stream) { return allocate(address, bytes); }
int cuMemFree_v2(u64 address) {
    __atomic_sub_fetch(&outside, *(u64 *)(address - 4096), __ATOMIC_RELAXED);
    return release(address);
}
int cuMemFreeAsync(u64 address, void *stream) { return release(address); }
int cuMemAllocHost_v2(void **address, size_t bytes) { return *address = calloc(1, bytes), 0; }
int cuMemFreeHost(void *address) { return free(address), 0; }
int cuMemGetInfo_v2(size_t *available, size_t *total) { return *available = TOTAL - used, *total = TOTAL, 0; }
int cuDeviceGetDefaultMemPool(void **pool, int device) { return *pool = (void *)0x2000, 0; }
int cuMemPoolSetAttribute(void *pool, int attribute, const u64 *value) { return 0; }
int cuMemPoolGetAttribute(void *pool, int attribute, u64 *value) { return *value = used - outside, 0; }

/* Large uploads are not worth their memory, as nothing computes with them. */
enum { SMALL = 65536 };

int cuMemcpyHtoDAsync_v2(u64 to, const void *from, size_t bytes, void *stream) {
    if (bytes <= SMALL) memcpy((void *)to, from, bytes);
    return 0;
}
int cuMemcpyDtoHAsync_v2(void *to, u64 from, size_t bytes, void *stream) { return memcpy(to, (void *)from, bytes), 0; }

typedef struct {
    size_t x, y;
    u32 type;
    void *host;
    u64 device;
    void *array;
    size_t pitch;
} Side;
typedef struct {
    Side from, to;
    size_t width, height;
} Copy;

static char *row(const Side *side, size_t y) {
    char *start = side->type == 1 ? side->host : (char *)side->device;
    return start + side->x + (side->y + y) * side->pitch;
}

int cuMemcpy2DAsync_v2(const Copy *copy, void *stream) {
    int upload = copy->to.type != 1;
    if (upload && copy->width * copy->height > SMALL) return 0;
    for (size_t y = 0; y < copy->height; y++) memcpy(row(&copy->to, y), row(&copy->from, y), copy->width);
    return 0;
}

/* ---- Kernels: compiled to their number, and counted. ---- */

enum { KERNELS = 65536 };
typedef enum { OTHER, ENCODE, DECODE, UPDATE } Kind;
typedef struct {
    char name[256];
    Kind kind;
    u64 launches;
} Kernel;
static Kernel *kernels[KERNELS];
static int count;
static u64 values_of[4];

int nvrtcCreateProgram(void **program, const char *source, const char *name, int headers, const char **texts, const char **names) {
    static u64 number;
    *program = (void *)__atomic_add_fetch(&number, 1, __ATOMIC_RELAXED);
    const char *folder = getenv("NO_CARD_SOURCES");
    if (folder) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%lu.cu", folder, (u64)*program);
        FILE *file = fopen(path, "w");
        if (file) fputs(source, file), fclose(file);
    }
    return 0;
}
int nvrtcCompileProgram(void *program, int options, const char **texts) { return 0; }
int nvrtcDestroyProgram(void **program) { return 0; }
int nvrtcGetPTXSize(void *program, size_t *bytes) { return *bytes = 8, 0; }
int nvrtcGetPTX(void *program, char *ptx) { return memset(ptx, 0, 8), 0; }

int cuModuleLoadData(void **module, const void *image) { return *module = (void *)0x3000, 0; }
int cuModuleGetFunction(void **function, void *module, const char *name) {
    Kernel *kernel = calloc(1, sizeof *kernel);
    strncpy(kernel->name, name, sizeof kernel->name - 1);
    if (!strncmp(name, "update_packed", 13)) kernel->kind = UPDATE;
    else if (!strncmp(name, "encode", 6) && strncmp(name, "encode_nothing", 14)) kernel->kind = ENCODE;
    else if (!strncmp(name, "decode", 6)) kernel->kind = DECODE;
    pthread_mutex_lock(&lock);
    if (count < KERNELS) kernels[count++] = kernel;
    pthread_mutex_unlock(&lock);
    return *function = kernel, 0;
}
int cuFuncSetAttribute(void *function, int attribute, int value) { return 0; }
int cuTensorMapEncodeTiled(void *map) { return 0; }

/* The header of a packed form under `Auto`, see docs/FORMAT.md. */
enum { VALUES = 2, RECORDS_END = 8, CAPACITY = 11, SERIAL = 12, WORDS };

static void write_header(u32 *head, u32 values, u32 capacity, u32 serial) {
    u32 block = (values >= 1u << 25 ? 256 : 128) * 32;
    /* 2.6 to 2.75 bits an exponent, another number for each tensor. */
    double bits = 2.6 + 0.15 * (serial * 2654435761u >> 16) / 65536.0;
    u32 end = ((u64)(values * bits / 32) + 3) / 4 * 4;
    u32 words[WORDS] = {0x3154434c, 2 | 3 << 16, values, 0, block, block / 32, 0, (values + block - 1) / block, end};
    words[CAPACITY] = capacity;
    words[SERIAL] = serial;
    memcpy(head, words, sizeof words);
}

/* Arguments are the buffers in the order of the kernel's parameters, then its numbers: all f32, then all u32. */
static void encoded(void **arguments) {
    enum { HEAD = 0, BUFFERS = 7 };
    u32 *numbers = arguments[BUFFERS];
    write_header(*(u32 **)arguments[HEAD], numbers[0], numbers[1], numbers[2]);
    __atomic_add_fetch(&values_of[ENCODE], numbers[0], __ATOMIC_RELAXED);
}

/* SGD's step, of a weight and a momentum. */
static void updated(void **arguments) {
    enum { TENSORS = 2, OLD = 0, NEW = 4 * TENSORS + 2, BUFFERS = 8 * TENSORS + 3, FLOATS = 10, ROWS = 2 };
    u32 *capacities = (u32 *)arguments[BUFFERS] + FLOATS + ROWS;
    u32 values = capacities[TENSORS], serial = capacities[TENSORS + 1];
    for (int tensor = 0; tensor < TENSORS; tensor++) {
        u32 *old = *(u32 **)arguments[OLD + tensor];
        if (old[VALUES] != values) return;
        write_header(*(u32 **)arguments[NEW + tensor], values, capacities[tensor], serial);
    }
    __atomic_add_fetch(&values_of[UPDATE], values, __ATOMIC_RELAXED);
}

int cuLaunchKernel(Kernel *kernel, unsigned x, unsigned y, unsigned z, unsigned dx, unsigned dy, unsigned dz, unsigned shared,
                   void *stream, void **arguments, void **extra) {
    __atomic_add_fetch(&kernel->launches, 1, __ATOMIC_RELAXED);
    work(launch_ns);
    switch (kernel->kind) {
    case ENCODE: encoded(arguments); break;
    case DECODE: __atomic_add_fetch(&values_of[DECODE], (*(u32 **)arguments[0])[VALUES], __ATOMIC_RELAXED); break;
    case UPDATE: updated(arguments); break;
    case OTHER: break;
    }
    return 0;
}

/* ---- NCCL: nobody waits for anybody, and nothing is moved. ---- */

typedef struct { char bytes[128]; } Id;

int ncclGetUniqueId(Id *id) { return memset(id, 0, sizeof *id), 0; }
int ncclCommInitRank(void **comm, int ranks, Id id, int rank) { return *comm = malloc(1), 0; }
int ncclSend(const void *from, size_t count, int type, int peer, void *comm, void *stream) { return 0; }
int ncclRecv(void *to, size_t count, int type, int peer, void *comm, void *stream) { return 0; }
int ncclAllReduce(const void *from, void *to, size_t count, int type, int op, void *comm, void *stream) { return 0; }

__attribute__((destructor)) static void tell(void) {
    const char *path = getenv("NO_CARD_LOG");
    FILE *log = path ? fopen(path, "w") : 0;
    if (!log) return;
    u64 launches = 0, of[4] = {0};
    for (int i = 0; i < count; i++) launches += kernels[i]->launches, of[kernels[i]->kind] += kernels[i]->launches;
    fprintf(log, "{\n  \"most_bytes\": %lu, \"allocations\": %lu, \"releases\": %lu, \"launches\": %lu,\n", most, allocations,
            releases, launches);
    fprintf(log, "  \"encodes\": %lu, \"encoded_values\": %lu, \"decodes\": %lu, \"decoded_values\": %lu,\n", of[ENCODE],
            values_of[ENCODE], of[DECODE], values_of[DECODE]);
    fprintf(log, "  \"updates\": %lu, \"updated_values\": %lu,\n", of[UPDATE], values_of[UPDATE]);
    fprintf(log, "  \"waits\": %lu, \"idle_us\": %lu\n}\n", waits, idle / 1000);
    fclose(log);
}
