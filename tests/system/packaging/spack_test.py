# SPDX-License-Identifier: Apache-2.0
"""spack_test.py SOURCE: reads Spack's recipe without Spack, and compares it with what the build asks for: what scripts/setup.sh
requires the recipe depends on, with the versions that CMake asks for; and it sets only variables that CMakeLists.txt has."""
import contextlib
import pathlib
import re
import runpy
import sys
import types

root = pathlib.Path(sys.argv[1])
depends, variants, defined = {}, set(), set()


class Recipe:
    """What CMakePackage and CudaPackage give a recipe, as far as this one uses it."""

    def define(self, name, value):
        defined.add(name)
        return f"-D{name}={value}"

    def define_from_variant(self, name, variant):
        assert variant in variants | {"cuda"}, f"{name} is of {variant}, which is no variant"
        return self.define(name, variant)


class Spec(dict):
    """Of everything: all variants on."""

    def __missing__(self, name):
        assert name in depends, f"{name} is no dependency"
        return types.SimpleNamespace(prefix="/prefix")

    variants = {"cuda_arch": types.SimpleNamespace(value=("80", "90"))}

    def satisfies(self, text):
        return text in ("+cuda", "+cudnn")


def depends_on(spec, **options):
    depends[re.match(r"[a-z0-9-]+", spec)[0]] = spec


def variant(name, **options):
    variants.add(name)


directives = {"depends_on": depends_on, "variant": variant, "when": lambda condition: contextlib.nullcontext()}
directives |= {name: lambda *arguments, **options: None for name in ("version", "conflicts", "license")}
package = types.ModuleType("spack.package")
vars(package).update(directives)
for name, contents in {"spack": {}, "spack.package": vars(package), "spack_repo": {}, "spack_repo.builtin": {},
                       "spack_repo.builtin.build_systems": {}, "spack_repo.builtin.build_systems.cmake": {"CMakePackage": Recipe},
                       "spack_repo.builtin.build_systems.cuda": {"CudaPackage": type("CudaPackage", (), {})}}.items():
    module = types.ModuleType(name)
    vars(module).update(contents)
    sys.modules[name] = module
recipe = runpy.run_path(str(root / "packaging/spack/packages/llampi/package.py"))["Llampi"]()
recipe.spec = Spec()
recipe.cmake_args()

faults = []
setup = (root / "scripts/setup.sh").read_text()
names = {"compiler": "cxx", "openmp": None, "make": None, "cmake": "cmake", "mpi": "openmpi", "hdf5": "hdf5", "boost": "boost",
         "json": "nlohmann-json", "fmt": "fmt", "zlib": "zlib-api", "deflate": "libdeflate", "pcre2": "pcre2"}
# OpenMP and make come with Spack's compilers and CMake
required = re.search(r'^wanted="([^"]+)"', setup, re.M)[1].split()
for piece in required + ["onednn"]:
    name = names.get(piece, piece)
    if name and name not in depends:
        faults.append(f"scripts/setup.sh requires {piece}, and the recipe does not depend on {name}")

versions = {"cmake": (r"cmake_minimum_required\(VERSION ([\d.]+)", "CMakeLists.txt"),
            "boost": (r"find_package\(Boost ([\d.]+)", "CMakeLists.txt"),
            "nccl": (r"find_package\(NCCL ([\d.]+)", "cmake/Cuda.cmake"),
            "pcre2": (r"PCRE2_VERSION VERSION_LESS ([\d.]+)", "cmake/Dependencies.cmake"),
            "hwloc": (r"too old; ([\d.]+) or newer", "cmake/Dependencies.cmake")}
for name, (pattern, file) in versions.items():
    version = re.search(pattern, (root / file).read_text())[1]
    if f"@{version}:" not in depends.get(name, ""):
        faults.append(f"{file} asks for {name} {version}, the recipe for {depends.get(name)}")

cmake = "".join((root / file).read_text() for file in ("CMakeLists.txt", "cmake/Cuda.cmake", "cmake/FindNCCL.cmake", "cmake/FindCUDNN.cmake"))
faults += [f"the recipe sets {name}, which CMake does not know" for name in sorted(defined) if name not in cmake]
print("\n".join(faults))
sys.exit(bool(faults))
