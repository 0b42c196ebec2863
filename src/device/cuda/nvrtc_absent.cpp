// SPDX-License-Identifier: Apache-2.0
// cuDNN's C++ frontend holds an engine of its own, for a normalisation, that compiles kernels at run time
// with NVRTC. It is never asked for here, so its calls end here: linked with NVRTC, the plugin could not be
// loaded where that library is missing. cuDNN itself loads NVRTC when it wants it; these are not exported, so
// it does not meet them.
#ifdef LLAMPI_CUDNN
#include <nvrtc.h>

#pragma GCC visibility push(hidden)
extern "C" {
nvrtcResult nvrtcCreateProgram(nvrtcProgram*, const char*, const char*, int, const char* const*,
                               const char* const*) {
  return NVRTC_ERROR_INTERNAL_ERROR;
}
nvrtcResult nvrtcDestroyProgram(nvrtcProgram*) { return NVRTC_ERROR_INTERNAL_ERROR; }
nvrtcResult nvrtcCompileProgram(nvrtcProgram, int, const char* const*) { return NVRTC_ERROR_INTERNAL_ERROR; }
nvrtcResult nvrtcGetCUBINSize(nvrtcProgram, size_t*) { return NVRTC_ERROR_INTERNAL_ERROR; }
nvrtcResult nvrtcGetCUBIN(nvrtcProgram, char*) { return NVRTC_ERROR_INTERNAL_ERROR; }
nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram, size_t*) { return NVRTC_ERROR_INTERNAL_ERROR; }
nvrtcResult nvrtcGetProgramLog(nvrtcProgram, char*) { return NVRTC_ERROR_INTERNAL_ERROR; }
}
#pragma GCC visibility pop
#endif
