// SPDX-License-Identifier: Apache-2.0
// Preloaded into a run (LD_PRELOAD): on rank 1 no thread can be started any more once the file NO_THREADS_AFTER is there; or the one with
// the number NO_THREAD_AT, from 1, cannot.
#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>

extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*),
                              void* argument) {
  const char* const rank = std::getenv("OMPI_COMM_WORLD_RANK");
  const char *const file = std::getenv("NO_THREADS_AFTER"), *const number = std::getenv("NO_THREAD_AT");
  static std::atomic<int> created = 0;
  if (rank != nullptr && std::strcmp(rank, "1") == 0) {
    if (file != nullptr && access(file, F_OK) == 0) return EAGAIN;
    if (++created == (number == nullptr ? 0 : std::atoi(number))) return EAGAIN;
  }
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto create = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
  return create(thread, attributes, start, argument);
}
