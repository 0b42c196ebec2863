#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes a folder that runs from any place on another x86-64 Linux, and packs it (docs/bundle.md): the program, the GPU plugin,
# the tests labelled gpu, Open MPI, and every library they need but the C and C++ ones and CUDA's, which are the machine's.
#
#   scripts/make-bundle.sh BUILD [FOLDER]     BUILD: a build folder in which bundle_contents is built; FOLDER: where the
#                                             bundle goes; default: BUILD/bundle
#
# Needs patchelf and the Open MPI 4 that the program was built with. What is bundled keeps its licence: licences/.
set -euo pipefail
build=$(realpath -- "${1:?usage: scripts/make-bundle.sh BUILD [FOLDER]}")
output=$(realpath -m -- "${2:-$build/bundle}")
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export LC_ALL=C

largest_mib=60
fail() {
    echo "make-bundle: $1" >&2
    exit 2
}

cached() { sed -n "s/^$1:[A-Z]*=//p" "$build/CMakeCache.txt"; }
[[ -e $build/CMakeCache.txt ]] || fail "$build is no build folder"
version=$(cached CMAKE_PROJECT_VERSION)
name=llampi-$version-$(uname -m)
root=$output/$name

# ---- what it is made from ------------------------------------------------------------------------------------------

command -v patchelf >/dev/null || fail "there is no patchelf (Debian: apt-get install patchelf)"
mpirun=$(cached MPIEXEC_EXECUTABLE)
ompi_info=$(dirname -- "$mpirun")/ompi_info
[[ $("$ompi_info" --version 2>/dev/null) == "Open MPI v4."* ]] ||
    fail "bundles are made with Open MPI 4 and its ompi_info; this build uses $mpirun"
mpi_folder() { "$ompi_info" --parsable --path "$1" | sed -n "s/^path:$1://p" | head -n 1; }

# ---- programs, plugin, tests; configurations and job scripts, by name (cmake/ShippedFiles.cmake) --------------------

rm -rf "$root"
mkdir -p "$root"/{bin,lib/openmpi,lib/fallback,share/openmpi,etc,licences,scripts,tests/gpu,bench}
cmake --install "$build" --component bundle --prefix "$root" >/dev/null
[[ -x $root/libexec/llampi && -x $root/jobscripts/slurm.sh ]] || fail "$build has no program, or an older one; build the target bundle_contents first"

