#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# shipped_files_test.sh SOURCE CMAKE: what cmake/ShippedFiles.cmake installs and bundles are the files of input/ and jobscripts/ that belong
# to llampi, all of them, and none that a user keeps there. Exit status 77: this is not a checkout, so those files are not known.
set -euo pipefail
source_dir=$1 cmake=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$source_dir"
if [[ ! -e .git ]] || ! git ls-files input jobscripts | sort >"$folder/files"; then
    echo "shipped_files_test: skipped, $source_dir is not a checkout that git can list"
    exit 77
fi
mkdir "$folder/tree"
xargs -d '\n' cp --parents -t "$folder/tree" <"$folder/files"
touch "$folder/tree/"{jobscripts/sites/mine.env,jobscripts/token,input/train.h5,input/llama3-8b/model.safetensors}
{
    echo 'cmake_minimum_required(VERSION 3.25)'
    echo 'project(shipped LANGUAGES NONE)'
    echo 'set(CMAKE_INSTALL_DATADIR share)'
    echo "include($source_dir/cmake/ShippedFiles.cmake)"
} >"$folder/tree/CMakeLists.txt"
"$cmake" -S "$folder/tree" -B "$folder/build" >/dev/null
"$cmake" --install "$folder/build" --prefix "$folder/installed" >/dev/null
"$cmake" --install "$folder/build" --prefix "$folder/bundled" --component bundle >/dev/null
for place in installed/share/llampi bundled; do
    (cd "$folder/$place" && find . -type f | sed 's,^\./,,' | sort) >"$folder/found"
    diff "$folder/files" "$folder/found" || {
        echo "shipped_files_test: cmake/ShippedFiles.cmake must name the files of git (<), and $place has others (>)" >&2
        exit 1
    }
    while read -r file; do
        if [[ -x $file && ! -x $folder/$place/$file ]]; then echo "shipped_files_test: $place/$file cannot be executed" >&2 && exit 1; fi
    done <"$folder/files"
done

# git does not offer a user's site files, but those of llampi.
git check-ignore -q --no-index jobscripts/sites/mine.env || { echo "shipped_files_test: git does not ignore jobscripts/sites/mine.env" >&2 && exit 1; }
if git check-ignore --no-index jobscripts/sites/*.env | grep -xFf "$folder/files"; then echo "shipped_files_test: git ignores these" >&2 && exit 1; fi
