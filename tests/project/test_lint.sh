#!/bin/bash
# That tests/lint's checks of the tree can fail: it runs in a copy of the sources, as they are and with one mistake at a
# time. The checks that call a tool (clang-format, cppcheck, the compiler) are the tool's business.
# Run by tests/run-all; prints "ok: claim" or "FAILED: claim" for each.
# shellcheck disable=SC2317 # functions are called through claim

set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
# shellcheck source=tests/support/claims.sh
source tests/support/claims.sh

# A copy without what make builds.
tree=$scratch/tree
mkdir -p "$tree/tests"
cp -r include src comm kernels docs examples launch .ci mk Makefile "$tree/"
cp tests/lint "$tree/tests/"

# finds CHECK LINE: in the copy the check fails, and its output has the line, an extended regular expression.
finds()
{
    local status=0
    "$tree/tests/lint" "$1" >"$scratch/out" || status=1
    cat "$scratch/out"
    [[ $status -eq 1 ]] && grep -qE "$2" "$scratch/out"
}

# with FILE LINE CHECK PATTERN: as `finds`, with this line at the file's end, which is then taken back.
with()
{
    local found=0
    cp "$tree/$1" "$scratch/before"
    printf '%s\n' "$2" >>"$tree/$1"
    finds "$3" "$4" || found=1
    cp "$scratch/before" "$tree/$1"
    return "$found"
}

claim "the tree as it is passes" "$tree/tests/lint" includes_look_down layers_have_no_circle \
    folders_have_at_most_35_files no_conflict_markers no_network_hosts

# ---- layers --------------------------------------------------------------------------------------------------------
down=includes_look_down
claim "base may not include the engine" \
    with src/base/log.c '#include "zero/engine/engine.h"' $down 'src/base/log\.c includes zero/engine/engine\.h, which is not below src/base'
claim "an include with unusual spaces is found" with src/base/log.c ' #  include "zero/engine/engine.h"' $down 'log\.c includes zero/engine'
claim "an include in angle brackets is found" with src/base/log.c '#include <zero/engine/engine.h>' $down 'log\.c includes zero/engine'
claim "a kernel may not include a transport" with kernels/cuda/adam.cu '#include "comm/comm.h"' $down 'adam\.cu includes comm/comm\.h'
claim "zerotrain may not include the library's headers" with src/train/run.c '#include "base/log.h"' $down 'run\.c includes base/log\.h'
claim "an example includes zero.h alone" with examples/linear.c '#include "base/log.h"' $down 'linear\.c includes base/log\.h'
claim "allowing a folder does not allow its subfolders" with src/zero/device/device.c '#include "comm/host/node.h"' $down 'device\.c includes comm/host/node\.h'
claim "a relative path is refused" with src/train/run.c '#include "../base/log.h"' $down 'run\.c includes \.\./base/log\.h'
mkdir "$tree/src/new"
touch "$tree/src/new/new.c"
claim "a folder that is not in the table may include nothing" with src/new/new.c '#include "zero.h"' $down 'new\.c includes zero\.h'

claim "headers that include each other are found" \
    with src/zero/plan/layout.h '#include "zero/plan/plan.h"' layers_have_no_circle 'headers include each other'
allow_upwards()
{
    cp "$tree/tests/lint" "$scratch/lint"
    sed -i 's/^src\/zero\/plan .*/& zero\/engine\//' "$tree/tests/lint"
    finds layers_have_no_circle 'row src/zero/plan allows zero/engine/, which is no row above it'
    local found=$?
    cp "$scratch/lint" "$tree/tests/lint"
    return "$found"
}
claim "a table that lets a folder look up is refused" allow_upwards

# ---- the tree ------------------------------------------------------------------------------------------------------
claim "a conflict marker is found" with docs/design.md '>>>>>>> theirs' no_conflict_markers 'docs/design\.md:.*theirs'
claim "the marker of a conflict's base is found" with src/base/log.h '||||||| base' no_conflict_markers 'src/base/log\.h'
# Put together here, since the check reads this file too.
claim "an address is found" with src/base/log.c "/* $(printf %s. 192 0 2)1 */" no_network_hosts 'log\.c:.*192\.0\.2\.1'
claim "a URL in a program is found" with src/base/log.c "char *url = \"https:/""/example.org\";" no_network_hosts 'log\.c:.*example'
claim "a script that downloads is found" with launch/setup.sh "cu""rl something" no_network_hosts 'setup\.sh:.*curl'
fill_folder()
{
    local n
    n=$(find "$tree/src/base" -maxdepth 1 -type f | wc -l)
    while [[ $n -lt 36 ]]; do
        n=$((n + 1))
        touch "$tree/src/base/more_$n.c"
    done
}
fill_folder
claim "a folder of 36 files is too full" finds folders_have_at_most_35_files '\./src/base has 36 files'
rm "$tree/src/base/more_36.c"
claim "a folder of 35 files is not too full" "$tree/tests/lint" folders_have_at_most_35_files
exit $status