cp -R LICENSE README.md CHANGELOG.md docs "$root/"
cp -R tests/oracle "$root/tests/"
rm -rf "$root"/tests/oracle/__pycache__
cp tests/gpu/several_ranks.sh "$root/tests/gpu/"
for script in bench/*.py bench/*.sh; do
    if [[ -e $script ]]; then cp "$script" "$root/bench/"; fi
done
cp scripts/mpi-env.sh scripts/run-gpu-tests.sh scripts/bundle/cuda-libraries.sh "$root/scripts/"
cp scripts/bundle/env.sh scripts/bundle/run-gpu-tests "$root/"

starter() { # program: a file in bin/ that starts it with its surroundings
    cat >"$root/bin/$1" <<END
#!/usr/bin/env bash
# Starts $1 of this bundle, also through a symbolic link.
here=\$(dirname -- "\$(readlink -f -- "\${BASH_SOURCE[0]}")")
source "\$here/../env.sh"
exec -a $1 "\$here/../libexec/$1" "\$@"
END
    chmod +x "$root/bin/$1"
}
starter llampi
starter mpirun
starter orted

# ---- Open MPI and PMIx ---------------------------------------------------------------------------------------------

cp -L "$mpirun" "$root/libexec/mpirun"
cp -L "$(mpi_folder bindir)/orted" "$root/libexec/orted"
for plugin in "$(mpi_folder pkglibdir)"/mca_*.so; do
    case $(basename "$plugin" .so) in
        *_ofi | *_openib | *_ucx | *_psm | *_psm2 | *_usnic | *_portals4) ;;  # fabrics, whose libraries are the machine's
        mca_atomic_* | mca_memheap_* | mca_scoll_* | mca_spml_* | mca_sshmem_*) ;; # OpenSHMEM
        *_monitoring | *_cuda | mca_ras_simulator | mca_*_flux) ;;
        *) cp "$plugin" "$root/lib/openmpi/" ;;
    esac
done
cp "$(mpi_folder pkgdatadir)"/help-*.txt "$root/share/openmpi/"
cat >"$root/etc/openmpi-mca-params.conf" <<'END'
# A full disk is an error and not a hang, and collective writes are faster.
io = romio321
END
: >"$root/etc/openmpi-default-hostfile"

# ---- every library that these need ---------------------------------------------------------------------------------

elf_files() {
    find "$root/libexec" "$root/lib" -type f ! -path '*/fallback/*' -print0 | while IFS= read -r -d '' file; do
        if [[ $(head -c 4 -- "$file" | tail -c 3) == ELF ]]; then printf '%s\n' "$file"; fi
    done
}
host_library() { # of the C library; or the C++ library, of which lib/fallback has a copy; or CUDA's
    case $1 in
        ld-linux*.so.* | linux-vdso.so.* | libc.so.* | libm.so.* | libdl.so.* | libpthread.so.* | librt.so.* | \
            libresolv.so.* | libutil.so.* | libanl.so.* | libnsl.so.* | libstdc++.so.* | libgcc_s.so.*) return 0 ;;
        libcuda.so.* | libcudart.so.* | libcublas*.so.* | libcudnn*.so.* | libnccl.so.* | libnvrtc*.so.* | libnvJitLink.so.*)
            return 0
            ;;
    esac
    return 1
}
sources=$root/licences/sources # path of each library that is copied; becomes the list of packages
realpath -- "$mpirun" "$(mpi_folder bindir)/orted" >"$sources"
copy_libraries() { # what the files on standard input need, as the loader resolves it here
    xargs -d '\n' ldd 2>/dev/null | awk '$2 == "=>" { print $1, $3 ($3 == "not" ? " found" : "") }' | sort -u |
        while read -r soname path; do
            if host_library "$soname" || [[ -e $root/lib/$soname ]]; then continue; fi
            [[ $path == /* ]] || fail "$soname is not found here"
            cp -L "$path" "$root/lib/$soname"
            chmod 644 "$root/lib/$soname"
            realpath -- "$path" >>"$sources"
        done
}
elf_files | copy_libraries
pmix=$(grep -m 1 '/libpmix\.so' "$sources" || true)
if [[ -d $(dirname -- "$pmix")/pmix ]]; then # Open MPI with a PMIx of its own has no such folder
    cp -R "$(dirname -- "$pmix")/pmix" "$root/lib/pmix"
    if [[ -d $(dirname -- "$pmix")/../share/pmix ]]; then cp -R "$(dirname -- "$pmix")/../share/pmix" "$root/share/pmix"; fi
    elf_files | copy_libraries
fi
for soname in libstdc++.so.6 libgcc_s.so.1; do
    path=$(ldd "$root/libexec/llampi" | awk -v name="$soname" '$1 == name { print $3 }')
    cp -L "$path" "$root/lib/fallback/"
    realpath -- "$path" >>"$sources"
done

# Run paths that come before LD_LIBRARY_PATH (DT_RPATH): a cluster's modules must not change which MPI or HDF5 is loaded.
elf_files | while IFS= read -r file; do
    strip --strip-debug "$file"
    patchelf --force-rpath --set-rpath "\$ORIGIN/$(realpath --relative-to "$(dirname -- "$file")" "$root/lib")" "$file"
done

# ---- licences, and what is in it -----------------------------------------------------------------------------------

package_of() { # the Debian package of a file, also where /lib is a link to /usr/lib
    { dpkg -S "$1" || dpkg -S "${1#/usr}"; } 2>/dev/null | sed 's/:.*//' | head -n 1
}
built_in="libgtest-dev libgmock-dev nlohmann-json3-dev libfmt-dev" # headers and static libraries inside the programs
packages=$(
    if command -v dpkg >/dev/null; then
        sort -u "$sources" | while IFS= read -r path; do package_of "$path"; done
        echo "libopenmpi3 openmpi-bin $built_in" | tr ' ' '\n'
    fi | sort -u
)
for package in $packages; do
    if [[ -e /usr/share/doc/$package/copyright ]]; then
        cp -L "/usr/share/doc/$package/copyright" "$root/licences/$package"
    fi
done
for license in "$build"/cudnn-frontend/LICENSE*; do
    if [[ -e $license ]]; then cp "$license" "$root/licences/cudnn-frontend"; fi
done
rm "$sources"

newest_symbol() { # prefix: the highest version that the bundle asks of the machine
    elf_files | xargs -d '\n' readelf -VW 2>/dev/null | grep -o "Name: $1_[0-9.]*" | sed "s/.*_//" | sort -Vu | tail -n 1
}
plugin="no GPU plugin"
if [[ -e $root/lib/libllampi_cuda.so ]]; then plugin="GPU plugin libllampi_cuda.so"; fi
{
    echo "llampi $version ($(git describe --always --dirty --abbrev=12 --exclude='*' 2>/dev/null || echo unknown)), $plugin"
    echo "needs: x86-64 Linux, bash, glibc $(newest_symbol GLIBC) or newer; libstdc++ with GLIBCXX_$(newest_symbol GLIBCXX), else"
    echo "       lib/fallback is used; for GPUs an NVIDIA driver, and these: $(
        if [[ -e $root/lib/libllampi_cuda.so ]]; then
            readelf -dW "$root/lib/libllampi_cuda.so" | sed -n 's/.*(NEEDED).*\[\(lib\(cu\|nccl\)[^]]*\)\]/\1/p' | paste -sd ' '
        fi
    )"
    echo "licences of what is bundled: licences/; llampi itself: LICENSE; the GPU plugin holds NVIDIA's cudart_static"
    for package in $packages; do
        dpkg-query -W -f '  ${Package} ${Version}\n' "$package" 2>/dev/null || true
    done
} >"$root/MANIFEST"

# ---- pack ----------------------------------------------------------------------------------------------------------

archive=$output/$name.tar.gz
tar --sort=name --owner=0 --group=0 --numeric-owner -C "$output" -cf - "$name" | gzip -9n >"$archive"
packed=$(stat -c %s "$archive")
unpacked=$(du -sb "$root" | cut -f 1)
printf '%s: %.1f MiB, unpacked %.1f MiB, %s\n' "$archive" "$((packed * 10 / 1048576))e-1" "$((unpacked * 10 / 1048576))e-1" \
    "$plugin"
((packed <= largest_mib * 1048576)) || fail "larger than $largest_mib MiB"
