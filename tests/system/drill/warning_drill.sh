#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# warning_drill.sh SOURCE LLAMPI FAULTY_IO: what cannot be written or deleted, and training does not depend on, is a warning: the run
# ends as an undisturbed one does.
set -euo pipefail
# shellcheck source=tests/system/drill/drill.sh
source "$1/tests/system/drill/drill.sh"
steps=12
faulty_io=$3
prepare "$1" "$2"

train_undisturbed 2

# expect FAULT PATTERN [OPTION...]: the run $run must be done, and its log have a line like the pattern
expect() {
    local fault=$1 pattern=$2
    shift 2
    FAULTY_IO=$fault LD_PRELOAD=$faulty_io start "$run" 2 "$@"
    wait_for_job || fail "$run did not end well"
    grep -qE "$pattern" "$run.log" || fail "the log of $run does not say: $pattern"
    [[ $(last_tensors undisturbed) == "$(last_tensors "$run")" ]] || fail "$run: other weights at the end"
    diff <(curve undisturbed) <(curve "$run") || fail "$run: another curve"
}

run=without-locks
expect 0:flock:1:ENOLCK "^warning: without-locks is on a file system without locks: do not run two jobs in it$"
same_as_undisturbed $run || fail "a run without locks"

# Older checkpoints cannot be deleted: saved at once, and in the background.
for async in false true; do
    run=undeleted-$async
    expect 0:remove:1:EIO "^warning: older checkpoints stay: .*$run/checkpoints/step-00000003.h5" --checkpoint.async=$async
    [[ $(find $run/checkpoints -name 'step-*.h5' | wc -l) == 4 ]] || fail "$run: $(ls $run/checkpoints)"
done

# Where the trace of one rank is to be there is a folder.
run=untraced
mkdir -p $run/trace/rank-00001.json/mine
expect 0:none:1:EIO "^warning: the trace of these steps is lost: " --log.trace=2-3
[[ -d $run/trace/rank-00001.json/mine ]] || fail "$run: what was there is gone"
echo "4 warnings"
