#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# modulefile_test.sh BUILD CMAKE: what is installed for shells and man is there, and the modulefile finds it: where it was installed,
# where the prefix was moved to, and from a copy. By Environment Modules, or by what stands in for their commands; 77 without both.
set -euo pipefail
build=$1 cmake=$2
init=/usr/share/modules/init/bash
if [[ ! -e $init ]] && ! command -v tclsh >/dev/null; then echo "there are neither Environment Modules nor tclsh" && exit 77; fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
fail() {
    echo "FAILED: $1" >&2
    exit 1
}

"$cmake" --install "$build" --prefix "$folder/here" >/dev/null
for file in man/man1/llampi.1 bash-completion/completions/llampi zsh/site-functions/_llampi fish/vendor_completions.d/llampi.fish; do
    [[ -s here/share/$file ]] || fail "there is no $file"
done
cmp <(here/bin/llampi man) here/share/man/man1/llampi.1
module_folder=share/llampi/modulefiles
version=$(basename here/$module_folder/llampi/*)
[[ $(here/bin/llampi --version | head -n 1) == "llampi $version "* ]] || fail "the module is called llampi/$version"

load() { # load MODULES: PATH, CMAKE_PREFIX_PATH and MANPATH that it sets before what was there
    if [[ -e $init ]]; then
        MANPATH=/m PATH=/usr/bin:/bin CMAKE_PREFIX_PATH=/c bash -c "source $init; module use $1; module load llampi; module is-loaded llampi/$version &&
            echo \$PATH \$CMAKE_PREFIX_PATH \$MANPATH; module unload llampi; [[ \$CMAKE_PREFIX_PATH == /c ]] || echo stays" 2>&1
    else
        MANPATH=/m PATH=/usr/bin:/bin CMAKE_PREFIX_PATH=/c tclsh stand_in.tcl "$1/llampi/$version"
    fi
}
cat >stand_in.tcl <<'TCL'
set ModulesCurrentModulefile [lindex $argv 0]
proc prepend-path {name folder} { set ::env($name) $folder:$::env($name) }
proc module-whatis {text} {}
proc conflict {name} {}
set env(PKG_CONFIG_PATH) ""
source $ModulesCurrentModulefile
puts "$env(PATH) $env(CMAKE_PREFIX_PATH) $env(MANPATH)"
TCL
expect() { # WHERE MODULES PREFIX
    local said
    said=$(load "$2")
    [[ $said == "$3/bin:/usr/bin:/bin $3:/c $3/share/man:"*/m ]] || fail "$1: $said"
}
expect "where it was installed" "$folder/here/$module_folder" "$folder/here"
cp -r "here/$module_folder" site
expect "a copy" "$folder/site" "$folder/here"
mv here there
expect "where it was moved to" "$folder/there/$module_folder" "$folder/there"
