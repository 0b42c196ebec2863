# SPDX-License-Identifier: Apache-2.0
"""The structure of the source tree, read off its include lines (docs/design.md, "The parts").

    structure.py ROOT              checks the tree; prints what is wrong, one line each, and exits 1
    structure.py ROOT --plant      checks that planted mistakes are found: each is made in a copy of the tree

What is checked:
  order      a part includes public headers of itself and of parts above it only
  private    src/PART/... is included by PART alone
  public     include/llampi holds no header that includes one of MPI, hwloc, CUDA, NCCL, cuDNN or HDF5, or a private header
  circle     modules (a header with the source of the same name) do not include each other in a circle
  outside    src/ and include/ include nothing of tests/, bench/, emulator/ or examples/
  namespace  what stands in a part is in llampi::PART; in core, in llampi
  includes   every quoted include of src/ and include/ is a file that is there
  licence    every source file has an SPDX line at its top (scripts/add-spdx.py adds it)
  tests      a source with cases is called x_test.cpp, and only such a one; suites and cases are CamelCase, and cases say something; tests
             are called after their folder; their namespace is llampi::test (TESTING.md, "Names")
  named      files that CONTRIBUTING.md, TESTING.md and docs/library.md name are there
"""
import pathlib
import re
import shutil
import sys
import tempfile

PARTS = ("core io device comm health model optim fsdp tokenizer data checkpoint selfcheck infer train plan measure report cli").split()
VENDOR = re.compile(r"^(mpi|hwloc|hdf5|H5\w*|cuda\w*|cublas\w*|cudnn\w*|nccl\w*|nvrtc\w*|nvml)\.h$")
INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]')
NAMESPACE = re.compile(r"^namespace ((?:\w+)(?:::\w+)*) \{", re.M)
SPDX = "SPDX-License-Identifier: Apache-2.0"
SOURCE_FOLDERS = "include src tests bench emulator examples cmake scripts jobscripts packaging .ci".split()
SOURCE_SUFFIXES = {".hpp", ".cpp", ".cu", ".cuh", ".c", ".h", ".py", ".sh", ".cmake"}
DOCUMENTS = ("CONTRIBUTING.md", "TESTING.md", "docs/library.md")
TEST_CASE = re.compile(r"^(?:TYPED_)?TEST(?:_F|_P)?\((\w+), (\w+)\)", re.M)
TEST_NAME = re.compile(r"(?:DISABLED_)?[A-Z][A-Za-z0-9]*")
SAYS_NOTHING = re.compile(r"(Works|Basic|Simple|Ok|Test)\d*")
TEST_TARGET = re.compile(r"^\s*(?:llampi_test\(|add_test\(NAME )(\w[\w${}]*)", re.M)
TEST_FOLDERS = ("unit", "ranks", "gpu", "system")
SUFFIXES = {".hpp", ".cpp", ".cu", ".cuh"}


class Source:
    """A file: `name` is how it is included, `part` the part it belongs to."""

    def __init__(self, root, path):
        self.place = path.relative_to(root).as_posix()
        self.public = self.place.startswith("include/")
        self.name = re.sub(r"^(include|src)/", "", self.place)
        self.part = self.name.split("/")[1 if self.public else 0]
        if self.name == "llampi/version.hpp":
            self.part = "core"
        self.module = re.sub(r"^llampi/", "", self.name).rsplit(".", 1)[0]
        text = path.read_text(encoding="utf-8")
        self.includes = [(line, m[1], m[2]) for line, m in
                         ((i, INCLUDE.match(l)) for i, l in enumerate(text.splitlines(), 1)) if m]
        self.namespaces = {m[1] for m in (NAMESPACE.match(l) for l in text.splitlines()) if m}


def read(root):
    return [Source(root, path) for folder in ("include", "src")
            for path in sorted((root / folder).rglob("*")) if path.suffix in SUFFIXES]


