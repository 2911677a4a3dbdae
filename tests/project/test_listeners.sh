#!/bin/bash
# Tests that no rank of one host listens beyond loopback, however it was started, and that the launcher listens only on
# the out-of-band port of its own daemon (SECURITY.md, Network). Sockets are read from /proc, by process.
#
#   tests/project/test_listeners.sh [OPTION...]       zerotrain's; on GPUs, --set zero.comm=nccl
#
# Run by tests/run-all; prints "ok: claim", "FAILED: claim" or "SKIP: reason" for each.
# shellcheck disable=SC2317 # functions are called through claim

set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
build=$(realpath "${ZERO_BUILD:-build}")
# shellcheck source=tests/support/claims.sh
source tests/support/claims.sh
# run-all restricts Open MPI for speed; users do not.
unset OMPI_MCA_btl OMPI_MCA_pml OMPI_MCA_mtl

head -c 100000 Makefile >"$scratch/text.txt"
cat >"$scratch/long.ini" <<END
[model]
layers = 1
dim = 32
heads = 2
seq_len = 32
[data]
train = $scratch/text.txt
[train]
steps = 1000000
global_batch = 2
[log]
every = 0
metrics = $scratch/metrics
END

# Prints a process and its descendants.
descendants()
{
    local pid=$1 child
    local -a children
    echo "$pid"
    mapfile -t -d ' ' children < <(cat "/proc/$pid/task/"*/children 2>/dev/null)
    for child in "${children[@]}"; do descendants "$child"; done
}

# Addresses other than loopback's, as /proc/net has them, at which the process takes connections or datagrams.
open_doors()
{
    local pid=$1 inodes
    inodes=$(find "/proc/$pid/fd" -type l -printf '%l\n' 2>/dev/null | sed -n 's/^socket:\[\([0-9]*\)\]$/\1/p' | tr '\n' ' ')
    # TCP that listens has state 0A, UDP that is bound and takes from anyone 07.
    awk -v inodes="$inodes" '
        BEGIN { n = split(inodes, list, " "); for (i = 1; i <= n; i++) ours[list[i]] = 1 }
        ($10 in ours) && ($4 == "0A" || $4 == "07") {
            address = $2; sub(/:.*/, "", address)
            if (address ~ /7F$/ && length(address) == 8) next           # 127.0.0.0/8
            if (address == "00000000000000000000000001000000") next     # ::1
            if (address ~ /^0000000000000000FFFF0000......7F$/) next    # the former, written as IPv6
            print FILENAME, $2
        }' "/proc/$pid/net/tcp" "/proc/$pid/net/tcp6" "/proc/$pid/net/udp" "/proc/$pid/net/udp6" 2>/dev/null
}

# look NAME COMMAND...: runs it until it has made steps. Leaves NAME.ranks and NAME.launcher: what of it listens;
# NAME.count: of how many ranks.
look()
{
    local name=$1 job pid i
    shift
    rm -f "$scratch/metrics"
    "$@" >"$scratch/$name.log" 2>&1 </dev/null &
    job=$!
    for ((i = 0; i < 300; i++)); do
        [[ ! -s $scratch/metrics ]] || break
        sleep 0.1
    done
    : >"$scratch/$name.ranks"
    : >"$scratch/$name.launcher"
    local ranks=0
    for pid in $(descendants "$job"); do
        if [[ $(cat "/proc/$pid/comm" 2>/dev/null) == zerotrain ]] && grep -qz OMPI_COMM_WORLD_RANK "/proc/$pid/environ"; then
            ranks=$((ranks + 1))
            open_doors "$pid" >>"$scratch/$name.ranks"
        else
            open_doors "$pid" >>"$scratch/$name.launcher"
        fi
    done
    echo $ranks >"$scratch/$name.count"
    # The ranks end after their step, and mpirun removes what it has in /tmp and /dev/shm.
    for pid in $(descendants "$job"); do
        [[ $(cat "/proc/$pid/comm" 2>/dev/null) != zerotrain ]] || kill -TERM "$pid"
    done
    for ((i = 0; i < 100; i++)); do
        kill -0 "$job" 2>/dev/null || break
        sleep 0.1
    done
    for pid in $(descendants "$job" | tac); do kill -KILL "$pid" 2>/dev/null; done
    wait "$job" 2>/dev/null
}

ranks_keep_to_themselves() # NAME
{
    [[ -s $scratch/metrics && $(<"$scratch/$1.count") -eq 2 ]] || { cat "$scratch/$1.log"; return 1; }
    [[ ! -s $scratch/$1.ranks ]] || { cat "$scratch/$1.ranks"; return 1; }
}
# The out-of-band port: Open MPI binds it to all addresses of IPv4 and of IPv6, and no parameter narrows that. MORE:
# addresses that are allowed beside it.
daemon_has_no_more_than_its_port() # NAME MORE
{
    [[ $(wc -l <"$scratch/$1.launcher") -le $((2 + $2)) ]] || { cat "$scratch/$1.launcher"; return 1; }
}

mpirun=(mpirun --oversubscribe --bind-to none -np 2)
export OMP_NUM_THREADS=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

look plain "${mpirun[@]}" "$build/zerotrain" "$@" "$scratch/long.ini"
claim "mpirun zerotrain: 2 ranks, of which none listens beyond loopback" ranks_keep_to_themselves plain
# Open MPI 5 has PMIx's port on the host's first address too, unless PMIX_MCA_ptl_base_if_include says otherwise.
claim "mpirun itself listens on no more than its daemon's ports" daemon_has_no_more_than_its_port plain 1

if [[ $build == "$PWD/build" ]]; then
    look launched launch/zerotrain -np 2 "$@" "$scratch/long.ini"
    claim "launch/zerotrain: 2 ranks, of which none listens beyond loopback" ranks_keep_to_themselves launched
    claim "launch/zerotrain: mpirun listens on no more than the daemon's out-of-band port" daemon_has_no_more_than_its_port launched 0
else
    echo "SKIP: launch/zerotrain runs what is in build/"
fi

# What the user has chosen stays; and it shows that this test sees what listens.
has_open_door() { [[ $(wc -l <"$scratch/$1.ranks") -ge 2 ]] || { cat "$scratch/$1.log"; return 1; }; }
if ompi_info 2>/dev/null | grep -q 'MCA btl: tcp'; then
    look chosen "${mpirun[@]}" --mca btl ^ofi "$build/zerotrain" "$@" "$scratch/long.ini"
    claim "mpirun --mca btl ^ofi: both ranks listen for TCP, as was asked for" has_open_door chosen
else
    echo "SKIP: this Open MPI has no TCP"
fi
exit $status
