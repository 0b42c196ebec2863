// SPDX-License-Identifier: Apache-2.0
#include "llampi/device/gemm_library.hpp"
#include "device/cpu/library_product.hpp"

#include "llampi/core/error.hpp"

#if defined(LLAMPI_GEMM_ONEDNN)
#include <oneapi/dnnl/dnnl.h>
#else
#include <dlfcn.h>
#if __has_include(<cblas.h>)
#include <cblas.h>
#else
#include <mkl_cblas.h>
#endif

#include <climits>
#include <string_view>
#endif

namespace llampi::device {

#if defined(LLAMPI_GEMM_ONEDNN)

int library_sgemm(const Product& p) noexcept {
  return dnnl_sgemm(p.transpose_a ? 'T' : 'N', p.transpose_b ? 'T' : 'N', p.m, p.n, p.k, p.alpha, p.a,
                    p.stride_a, p.b, p.stride_b, p.beta, p.c, p.stride_c);
}

GemmLibrary inspect_gemm_library() {
  const dnnl_version_t* version = dnnl_version();
  GemmLibrary library;
  library.name = fmt::format("oneDNN {}.{}.{}", version->major, version->minor, version->patch);
  // The values are bit sets that contain those of the lesser instruction sets.
  const int isa = dnnl_get_effective_cpu_isa();
  const auto has = [isa](int level) { return (isa & level) == level; };
#if defined(__x86_64__)
  library.level = has(dnnl_cpu_isa_avx512_core) ? CpuLevel::avx512
                  : has(dnnl_cpu_isa_avx2)      ? CpuLevel::avx2
                                                : CpuLevel::generic;
  library.core = to_string(library.level);
#endif
  library.remedy = "unset DNNL_MAX_CPU_ISA and ONEDNN_MAX_CPU_ISA";
  return library;
}

void make_gemm_library_serial() {
  // OpenMP: parallel.hpp's regions leave it one thread. A pool of another kind would compete with ours.
  const unsigned runtime = dnnl_version()->cpu_runtime;
  if (runtime != DNNL_RUNTIME_OMP && runtime != DNNL_RUNTIME_SEQ) {
    throw_user_error(
        "This oneDNN has its own kind of threads (runtime {}); build llampi with a oneDNN for OpenMP, or "
        "with -DLLAMPI_GEMM=cblas.",
        runtime);
  }
}

#else

namespace {

/// The function `name` of whichever library is loaded, or null: which CBLAS it is shows at run time only.
template <class Function>
Function* find(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}

/// OpenBLAS's names of its kernels (driver/others/dynamic.c there); those not listed lack FMA or AVX2.
CpuLevel openblas_level(std::string_view core) {
  for (const std::string_view name : {"SkylakeX", "Cooperlake", "Sapphirerapids"}) {
    if (core == name) return CpuLevel::avx512;
  }
  return core == "Haswell" || core == "Zen" ? CpuLevel::avx2 : CpuLevel::generic;
}

}  // namespace

int library_sgemm(const Product& p) noexcept {
  for (const std::int64_t size : {p.m, p.n, p.k, p.stride_a, p.stride_b, p.stride_c}) {
    if (size > INT_MAX) return -1;
  }
  const auto integer = [](std::int64_t value) { return static_cast<int>(value); };
  cblas_sgemm(CblasRowMajor, p.transpose_a ? CblasTrans : CblasNoTrans,
              p.transpose_b ? CblasTrans : CblasNoTrans, integer(p.m), integer(p.n), integer(p.k), p.alpha,
              p.a, integer(p.stride_a), p.b, integer(p.stride_b), p.beta, p.c, integer(p.stride_c));
  return 0;
}

GemmLibrary inspect_gemm_library() {
  GemmLibrary library;
  if (auto* config = find<char*()>("openblas_get_config")) {
    const std::string_view text = config();  // "OpenBLAS 0.3.21 NO_LAPACKE ..."
    library.name = text.substr(0, text.find(' ', text.find(' ') + 1));
    if (auto* core = find<char*()>("openblas_get_corename")) library.core = core();
#if defined(__x86_64__)
    library.level = openblas_level(library.core);
#endif
    library.remedy = "set OPENBLAS_CORETYPE in the environment, to HASWELL for AVX2 or SKYLAKEX for AVX-512";
  } else if (auto* mkl = find<void(char*, int)>("MKL_Get_Version_String")) {
    char text[200] = {};
    mkl(text, sizeof text);
    library.name = text;
  } else if (auto* blis = find<const char*()>("bli_info_get_version_str")) {
    library.name = std::string("BLIS ") + blis();
  } else {
    library.name = "CBLAS";
  }
  return library;
}

void make_gemm_library_serial() {
  if (auto* openblas = find<void(int)>("openblas_set_num_threads")) openblas(1);
  if (auto* mkl = find<void(int)>("MKL_Set_Num_Threads")) mkl(1);
  if (auto* blis = find<void(std::int64_t)>("bli_thread_set_num_threads")) blis(1);
}

#endif

}  // namespace llampi::device
