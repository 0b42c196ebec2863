// SPDX-License-Identifier: Apache-2.0
// A libcuda.so.1 for tests of what cuDNN builds for GPUs that are not here: the kernels that it compiles can
// be loaded, and not run. It has what cuDNN 9.19 and NVRTC 13 look up; a version that looks for more does not
// take it for a driver.

namespace {

constexpr int kSuccess = 0, kStubLibrary = 34;  // CUDA_ERROR_STUB_LIBRARY, as the toolkit's stub returns

int give(void** handle) {
  static char something;
  *handle = &something;
  return kSuccess;
}

}  // namespace

extern "C" {

int cuLibraryLoadData(void** library) { return give(library); }
int cuLibraryUnload() { return kSuccess; }
int cuLibraryGetKernel(void** kernel) { return give(kernel); }
int cuKernelGetFunction(void** function) { return give(function); }

int not_here() { return kStubLibrary; }
#define NOT_HERE(name) int name() __attribute__((alias("not_here")))
NOT_HERE(cuCtxGetCurrent);
NOT_HERE(cuCtxGetDevice);
NOT_HERE(cuCtxGetLimit);
NOT_HERE(cuCtxPopCurrent);
NOT_HERE(cuCtxPushCurrent);
NOT_HERE(cuDeviceGet);
NOT_HERE(cuDeviceGetAttribute);
NOT_HERE(cuDeviceGetCount);
NOT_HERE(cuDevicePrimaryCtxRelease);
NOT_HERE(cuDevicePrimaryCtxReset);
NOT_HERE(cuDevicePrimaryCtxRetain);
NOT_HERE(cuDriverGetVersion);
NOT_HERE(cuFuncGetAttribute);
NOT_HERE(cuFuncSetAttribute);
NOT_HERE(cuGetErrorName);
NOT_HERE(cuGetErrorString);
NOT_HERE(cuGetExportTable);
NOT_HERE(cuInit);
NOT_HERE(cuKernelGetAttribute);
NOT_HERE(cuKernelSetAttribute);
NOT_HERE(cuLaunchCooperativeKernel);
NOT_HERE(cuLaunchKernel);
NOT_HERE(cuLaunchKernelEx);
NOT_HERE(cuLibraryGetGlobal);
NOT_HERE(cuLibraryGetModule);
NOT_HERE(cuLibraryLoadFromFile);
NOT_HERE(cuLinkAddData);
NOT_HERE(cuLinkAddData_v2);
NOT_HERE(cuLinkAddFile_v2);
NOT_HERE(cuLinkComplete);
NOT_HERE(cuLinkCreate);
NOT_HERE(cuLinkCreate_v2);
NOT_HERE(cuLinkDestroy);
NOT_HERE(cuMemcpyDtoH_v2);
NOT_HERE(cuModuleGetFunction);
NOT_HERE(cuModuleGetGlobal_v2);
NOT_HERE(cuModuleLoadData);
NOT_HERE(cuModuleLoadDataEx);
NOT_HERE(cuModuleLoadFatBinary);
NOT_HERE(cuModuleUnload);
NOT_HERE(cuOccupancyMaxActiveBlocksPerMultiprocessor);
NOT_HERE(cuOccupancyMaxPotentialClusterSize);
NOT_HERE(cuStreamGetCtx);
NOT_HERE(cuStreamSynchronize);
NOT_HERE(cuTensorMapEncodeTiled);

}  // extern "C"
