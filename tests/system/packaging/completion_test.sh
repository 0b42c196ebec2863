#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# completion_test.sh LLAMPI SHELL: what the shell offers at the end of command lines; 77 where there is no such shell.
set -euo pipefail
llampi=$1 shell=$2
command -v "$shell" >/dev/null || { echo "there is no $shell"; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"$llampi" completion "$shell" >script
"$shell" -n script
touch tokens.h5 "a b.h5"

offers_bash() { # as bash itself splits the line, at = too
    bash -c 'source ./script
        COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
        _llampi
        printf "%s\n" "${COMPREPLY[@]}"' bash "$@" | sort | paste -sd '|'
}
offers_fish() { # a line; without the descriptions
    # shellcheck disable=SC2016
    fish --no-config -c 'source ./script; complete -C "$argv[1]"' "$1" | cut -f 1 | sort | paste -sd '|'
}
failed=0
expect() { # WHAT ACTUAL EXPECTED
    if [[ $2 != "$3" ]]; then printf '%s: %s\n  is not %s\n' "$1" "$2" "$3" >&2 && failed=1; fi
}

case $shell in
    bash)
        if command -v shellcheck >/dev/null; then shellcheck script; fi
        expect command "$(offers_bash llampi tr)" train
        expect commands "$(offers_bash llampi '')" "$("$llampi" --help | sed -n '/^Commands/,/^$/s/^  \([a-z]*\) .*/\1/p' | sort | paste -sd '|')"
        expect key "$(offers_bash llampi train --run.dev)" "--run.device="
        expect "after =" "$(offers_bash llampi train --run.device =)" "auto|cpu|cuda"
        expect "after =c" "$(offers_bash llampi train --steps = 3 --run.device = c)" "cpu|cuda"
        expect "one word" "$(offers_bash llampi train --run.device=c)" "--run.device=cpu|--run.device=cuda"
        expect "apart" "$(offers_bash llampi train --run.device '')" "auto|cpu|cuda"
        expect file "$(offers_bash llampi train --data.train = t)" tokens.h5
        expect "file or word" "$(offers_bash llampi train --model.weights = '')" "a b.h5|random|script|tokens.h5"
        expect "argument" "$(offers_bash llampi inspect --json to)" tokens.h5
        expect "no file" "$(offers_bash llampi train --run.seed = t)" ""
        expect flag "$(offers_bash llampi inspect --)" "--help|--json|--units|--verify"
        expect word "$(offers_bash llampi completion '')" "bash|fish|zsh"
        ;;
    fish)
        expect command "$(offers_fish "llampi tr")" train
        expect key "$(offers_fish "llampi train --run.dev")" "--run.device"
        expect "after =" "$(offers_fish "llampi train --run.device=")" "--run.device=auto|--run.device=cpu|--run.device=cuda"
        expect file "$(offers_fish "llampi train --data.train=t")" "--data.train=tokens.h5"
        expect "argument" "$(offers_fish "llampi inspect to")" tokens.h5
        ;;
    zsh) # at a terminal, which completion needs
        zsh -f -c 'autoload -U compinit && compinit -D -u && source ./script && [[ $_comps[llampi] == _llampi ]]'
        zsh -f -c 'zmodload zsh/zpty
            zpty shell zsh -f
            zpty -w shell "autoload -U compinit; compinit -D -u; source ./script; PS1="
            zpty -w -n shell "llampi train --run.device=cu"$'"'\\t'"'
            for i in {1..50}; do
                if zpty -r -t shell part; then said+=$part; else sleep 0.1; fi
                if [[ $said == *--run.device=cuda* ]]; then exit 0; fi
            done
            print -r -- "$said"
            exit 1' || { echo "zsh does not complete --run.device=cu" >&2; failed=1; }
        ;;
esac
exit "$failed"
