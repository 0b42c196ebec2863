# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Sourced: finds the CUDA libraries that libllampi_cuda.so needs, wherever a machine keeps them: where the loader looks
# anyway, a CUDA toolkit, or NVIDIA's Python packages (as PyTorch brings them: site-packages/nvidia/*/lib).
#
#   cuda_library_path PLUGIN     prints the folders to add to LD_LIBRARY_PATH, separated by colons; none if all is found
#   add_cuda_libraries PLUGIN    adds them

# What a library still lacks, one name per line. The loader itself is asked, so that its own choice comes first.
missing_libraries() { # library, more folders
    LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$2 ldd "$1" 2>/dev/null |
        awk '/not found/ && !seen[$1]++ { print $1 }'
}

# Folders that may hold CUDA libraries, the most deliberate choice first.
cuda_library_places() {
    local prefix
    for prefix in ${CUDA_HOME:+"$CUDA_HOME"} ${CUDA_PATH:+"$CUDA_PATH"} ${CUDA_ROOT:+"$CUDA_ROOT"}; do
        printf '%s\n' "$prefix"/lib64 "$prefix"/lib "$prefix"/targets/x86_64-linux/lib
    done
    for prefix in ${VIRTUAL_ENV:+"$VIRTUAL_ENV"} ${CONDA_PREFIX:+"$CONDA_PREFIX"}; do
        printf '%s\n' "$prefix"/lib/python3*/site-packages/nvidia/*/lib
    done
    printf '%s\n' /usr/local/cuda/lib64 /usr/local/cuda/lib /usr/local/cuda-*/lib64 /opt/cuda/lib64 \
        ~/.local/lib/python3*/site-packages/nvidia/*/lib \
        /usr/local/lib/python3*/{site,dist}-packages/nvidia/*/lib /usr/lib/python3*/{site,dist}-packages/nvidia/*/lib
}

# The same in all folders that Python looks into; separate because asking it takes a moment.
python_library_places() {
    local folder
    command -v python3 >/dev/null || return 0
    python3 -c 'import sys; print("\n".join(path for path in sys.path if path))' 2>/dev/null |
        while IFS= read -r folder; do printf '%s\n' "$folder"/nvidia/*/lib; done
}

cuda_library_path() {
    local plugin=$1 found='' before ask name folder
    local -a places
    for ask in cuda_library_places python_library_places; do
        if [[ -z $(missing_libraries "$plugin" "$found") ]]; then break; fi
        mapfile -t places < <("$ask")
        before=none
        while [[ $found != "$before" ]]; do # what is found may itself need something
            before=$found
            for name in $(missing_libraries "$plugin" "$found"); do
                for folder in "${places[@]}"; do
                    if [[ -e $folder/$name ]]; then
                        found+=${found:+:}$folder
                        break
                    fi
                done
            done
        done
    done
    printf '%s\n' "$found"
}

add_cuda_libraries() {
    local folders
    if [[ ! -e $1 ]]; then return 0; fi # built without GPU support
    folders=$(cuda_library_path "$1")
    if [[ -n $folders ]]; then export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folders; fi
}
