// Times nvCOMP's batched ANS with data type FLOAT16 on BF16 values from N(0, 0.02). scripts/peer-nvcomp builds and runs it.
//
//   peer-nvcomp ROUNDS VALUES,... CHUNK_BYTES,... HISTOGRAM_REDUCTION,...
//
// Standard output gets one JSON object a line for each size and setting; standard error says what is being done.
// Each run finds an L2 that a write of 256 MiB has emptied. That write also keeps the card busy while the host queues the
// call, so that no gap falls between the events. Nothing but the call is between them.

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include "nvcomp.h"

namespace {

constexpr int WARM_UPS = 5;
constexpr size_t FLUSH_BYTES = size_t(256) << 20;
constexpr size_t SLOT = 256;  // each chunk's output begins at a multiple of this
constexpr size_t STORED = 16; // what a gathered chunk would be rounded up to: the alignment that nvCOMP asks for

void must(bool good, const char* what, const char* why, int line) {
  if (good) return;
  std::fprintf(stderr, "line %d: %s: %s\n", line, what, why);
  std::exit(2);
}

#define CUDA(call)                                                            \
  do {                                                                        \
    const cudaError_t error_ = (call);                                        \
    must(error_ == cudaSuccess, #call, cudaGetErrorString(error_), __LINE__); \
  } while (0)
#define NVCOMP(call)                                                                 \
  do {                                                                               \
    const nvcompStatus_t status_ = (call);                                           \
    must(status_ == nvcompSuccess, #call, nvcompGetStatusString(status_), __LINE__); \
  } while (0)

/// Well mixed bits of a counter.
__device__ uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

/// Two values of N(0, deviation) a thread, by Box and Muller.
__global__ void draw(__nv_bfloat162* pairs, size_t count, float deviation) {
  const size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x;
  if (i >= count) return;
  const uint64_t bits = mix((i + 1) * 0x9e3779b97f4a7c15ull);
  const float u = (float(uint32_t(bits >> 32)) + 0.5f) * 0x1p-32f;
  const float angle = float(uint32_t(bits)) * 0x1p-31f;
  const float radius = deviation * sqrtf(-2.0f * logf(u));
  pairs[i] = __floats2bfloat162_rn(radius * cospif(angle), radius * sinpif(angle));
}

/// Writes all of the buffer, something else each time.
__global__ void overwrite(uint4* buffer, size_t count, unsigned tag) {
  const size_t step = size_t(gridDim.x) * blockDim.x;
  for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < count; i += step) {
    buffer[i] = make_uint4(unsigned(i), tag, unsigned(i) ^ tag, ~tag);
  }
}

/// Counts the words that differ.
__global__ void compare(const uint32_t* a, const uint32_t* b, size_t count, unsigned long long* differing) {
  const size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x;
  if (i < count && a[i] != b[i]) atomicAdd(differing, 1ull);
}

/// Device memory that is freed at the end of its scope.
template <class T>
struct Buffer {
  T* data = nullptr;
  size_t count;
  explicit Buffer(size_t count) : count(count) { CUDA(cudaMalloc(&data, std::max<size_t>(count, 1) * sizeof(T))); }
  explicit Buffer(const std::vector<T>& host) : Buffer(host.size()) {
    CUDA(cudaMemcpy(data, host.data(), count * sizeof(T), cudaMemcpyHostToDevice));
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { cudaFree(data); }
  std::vector<T> host() const {
    std::vector<T> copy(count);
    CUDA(cudaMemcpy(copy.data(), data, count * sizeof(T), cudaMemcpyDeviceToHost));
    return copy;
  }
};

unsigned blocks(size_t threads) { return unsigned((threads + 255) / 256); }

/// Microseconds of what is queued between two events, with a cold L2.
struct Clock {
  int rounds;
  Buffer<uint4> flush{FLUSH_BYTES / sizeof(uint4)};
  cudaEvent_t begin, end;
  unsigned tag = 0;

  explicit Clock(int rounds) : rounds(rounds) {
    CUDA(cudaEventCreate(&begin));
    CUDA(cudaEventCreate(&end));
  }

  template <class F>
  std::vector<float> time(F queue) {
    std::vector<float> samples;
    for (int round = -WARM_UPS; round < rounds; ++round) {
      overwrite<<<1056, 256>>>(flush.data, flush.count, ++tag);
      CUDA(cudaGetLastError());
      CUDA(cudaEventRecord(begin));
      queue();
      CUDA(cudaEventRecord(end));
      CUDA(cudaEventSynchronize(end));
      float milliseconds;
      CUDA(cudaEventElapsedTime(&milliseconds, begin, end));
      if (round >= 0) samples.push_back(1000.0f * milliseconds);
    }
    CUDA(cudaDeviceSynchronize());
    return samples;
  }
};

double median(std::vector<float> samples) {
  std::sort(samples.begin(), samples.end());
  const size_t half = samples.size() / 2;
  return samples.size() % 2 ? samples[half] : 0.5 * (samples[half - 1] + samples[half]);
}

std::string list(const std::vector<float>& samples) {
  std::ostringstream text;
  for (float sample : samples) text << (text.tellp() ? ", " : "[") << sample;
  return text.str() + "]";
}

/// One size and setting. Returns whether every bit came back.
bool measure(Clock& clock, const char* version, const Buffer<uint16_t>& input, size_t chunk, int reduction, double copy_gbps) {
  nvcompBatchedANSCompressOpts_t pack = nvcompBatchedANSCompressDefaultOpts;
  pack.data_type = NVCOMP_TYPE_FLOAT16;
  pack.histogram_reduction_log2 = uint8_t(reduction);
  // nvCOMP can find out from the stream what it is given, or be told, which lets it take narrower kernels.
  const nvcompBatchedANSDecompressOpts_t found = nvcompBatchedANSDecompressDefaultOpts;
  nvcompBatchedANSDecompressOpts_t told = found;
  told.data_type = NVCOMP_TYPE_FLOAT16;
  told.states_per_lane = 2;
  told.skip_validate = 1;

  const size_t bytes = 2 * input.count, chunks = (bytes + chunk - 1) / chunk;
  size_t slot, pack_temp, found_temp, told_temp;
  NVCOMP(nvcompBatchedANSCompressGetMaxOutputChunkSize(chunk, pack, &slot));
  slot = (slot + SLOT - 1) / SLOT * SLOT;
  NVCOMP(nvcompBatchedANSCompressGetTempSize(chunks, chunk, pack, &pack_temp, bytes, 0));
  NVCOMP(nvcompBatchedANSDecompressGetTempSize(chunks, chunk, found, &found_temp, bytes, 0));
  if (nvcompBatchedANSDecompressGetTempSize(chunks, chunk, told, &told_temp, bytes, 0) != nvcompSuccess) told_temp = 0;

  Buffer<uint8_t> packed(chunks * slot), temp(std::max({pack_temp, found_temp, told_temp}));
  Buffer<uint16_t> output(input.count);
  std::vector<void*> sources, slots, targets;
  std::vector<size_t> lengths;
  for (size_t i = 0; i < chunks; ++i) {
    sources.push_back(reinterpret_cast<uint8_t*>(input.data) + i * chunk);
    slots.push_back(packed.data + i * slot);
    targets.push_back(reinterpret_cast<uint8_t*>(output.data) + i * chunk);
    lengths.push_back(std::min(chunk, bytes - i * chunk));
  }
  Buffer<void*> source_list(sources), slot_list(slots), target_list(targets);
  Buffer<size_t> raw_sizes(lengths), packed_sizes(chunks), output_sizes(chunks);
  Buffer<nvcompStatus_t> statuses(chunks);

  bool exact = true;
  auto all_succeeded = [&] {
    for (nvcompStatus_t status : statuses.host()) {
      if (status != nvcompSuccess) return false;
    }
    return true;
  };

  CUDA(cudaMemset(statuses.data, 0xff, chunks * sizeof(nvcompStatus_t)));
  const std::vector<float> encode = clock.time([&] {
    NVCOMP(nvcompBatchedANSCompressAsync(source_list.data, raw_sizes.data, chunk, chunks, temp.data, pack_temp,
                                         slot_list.data, packed_sizes.data, pack, statuses.data, 0));
  });
  exact &= all_succeeded();
  size_t stored = chunks * sizeof(uint64_t);  // the chunks' sizes; without them nothing can be found
  for (size_t size : packed_sizes.host()) stored += (size + STORED - 1) / STORED * STORED;

  auto decode_with = [&](const nvcompBatchedANSDecompressOpts_t& options, size_t temp_bytes, bool& good) {
    CUDA(cudaMemset(output.data, 0xa5, bytes));
    CUDA(cudaMemset(statuses.data, 0xff, chunks * sizeof(nvcompStatus_t)));
    bool taken = true;
    const std::vector<float> samples = clock.time([&] {
      taken &= nvcompBatchedANSDecompressAsync(slot_list.data, packed_sizes.data, raw_sizes.data, output_sizes.data, chunks,
                                               temp.data, temp_bytes, target_list.data, options, statuses.data,
                                               0) == nvcompSuccess;
    });
    Buffer<unsigned long long> differing(std::vector<unsigned long long>{0});
    const size_t words = input.count / 2;
    compare<<<blocks(words), 256>>>(reinterpret_cast<const uint32_t*>(input.data),
                                    reinterpret_cast<const uint32_t*>(output.data), words, differing.data);
    CUDA(cudaGetLastError());
    good = taken && differing.host()[0] == 0 && all_succeeded() && output_sizes.host() == lengths;
    return samples;
  };
  bool found_good, told_good;
  const std::vector<float> by_finding = decode_with(found, found_temp, found_good);
  const std::vector<float> by_telling = decode_with(told, told_temp, told_good);
  exact &= found_good;
  const bool tell = told_good && median(by_telling) < median(by_finding);

  const double encode_us = median(encode), decode_us = median(tell ? by_telling : by_finding);
  const double ratio = double(bytes) / double(stored);
  std::ostringstream name;
  name << "nvCOMP " << version << " ANS, FLOAT16, " << (chunk >> 10) << "K chunks";
  if (reduction) name << ", histogram of 1/" << (1 << reduction);
  std::printf(
      "{\"peer\": \"%s\", \"values\": %zu, \"data\": \"gaussian 0.02\", \"encode_gbps\": %.3f, \"decode_gbps\": %.3f, "
      "\"encode_us\": %.3f, \"decode_us\": %.3f, \"ratio\": %.6f, \"copy_gbps\": %.1f, \"exact\": %s, "
      "\"decode_options\": \"%s\", \"encode_samples_us\": %s, \"decode_samples_us\": %s, \"decode_told_samples_us\": %s, "
      "\"told_exact\": %s}\n",
      name.str().c_str(), input.count, bytes / encode_us * 1e-3, bytes / decode_us * 1e-3, encode_us, decode_us, ratio,
      copy_gbps, exact ? "true" : "false", tell ? "type and states told, no validation" : "default",
      list(encode).c_str(), list(by_finding).c_str(), list(by_telling).c_str(), told_good ? "true" : "false");
  std::fflush(stdout);
  return exact;
}

std::vector<size_t> numbers(const char* text) {
  std::vector<size_t> all;
  std::istringstream items(text);
  for (std::string item; std::getline(items, item, ',');) all.push_back(std::stoull(item));
  return all;
}

}  // namespace

int main(int argc, char** argv) {
  must(argc == 5, "arguments", "ROUNDS VALUES,... CHUNK_BYTES,... HISTOGRAM_REDUCTION,...", __LINE__);
  nvcompProperties_t properties;
  NVCOMP(nvcompGetProperties(&properties));
  char version[32];
  std::snprintf(version, sizeof version, "%u.%u.%u", properties.version / 1000, properties.version % 1000 / 100,
                properties.version % 100);

  Clock clock(std::atoi(argv[1]));
  bool exact = true;
  for (size_t values : numbers(argv[2])) {
    must(values > 0 && values % 2 == 0, "values", "an even number, please", __LINE__);
    std::fprintf(stderr, "%zu values: drawing, copying\n", values);
    Buffer<uint16_t> input(values);
    draw<<<blocks(values / 2), 256>>>(reinterpret_cast<__nv_bfloat162*>(input.data), values / 2, 0.02f);
    CUDA(cudaGetLastError());
    double copy_gbps;
    {
      Buffer<uint16_t> target(values);
      const double us = median(clock.time(
          [&] { CUDA(cudaMemcpyAsync(target.data, input.data, 2 * values, cudaMemcpyDeviceToDevice, 0)); }));
      copy_gbps = 4.0 * values / us * 1e-3;
    }
    for (size_t chunk : numbers(argv[3])) {
      for (size_t reduction : numbers(argv[4])) {
        std::fprintf(stderr, "%zu values: chunks of %zu bytes, histogram reduced by 2^%zu\n", values, chunk, reduction);
        exact &= measure(clock, version, input, chunk, int(reduction), copy_gbps);
      }
    }
  }
  return exact ? 0 : 1;
}
