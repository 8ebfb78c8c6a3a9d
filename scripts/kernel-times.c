// Records when each kernel and copy of a CUDA program ran, without changing the program.
//
//   gcc -O2 -shared -fPIC -o kernel-times.so scripts/kernel-times.c -I CUDA/include -I CUPTI/include -L CUPTI/lib64 -lcupti -lpthread
//   CUDA_INJECTION64_PATH=$PWD/kernel-times.so KERNEL_TIMES=times.csv program ...
//
// Each line of the file: start and end in nanoseconds, then the kernel's name or the kind of copy.
#include <cupti.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
  unsigned long long start, end;
  char name[120];
} Record;

static Record *records;
static size_t count, room;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void add(unsigned long long start, unsigned long long end, const char *name) {
  if (count == room) {
    room = room ? 2 * room : 1 << 16;
    records = realloc(records, room * sizeof(Record));
    if (!records) abort();
  }
  Record *record = &records[count++];
  record->start = start;
  record->end = end;
  snprintf(record->name, sizeof record->name, "%s", name ? name : "?");
}

static void CUPTIAPI requested(uint8_t **buffer, size_t *size, size_t *most) {
  *size = 8 << 20;
  *buffer = aligned_alloc(8, *size);
  *most = 0;
}

static void CUPTIAPI completed(CUcontext context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid) {
  CUpti_Activity *activity = NULL;
  pthread_mutex_lock(&lock);
  while (cuptiActivityGetNextRecord(buffer, valid, &activity) == CUPTI_SUCCESS) {
    if (activity->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
      CUpti_ActivityKernel9 *kernel = (void *)activity;
      add(kernel->start, kernel->end, kernel->name);
    } else if (activity->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
      CUpti_ActivityMemcpy5 *copy = (void *)activity;
      char name[32];
      snprintf(name, sizeof name, "copy of kind %d", copy->copyKind);
      add(copy->start, copy->end, name);
    }
  }
  pthread_mutex_unlock(&lock);
  free(buffer);
}

static void finished(void) {
  cuptiActivityFlushAll(1);
  const char *path = getenv("KERNEL_TIMES");
  FILE *file = fopen(path ? path : "kernel-times.csv", "w");
  if (!file) return;
  for (size_t i = 0; i < count; i++)
    fprintf(file, "%llu,%llu,%s\n", records[i].start, records[i].end, records[i].name);
  fclose(file);
}

int InitializeInjection(void) {
  cuptiActivityRegisterCallbacks(requested, completed);
  cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
  cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMCPY);
  atexit(finished);
  return 1;
}