def faults_of_includes(sources):
    names = {source.name: source for source in sources}
    for source in sources:
        for line, bracket, target in source.includes:
            where = f"{source.place}:{line}"
            if source.public and bracket == "<" and VENDOR.match(target.split("/")[-1]):
                yield f"public: {where} includes <{target}>"
            if bracket == "<":
                continue
            if re.match(r"(\.\./)*(tests|bench|emulator|examples)/", target):
                yield f"outside: {where} includes {target}"
                continue
            if target.startswith("../") or target not in names:
                if not target.startswith("llampi_"):  # made by the build
                    yield f"includes: {where}: {target} is not the name of a file"
                continue
            used = names[target]
            if not used.public and used.part != source.part:
                yield f"private: {where} includes {target}, which is private to {used.part}"
            elif not used.public and source.public:
                yield f"public: {where} includes {target}, which is private"
            elif PARTS.index(used.part) > PARTS.index(source.part):
                yield f"order: {where} includes {target}, but {used.part} stands below {source.part}"


def faults_of_namespaces(sources):
    for source in sources:
        own = "llampi" if source.part == "core" else f"llampi::{source.part}"
        for name in sorted(source.namespaces):
            if name.startswith("llampi") and name != own and not name.startswith(own + "::"):
                yield f"namespace: {source.place} opens {name}; its part has {own}"


def circles(sources):
    """Strongly connected modules, by Tarjan's algorithm (1972)."""
    names = {source.name: source.module for source in sources}
    graph = {source.module: set() for source in sources}
    for source in sources:
        graph[source.module] |= {names[t] for _, b, t in source.includes if b == '"' and t in names} - {source.module}
    index, low, stack, found = {}, {}, [], []

    def visit(module):
        index[module] = low[module] = len(index)
        stack.append(module)
        for used in sorted(graph[module]):
            if used not in index:
                visit(used)
                low[module] = min(low[module], low[used])
            elif used in stack:
                low[module] = min(low[module], index[used])
        if low[module] == index[module]:
            members = stack[stack.index(module):]
            del stack[stack.index(module):]
            if len(members) > 1:
                found.append(sorted(members))

    sys.setrecursionlimit(10000)
    for module in sorted(graph):
        if module not in index:
            visit(module)
    return found


def needs_spdx(path):
    if path.suffix in SOURCE_SUFFIXES or path.name in ("CMakeLists.txt", "Makefile"):
        return True
    return path.suffix == "" and path.read_bytes()[:2] == b"#!"


def spdx_line(path):
    return ("// " if path.suffix in SUFFIXES | {".c", ".h"} else "# ") + SPDX


def place_of_spdx(lines):
    return 1 if lines and lines[0].startswith("#!") else 0


def without_spdx(root):
    """Source files of this tree; not what a build or Python has put beside them."""
    paths = [path for folder in SOURCE_FOLDERS for path in sorted((root / folder).rglob("*"))]
    for path in paths + [root / "CMakeLists.txt", root / "Makefile"]:
        if path.is_file() and not path.is_symlink() and needs_spdx(path) and "__pycache__" not in path.parts:
            lines = path.read_text(encoding="utf-8").splitlines()
            if lines[place_of_spdx(lines):][:1] != [spdx_line(path)]:
                yield path


def faults_of_documents(root):
    """Names in backticks that look like files. `x.hpp` after `a/b.hpp` may stand for a neighbour of it."""
    for document in DOCUMENTS:
        if not (root / document).exists():
            continue
        for number, line in enumerate((root / document).read_text(encoding="utf-8").splitlines(), 1):
            folder = ""
            for name in re.findall(r"`([\w./-]+\.(?:hpp|cpp|cu|cuh|py|sh|cmake|md|svg|txt))`", line):
                places = [root / name, root / "include" / name, root / folder / name]
                stands_for_any = re.search(r"NAME|\.\.\.|^x_", name)
                if not stands_for_any and not any(place.exists() for place in places):
                    yield f"named: {document}:{number} names {name}, which is not there"
                if "/" in name:
                    folder = ("include/" if name.startswith("llampi/") else "") + name.rsplit("/", 1)[0]


def faults_of_tests(root):
    tests = root / "tests"
    for folder in ("unit", "ranks"):
        for place in sorted((tests / folder).iterdir()):
            if place.is_dir() and place.name not in PARTS:
                yield f"tests: tests/{folder}/{place.name} is called after no part"
    for path in sorted(p for folder in TEST_FOLDERS for p in (tests / folder).rglob("*.[ch]pp")):
        place, text = path.relative_to(root), path.read_text(encoding="utf-8")
        cases = TEST_CASE.findall(text)
        if bool(cases) != path.name.endswith("_test.cpp"):
            yield f"tests: {place} holds {len(cases)} cases"
        for suite, case in cases:
            if not TEST_NAME.fullmatch(suite) or not TEST_NAME.fullmatch(case) or SAYS_NOTHING.fullmatch(case):
                yield f"tests: {place}: the name {suite}.{case} does not say what holds"
        for name in NAMESPACE.findall(text) if cases else ():
            if name.startswith("llampi") and not re.match(r"llampi::test\b", name):
                yield f"tests: {place} opens {name}"
    for path in sorted(p for folder in TEST_FOLDERS for p in (tests / folder).rglob("CMakeLists.txt")):
        folder = path.parent.relative_to(tests)
        for name in TEST_TARGET.findall(path.read_text(encoding="utf-8")):
            if not name.startswith("_".join(folder.parts)) and not name.startswith("${"):
                yield f"tests: {path.relative_to(root)} calls a test {name}"


