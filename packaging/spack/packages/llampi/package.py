# SPDX-License-Identifier: Apache-2.0
"""Spack's recipe of llampi; docs/install.md says how it is used. Tested with Open MPI."""
from spack_repo.builtin.build_systems.cmake import CMakePackage
from spack_repo.builtin.build_systems.cuda import CudaPackage

from spack.package import *


class Llampi(CMakePackage, CudaPackage):
    """Llama over MPI: fully sharded training (FSDP) of language models in one C++ program, on CPUs and NVIDIA GPUs."""

    license("Apache-2.0")

    # Of a checkout: spack develop --path FOLDER llampi@main. A mirror of one's own: git="https://..." in this line.
    version("main", branch="main")

    variant("gemm", default="onednn", values=("onednn", "cblas"), multi=False, description="Matrix products on CPUs")
    variant("cudnn", default=False, when="+cuda", description="Attention by cuDNN; its C++ frontend is found by the "
            "variable CUDNN_FRONTEND_ROOT while llampi is built")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("cmake@3.25:", type="build")

    depends_on("openmpi@4.1:")
    depends_on("hdf5+mpi")
    depends_on("hwloc@2.1:")
    depends_on("boost@1.71:+program_options")
    depends_on("nlohmann-json")
    depends_on("fmt")
    depends_on("zlib-api")
    depends_on("libdeflate")
    depends_on("zstd")
    depends_on("pcre2@10.40:")
    depends_on("utf8proc")
    depends_on("onednn", when="gemm=onednn")
    depends_on("blas", when="gemm=cblas")
    with when("+cuda"):
        depends_on("cuda@12:")
        depends_on("nccl@2.27:")
        depends_on("cudnn@9:", when="+cudnn")

    conflicts("%gcc@:11", msg="llampi is C++20: g++ 12, clang++ 14 or newer")
    conflicts("%clang@:13", msg="llampi is C++20: g++ 12, clang++ 14 or newer")
    conflicts("cuda_arch=none", when="+cuda", msg="say for which GPUs: cuda_arch=80,90")

    def cmake_args(self):
        args = [
            self.define("LLAMPI_TESTS", False),
            self.define("LLAMPI_BENCH", False),
            self.define_from_variant("LLAMPI_GEMM", "gemm"),
            self.define_from_variant("LLAMPI_CUDA", "cuda"),
        ]
        if self.spec.satisfies("+cuda"):
            args.append(self.define("LLAMPI_CUDA_ARCHITECTURES", self.spec.variants["cuda_arch"].value))
            args.append(self.define("NCCL_ROOT", self.spec["nccl"].prefix))
        if self.spec.satisfies("+cudnn"):
            args.append(self.define("CUDNN_ROOT", self.spec["cudnn"].prefix))
        return args