def faults(root):
    sources = read(root)
    if len(sources) < 100:
        yield f"includes: only {len(sources)} files in {root}"
    for source in sources:
        if source.part not in PARTS:
            yield f"order: {source.place} is in no part"
            return
    yield from faults_of_includes(sources)
    yield from faults_of_namespaces(sources)
    for members in circles(sources):
        yield f"circle: {' '.join(members)}"
    for path in without_spdx(root):
        yield f"licence: {path.relative_to(root)} has no line \"{spdx_line(path)}\""
    yield from faults_of_tests(root)
    yield from faults_of_documents(root)


PLANTED = [  # kind of fault, file that gets a line, the line
    ("order", "src/device/device.cpp", '#include "llampi/train/train.hpp"'),
    ("order", "include/llampi/core/text.hpp", '#include "llampi/io/posix_file.hpp"'),
    ("private", "src/train/train.cpp", '#include "checkpoint/save.hpp"'),
    ("private", "src/checkpoint/save.cpp", '#include "comm/mpi/handles.hpp"'),
    ("public", "include/llampi/io/hdf5.hpp", "#include <hdf5.h>"),
    ("public", "include/llampi/comm/comm.hpp", "#include <mpi.h>"),
    ("circle", "include/llampi/model/model.hpp", '#include "llampi/model/llama.hpp"'),
    ("circle", "src/core/text.cpp", '#include "llampi/core/philox.hpp"\n'),
    ("outside", "src/device/device.cpp", '#include "emulator/kernels.hpp"'),
    ("outside", "src/device/device.cpp", '#include "tests/support/oracle.hpp"'),
    ("includes", "src/device/device.cpp", '#include "../io/spool.hpp"'),
    ("namespace", "src/data/sampler.cpp", "namespace llampi::train {"),
    ("licence", "src/data/sampler.cpp", "// The licence is on the second line now."),
    ("tests", "tests/unit/core/text_test.cpp", "TEST(Text, Works) {"),
    ("tests", "tests/unit/core/text_test.cpp", "TEST(text, IsCut) {"),
    ("tests", "tests/unit/core/text_test.cpp", "#include <string>\nnamespace llampi::core {"),
    ("tests", "tests/unit/fsdp/lists.cpp", "TEST(Lists, AreLists) {"),
    ("tests", "tests/ranks/CMakeLists.txt", "llampi_test(comm SOURCES a_test.cpp)"),
]


def plant(root):
    """Names of planted mistakes that were not found."""
    missed = []
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder)
        for part in ("include", "src", *(f"tests/{folder}" for folder in TEST_FOLDERS)):
            shutil.copytree(root / part, copy / part)
        for kind, place, line in PLANTED:
            path = copy / place
            whole = path.read_text(encoding="utf-8")
            path.write_text(line + "\n" + whole, encoding="utf-8")
            other = None
            if kind == "circle" and "philox" in line:  # one that needs two planted lines
                other = copy / "include/llampi/core/philox.hpp"
                second = other.read_text(encoding="utf-8")
                other.write_text('#include "llampi/core/text.hpp"\n' + second, encoding="utf-8")
            found = list(faults(copy))
            if not any(fault.startswith(kind + ":") for fault in found):
                missed.append(f"{line!r} in {place}: expected a fault of kind {kind}, found {found}")
            path.write_text(whole, encoding="utf-8")
            if other:
                other.write_text(second, encoding="utf-8")
    return missed


def main():
    root = pathlib.Path(sys.argv[1])
    found = list(faults(root))
    if not found and "--plant" in sys.argv[2:]:
        found = plant(root)
    print("\n".join(found) if found else "no faults")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
